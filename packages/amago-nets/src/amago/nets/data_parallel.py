"""Sums and shares over the processes of a data-parallel run; every process must call them in the same order."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def _is_parallel() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of `x` over the processes of a data-parallel run; `x` itself in a single process."""
    if not _is_parallel():
        return x
    x = x.clone()
    dist.all_reduce(x)
    return x


def relative_share(mask: Tensor, real: int) -> Tensor | float:
    """The share of entries that `mask` keeps in this process, divided by the share over all processes.

    Args:
        mask: True, or a weight, where an entry counts.
        real: number of entries, in units that are equal in all processes.

    Returns:
        A scalar; 1.0 in a single process.
    """
    if not _is_parallel():
        return 1.0
    kept = mask.sum().to(torch.float32)
    kept_everywhere, real_everywhere = sum_over_ranks(torch.stack([kept, torch.full_like(kept, real)]))
    share: Tensor = kept / max(real, 1) * real_everywhere / kept_everywhere
    return torch.where(kept_everywhere > 0, share, torch.zeros_like(share))
