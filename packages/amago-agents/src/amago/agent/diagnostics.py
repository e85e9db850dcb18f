"""Training metrics, returned as tensors on the device to avoid host synchronization."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from amago.nets.precision import at_least_float32

_MAX_SORTED = 1 << 20  # torch.quantile refuses more than 2^24 values; of more than this, every k-th is taken


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


def percentiles(x: Tensor, percents: Sequence[int]) -> Tensor:
    """The percentiles of all values of `x`, one per number in `percents`; NaN if `x` is empty."""
    values = at_least_float32(x).flatten()
    if values.numel() == 0:
        return torch.full((len(percents),), float("nan"), device=x.device)
    values = values[:: values.numel() // _MAX_SORTED + 1]
    return torch.quantile(values, torch.tensor(percents, dtype=values.dtype, device=x.device) / 100)
