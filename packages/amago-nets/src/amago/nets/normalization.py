"""Normalisation layers by name.

`Normalization(method, d_model)` acts on the last axis (..., d_model). The methods:

| method | output |
|---|---|
| "none" or None | x |
| "layer" | layer norm with weight and bias |
| "rmsnorm" | weight · x / sqrt(mean(x²) + 1e-5) (Zhang and Sennrich 2019) |
| "unitball" | x / (‖x‖ + 1e-5) |
| "unitball-detach" | the same, with the norm detached from the gradient |
| "hypersphere" | sqrt(d_model) · x / ‖x‖ |
| "simnorm" | softmax over groups of 8 (Lavoie et al. 2022; Hansen et al. 2024) |
"""

import math
from collections.abc import Callable
from typing import Literal

import gin
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago.nets.activations import softmax
from amago.nets.arguments import Size, check_arguments

Norm = Literal["none", "layer", "rmsnorm", "unitball", "unitball-detach", "hypersphere", "simnorm"]
EPS = 1e-5


class RMSNorm(nn.Module):
    """Divides by the root mean square and multiplies by a learned scale."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape."""
        scaled: Tensor = self.scale * x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
        return scaled


class UnitBall(nn.Module):
    """Divides each vector by its length; with `detach`, the length carries no gradient."""

    def __init__(self, detach: bool = False) -> None:
        super().__init__()
        self.detach = detach

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / ((length.detach() if self.detach else length) + EPS)


class Hypersphere(nn.Module):
    """Scales each vector to length sqrt(d_model)."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape."""
        return math.sqrt(x.shape[-1]) * F.normalize(x, dim=-1)


@gin.configurable(module="amago.nets.ff")
class SimNorm(nn.Module):
    """Simplicial normalisation: a softmax over each group of `dim` consecutive features.

    Args:
        dim: size of a group; the last axis must be a multiple of it.
    """

    @check_arguments
    def __init__(self, dim: Size = 8) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape; ValueError if d_model is not a multiple of `dim`."""
        if x.shape[-1] % self.dim:
            raise ValueError(f"simnorm needs a multiple of dim={self.dim} features, got {x.shape[-1]}")
        groups = x.unflatten(-1, (-1, self.dim))  # (..., d_model / dim, dim)
        return softmax(groups).flatten(-2)


_METHODS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda d_model: nn.Identity(),
    "layer": nn.LayerNorm,
    "rmsnorm": RMSNorm,
    "unitball": lambda d_model: UnitBall(),
    "unitball-detach": lambda d_model: UnitBall(detach=True),
    "hypersphere": lambda d_model: Hypersphere(),
    "simnorm": lambda d_model: SimNorm(),
}


class Normalization(nn.Module):
    """A normalisation layer chosen by name; see the table at the top of this file.

    Args:
        method: name of the method, None for "none".
        d_model: size of the last axis.

    Raises:
        ValueError: for an unknown method; suggests the nearest.
    """

    @check_arguments
    def __init__(self, method: Norm | None, d_model: Size) -> None:
        super().__init__()
        self.norm = _METHODS[method or "none"](d_model)
        if isinstance(self.norm, SimNorm) and d_model % self.norm.dim:
            raise ValueError(f"simnorm needs d_model to be a multiple of {self.norm.dim}, got {d_model}")

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape."""
        normalized: Tensor = self.norm(x)
        return normalized
