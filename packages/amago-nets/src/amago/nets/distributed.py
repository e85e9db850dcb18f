"""The one thing that running statistics need of data parallelism: sums over all ranks."""

import torch.distributed as dist
from torch import Tensor


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of `x` over the processes of a data-parallel run; `x` itself where there is one process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        x = x.clone()
        dist.all_reduce(x)
    return x
