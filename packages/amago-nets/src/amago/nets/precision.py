"""The precision of what half precision would spoil: probabilities, angles, running statistics and losses."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, whatever autocast made of it; float64 stays as it is."""
    return x if x.dtype == torch.float64 else x.float()
