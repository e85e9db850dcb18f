"""Sums over data-parallel ranks, for running statistics."""

import torch.distributed as dist
from torch import Tensor


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of `x` over the processes of a data-parallel run; `x` itself in a single process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        x = x.clone()
        dist.all_reduce(x)
    return x
