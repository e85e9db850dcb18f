"""Standardisation of network inputs by running statistics.

Statistics are exponential averages with bias correction: the step is β_t = β / (1 − (1 − β)^t) with t from 2
on, so that the first batch has a weight of about one half. They cover real, finite timesteps only: padding is
excluded by `masking.current_timestep_mask()`, or by its fill value without a mask; timesteps with a non-finite
feature are skipped; a batch without any real timestep changes nothing. In data-parallel runs all processes share
the statistics of the whole batch.

Shapes: `val` is (B, L, D), or any (..., D).
"""

from typing import Annotated

import gin
import torch
from annotated_types import Gt, Lt
from torch import Tensor, nn

from amago.nets.arguments import Positive, Size, check_arguments
from amago.nets.data_parallel import sum_over_ranks
from amago.nets.masking import current_timestep_mask, mask_from_filler
from amago.nets.precision import at_least_float32

_EPS = 1e-5
_SIGMA_FLOOR = 0.01
OUTPUT_LIMIT = 1e4


@gin.configurable(module="amago.nets.utils", denylist=["skip"])
class InputNorm(nn.Module):
    """Standardises features by running mean and standard deviation.

    `forward` only normalises; call `update_stats` first on training batches.

    Args:
        dim: number D of features.
        beta: step size of the running averages without bias correction, in (0, 1).
        init_nu: initial mean of squares.
        skip: return inputs unchanged (statistics can still be updated).

    Raises:
        ValueError: if `dim` or `beta` is out of range.
    """

    mu: Tensor
    nu: Tensor
    _t: Tensor

    @check_arguments
    def __init__(
        self,
        dim: Size,
        beta: Annotated[float, Gt(0), Lt(1)] = 1e-4,
        init_nu: Positive = 1.0,
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.beta = beta
        self.skip = skip
        self.register_buffer("mu", torch.zeros(dim))
        self.register_buffer("nu", torch.full((dim,), float(init_nu)))
        self.register_buffer("_t", torch.ones(1))

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of each feature (D,)."""
        return ((self.nu - self.mu.square()).clamp_min(0.0) + _EPS).sqrt()

    @property
    def scale(self) -> Tensor:
        """The divisor of each feature (D,): its standard deviation, or 1 where that is at most 0.01."""
        sigma = self.sigma
        return torch.where(sigma > _SIGMA_FLOOR, sigma, torch.ones_like(sigma))

    def normalize_values(self, val: Tensor) -> Tensor:
        """(val − μ) / σ, clamped to ±1e4; features with σ ≤ 0.01 are only centred."""
        return ((val - self.mu) / self.scale).clamp(-OUTPUT_LIMIT, OUTPUT_LIMIT)

    def denormalize_values(self, val: Tensor) -> Tensor:
        """The inverse of `normalize_values`, up to its clamp."""
        return val * self.scale + self.mu

    @torch.no_grad()
    def update_stats(self, val: Tensor) -> None:
        """Updates mean and second moment with the real, finite timesteps of `val`."""
        val = at_least_float32(val)
        squares = val.square()
        real = _real_timesteps(val) & squares.isfinite().all(dim=-1, keepdim=True)
        zero = val.new_zeros(())
        rows = tuple(range(val.dim() - 1))
        total = torch.where(real, val, zero).sum(rows)  # (D,)
        total_squares = torch.where(real, squares, zero).sum(rows)  # (D,)
        count = real.sum().to(total.dtype).reshape(1)
        sums = sum_over_ranks(torch.cat([total, total_squares, count]))
        total, total_squares, count = torch.split(sums, [len(total), len(total), 1])

        t = self._t + 1.0
        step = self.beta / (1.0 - (1.0 - self.beta) ** t)
        mu = (1.0 - step) * self.mu + step * total / count.clamp_min(1.0)
        nu = (1.0 - step) * self.nu + step * total_squares / count.clamp_min(1.0)
        usable = (count > 0) & mu.isfinite().all() & nu.isfinite().all()  # (1,); no synchronisation
        self._t.copy_(torch.where(usable, t, self._t))
        self.mu.copy_(torch.where(usable, mu, self.mu))
        self.nu.copy_(torch.where(usable, nu, self.nu))

    def forward(self, x: Tensor, denormalize: bool = False) -> Tensor:
        """`normalize_values`, or `denormalize_values` if asked; `x` itself if `skip`."""
        if self.skip:
            return x
        return self.denormalize_values(x) if denormalize else self.normalize_values(x)


def _real_timesteps(val: Tensor) -> Tensor:
    """The mask of real rows of `val` (..., D), bool (..., 1): the batch's if it fits, else from the fill value."""
    mask = current_timestep_mask()
    if mask is None:
        return mask_from_filler(val)
    rows = val.shape[:-1]
    if rows[: mask.dim() - 1] == mask.shape[:-1]:
        return mask.reshape(mask.shape[:-1] + (1,) * (val.dim() - mask.dim() + 1)).expand(*rows, 1)
    if mask.numel() == rows.numel():
        return mask.reshape(*rows, 1)
    return mask_from_filler(val)
