"""Position embeddings of the Transformer, indexed by the step of the episode.

Shapes: B batch, L sequence, H heads, D head dimension.
"""

from __future__ import annotations

import math

import gin
import torch
from torch import Tensor, nn

from amago.nets.arguments import Positive, Size, check_arguments
from amago.nets.precision import at_least_float32


@gin.configurable(module="amago.nets.transformer")
class FixedPosEmb(nn.Module):
    """Sinusoids of geometrically spaced wavelengths (Vaswani et al. 2017, sec. 3.5).

    Args:
        d_model: width of the embedding; even.
    """

    @check_arguments
    def __init__(self, d_model: Size) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(f"d_model must be even for sinusoidal positions, got {d_model}")
        self.d_model = d_model

    def forward(self, pos_idxs: Tensor) -> Tensor:
        """(B, L) integers -> (B, L, d_model) float32."""
        even = torch.arange(0, self.d_model, 2, device=pos_idxs.device, dtype=torch.float32)
        frequencies = torch.exp(even * (-math.log(10000.0) / self.d_model))
        angles = pos_idxs.unsqueeze(-1) * frequencies  # (B, L, d_model / 2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@gin.configurable(module="amago.nets.transformer")
class LearnablePosEmb(nn.Module):
    """A learned vector for each timestep of an episode, initialised from N(0, 1).

    Args:
        d_model: width of the embedding.
        max_time_idx: number of embeddings, for time indices 0 to max_time_idx - 1, including the final
            observation. Required; `TformerTrajEncoder` passes a default.
    """

    @check_arguments
    def __init__(self, d_model: Size, max_time_idx: Size = gin.REQUIRED) -> None:
        super().__init__()
        self.max_time_idx = max_time_idx
        self.embeddings = nn.Embedding(max_time_idx, d_model)

    def forward(self, pos_idxs: Tensor) -> Tensor:
        """(B, L) integers -> (B, L, d_model).

        Raises:
            ValueError: on CPU, if an index is too large (on GPU this is a device-side assertion).
        """
        if pos_idxs.device.type == "cpu" and not torch.compiler.is_compiling():  # a program cannot ask
            largest = int(pos_idxs.max())
            if largest >= self.max_time_idx:
                raise ValueError(
                    f"step {largest} of the episode has no learned position: set "
                    f"LearnablePosEmb.max_time_idx (now {self.max_time_idx}) to at least {largest + 1}"
                )
        out: Tensor = self.embeddings(pos_idxs)
        return out


class RotaryPosEmb(nn.Module):
    """Rotary positions: rotates pairs of query and key features by position-dependent angles (Su et al. 2021,
    eq. 34).

    Feature i is paired with feature i + D/2.

    Args:
        head_dim: D; even.
        base: wavelengths range from 2 pi to 2 pi * base.
    """

    @check_arguments
    def __init__(self, head_dim: Size, base: Positive = 10000.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {head_dim}")
        self.head_dim = head_dim
        self.base = base

    def forward(self, qkv: Tensor, pos_idxs: Tensor) -> Tensor:
        """Packed (B, L, 3, H, D) and positions (B, L) -> the same with queries and keys rotated."""
        even = torch.arange(0, self.head_dim, 2, device=qkv.device, dtype=torch.float32)
        frequencies = self.base ** (-even / self.head_dim)
        angles = (pos_idxs.unsqueeze(-1) * frequencies)[:, :, None, None]  # (B, L, 1, 1, D / 2)
        cos, sin = angles.cos(), angles.sin()
        qk, v = qkv[:, :, :2], qkv[:, :, 2:]
        a, b = at_least_float32(qk).chunk(2, dim=-1)
        rotated = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
        return torch.cat((rotated.to(qkv.dtype), v), dim=2)
