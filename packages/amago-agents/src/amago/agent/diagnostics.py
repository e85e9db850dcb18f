"""Training metrics, returned as tensors on the device to avoid host synchronization."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def grad_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """L2 norm of the concatenated gradients of `parameters`; 0 if there are no gradients."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    return norm


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Minimum and maximum of `x`; NaN if `x` is empty."""
    if x.numel() == 0:
        nan = torch.full((), float("nan"), device=x.device)
        return nan, nan
    low, high = torch.aminmax(x)
    return low, high
