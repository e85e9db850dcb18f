"""From a policy to the actions that environments take: through a step program, or from a distribution.

Shapes: B rows, N choices of one component; distributions have the batch shape (B, 1, G), G discounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from amago.agent.base import BaseAgent
from amago.nets.specs import ActionSpec
from amago.nets.stepping import StepPolicy


def act_by_program(
    agent: BaseAgent,
    policy: StepPolicy,
    obs: Mapping[str, Tensor],
    rl2s: Tensor,
    time_idxs: Tensor,
    hidden_state: Any,
    sample: bool,
) -> tuple[Tensor, Any] | None:
    """What `get_actions` returns, by the agent's step program; None where it cannot be done so.

    The program stands for the modules of the agent, so an agent that computes its states otherwise has none.
    """
    if agent.training or type(agent).get_state_embedding is not BaseAgent.get_state_embedding:
        return None
    modules = agent._modules  # looked up at every step: nn.Module's own attributes take a way round
    actor: Any = modules["actor"]
    chosen = policy.step(
        (modules["tstep_encoder"], modules["traj_encoder"], actor), obs, rl2s, time_idxs, hidden_state, sample
    )
    if chosen is None:
        return None
    if chosen.is_action:
        return chosen.output, chosen.hidden_state
    with torch.no_grad():
        dist = actor.policy_dist(chosen.output.unsqueeze(2))  # (B, 1, 1)
        return choose_actions(dist, agent.action_spec, sample), chosen.hidden_state


def choose_actions(dist: Any, spec: ActionSpec, sample: bool) -> Tensor:
    """The actions of the last discount's policy.

    Args:
        dist: the policies of all discounts, from the actor.
        spec: of the action space, which says what the actions look like.
        sample: draw from the policy; else the likeliest choice, the bits with p > 0.5, or the distribution's mean.

    Returns:
        (B, 1, 1) int64 for "discrete", (B, 1, components) int64 for "multidiscrete", (B, 1, A) int8 for
        "multibinary", and (B, 1, A) float32 in [-1, 1] for "box".
    """
    if spec.kind in ("discrete", "multidiscrete"):
        probs = dist.probs[:, :, -1].split(spec.sizes, dim=-1)
        return torch.cat([_choose(p, sample) for p in probs], dim=-1)
    if spec.kind == "multibinary":
        bits: Tensor = dist.sample() if sample else dist.probs > 0.5
        return bits[:, :, -1].to(torch.int8)
    numbers: Tensor = dist.sample() if sample else dist.mean
    return numbers[:, :, -1].float()


def _choose(probs: Tensor, sample: bool) -> Tensor:
    """An index per row: probabilities (B, 1, N) -> int64 (B, 1, 1)."""
    if not sample:
        return probs.argmax(dim=-1, keepdim=True)
    return torch.multinomial(probs.flatten(0, 1), 1).view(*probs.shape[:2], 1)
