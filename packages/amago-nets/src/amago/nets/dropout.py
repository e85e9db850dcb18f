"""Dropout with a fast random mask on CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16  # each element is decided by 16 random bits


class Dropout(nn.Dropout):
    """Sets each element to zero with probability `p` in training, and scales the others by 1 / (1 - p).

    On CPU, torch draws one number of a serial generator per element. Here a draw of 64 bits decides four elements;
    `p` is rounded to a multiple of 2^-16 for mask and scale alike, so that the mean is exact.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(...) to the same shape."""
        if x.device.type != "cpu" or torch.compiler.is_compiling() or self.inplace:
            return super().forward(x)
        dropped = round(self.p * _LEVELS)
        if not self.training or dropped == 0:
            return x
        if dropped == _LEVELS:
            return x * 0.0
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (draws >= dropped - _LEVELS // 2).to(x.dtype)
        return x * kept.mul_(_LEVELS / (_LEVELS - dropped))
