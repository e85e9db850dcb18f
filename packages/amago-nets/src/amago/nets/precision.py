"""Float32 under autocast for values that need it: probabilities, angles, running statistics, losses."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """`x` converted to float32 from half precision; float64 is kept."""
    return x if x.dtype == torch.float64 else x.float()
