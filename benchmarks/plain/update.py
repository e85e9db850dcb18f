"""One update, as in a common training loop."""

from __future__ import annotations

import torch
from torch import Tensor

from amago.agent import Batch
from benchmarks.plain.agents import PlainAgent


def make_optimizer(agent: PlainAgent, lr: float = 1e-4, weight_decay: float = 1e-3) -> torch.optim.Optimizer:
    """AdamW as torch has it by default, over the parameters that learn."""
    return torch.optim.AdamW(
        [p for p in agent.parameters() if p.requires_grad], lr=lr, weight_decay=weight_decay
    )


def update(
    agent: PlainAgent,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    grad_clip: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Loss, gradients, clipping, optimizer, targets; returns the loss.

    Args:
        agent: in train mode.
        optimizer: of `make_optimizer`.
        batch: on the agent's device.
        grad_clip: largest norm of all gradients together.
        dtype: autocast to this, say torch.bfloat16; None for none.
    """
    optimizer.zero_grad()
    with torch.autocast(batch.rl2s.device.type, dtype=dtype, enabled=dtype is not None):
        loss: Tensor = agent(batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in agent.parameters() if p.requires_grad], grad_clip)
    optimizer.step()
    agent.update_targets()
    return loss.detach()
