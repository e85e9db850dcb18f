"""Rotary positions of queries and keys (Su et al. 2021, eq. 34).

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amago.kernels.precision import accumulation_dtype


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotates every pair of features i and i + D/2 by the angle position * base ** (-2 i / D).

    Angles and products are float32 (float64 for such an x), whatever the dtype of x.

    Args:
        x: (B, L, H, D), D even.
        positions: (B, L) integers.
        base: wavelengths run from 2 pi to 2 pi * base.

    Returns:
        (B, L, H, D), dtype of x.
    """
    wide, dim = accumulation_dtype(x), x.shape[-1]
    frequencies = base ** (-torch.arange(0, dim, 2, device=x.device, dtype=wide) / dim)
    angles = (positions.unsqueeze(-1) * frequencies).unsqueeze(2)  # (B, L, 1, D / 2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
