"""Random critic subsets for TD targets, and updates of target networks.

Shapes: n transitions (flattened), C critics, G discounts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def random_critic_subset(values: Tensor, size: int, reduce: str) -> Tensor:
    """The minimum or mean over a random subset of critics, sampled per transition and discount without
    replacement.

    Randomised ensembled double Q-learning (Chen et al. 2021, algorithm 1, line 8).

    Args:
        values: (..., C, G, 1).
        size: critics per subset, 1 to C.
        reduce: "min" or "mean".

    Returns:
        (..., 1, G, 1).
    """
    n_critics = values.shape[-3]
    if not 1 <= size <= n_critics:
        raise ValueError(f"size must lie between 1 and the number of critics, {n_critics}, got {size}")
    if size < n_critics:
        subset = torch.rand_like(values).topk(size, dim=-3).indices
        values = values.gather(-3, subset)  # (..., size, G, 1)
    if reduce == "min":
        return values.amin(dim=-3, keepdim=True)
    if reduce == "mean":
        return values.mean(dim=-3, keepdim=True)
    raise ValueError(f"reduce must be 'min' or 'mean', got {reduce!r}")


@torch.no_grad()
def move_towards(targets: Sequence[nn.Parameter], sources: Sequence[nn.Parameter], tau: float) -> None:
    """target += tau * (source - target), in one fused operation; tau = 1 copies."""
    if tau == 1.0:
        torch._foreach_copy_(list(targets), list(sources))
    else:
        torch._foreach_lerp_(list(targets), list(sources), tau)
