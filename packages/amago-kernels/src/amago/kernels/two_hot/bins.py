"""The support of a classifying critic: evenly spaced bins over returns, or over their symlog.

Shapes: n bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|) (Hafner et al. 2023, eq. 1)."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return torch.sign(x) * torch.expm1(torch.abs(x))


@dataclass(frozen=True)
class Bins:
    """n points from `low` to `high`, evenly spaced in return or in symlog(return).

    Args:
        low: smallest return of the support.
        high: largest one.
        n: number of bins, at least 2.
        symlog: space the bins evenly in symlog(return) instead of in the return itself.

    Raises:
        TypeError: if `n` is not an integer.
        ValueError: unless low < high, both finite, and n >= 2.
    """

    low: float
    high: float
    n: int
    symlog: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool):
            raise TypeError(f"n must be an integer number of bins, got {self.n!r}")
        if self.n < 2:
            raise ValueError(f"n must be at least 2 bins, got {self.n}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low and high must be finite with low < high, got {self.low} and {self.high}")

    @property
    def start(self) -> float:
        """The first support point, in transformed space."""
        return self._transformed(self.low)

    @property
    def stop(self) -> float:
        """The last support point, in transformed space."""
        return self._transformed(self.high)

    @property
    def width(self) -> float:
        """Distance of neighbouring support points, in transformed space."""
        return (self.stop - self.start) / (self.n - 1)

    @property
    def values(self) -> Tensor:
        """The n support points in transformed space, float32 on the CPU."""
        return self.points()

    def points(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """The n support points in transformed space, as `dtype` on `device`."""
        return torch.linspace(self.start, self.stop, self.n, dtype=dtype, device=device)

    def position(self, target: Tensor) -> Tensor:
        """Positions of returns (...) on the support in units of bins, within [0, n - 1].

        Returns beyond an end of the support, infinite ones included, are clamped to it; NaN stays NaN.
        """
        x = symlog(target) if self.symlog else target
        return ((x - self.start) / self.width).clamp(0.0, self.n - 1.0)

    def returns(self, x: Tensor) -> Tensor:
        """Values of the transformed space (...) as returns."""
        return symexp(x) if self.symlog else x

    def _transformed(self, value: float) -> float:
        return math.copysign(math.log1p(abs(value)), value) if self.symlog else float(value)
