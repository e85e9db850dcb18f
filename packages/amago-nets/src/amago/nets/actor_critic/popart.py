"""PopArt: normalisation of critic targets by running statistics that preserves the critics' outputs.

Shapes: B batch, L sequence, C critics, G discounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import gin
import torch
from annotated_types import Gt, Le
from torch import Tensor, nn

from amago.nets.arguments import Positive, Size, check_arguments
from amago.nets.data_parallel import sum_over_ranks
from amago.nets.precision import at_least_float32


@gin.configurable(module="amago.nets.actor_critic", denylist=["enabled"])
class PopArtLayer(nn.Module):
    """An affine map per discount that tracks the statistics of the targets (van Hasselt et al. 2016, sec. 2).

    `forward` maps a critic's raw output x to the normalised prediction w x + b. When the statistics change, w
    and b are adjusted so that sigma (w x + b) + mu is preserved.

    Args:
        gammas: the discounts, or their number G.
        beta: step size of the running mean and second moment, with bias correction.
        init_nu: initial second moment, in squared returns.
        enabled: if False, every method is the identity (the buffers still exist).
    """

    mu: Tensor
    nu: Tensor
    w: Tensor
    b: Tensor
    _t: Tensor

    @check_arguments
    def __init__(
        self,
        gammas: Size | Sequence[float] | Tensor,
        beta: Annotated[float, Gt(0), Le(1)] = 5e-4,
        init_nu: Positive = 100.0,
        enabled: bool = True,
    ) -> None:
        super().__init__()
        n = len(gammas) if isinstance(gammas, (Sequence, Tensor)) else int(gammas)
        self.beta = beta
        self.enabled = enabled
        self.register_buffer("mu", torch.zeros(n, 1))
        self.register_buffer("nu", torch.full((n, 1), float(init_nu)))
        self.register_buffer("w", torch.ones(n, 1))
        self.register_buffer("b", torch.zeros(n, 1))
        self.register_buffer("_t", torch.ones(n, 1))

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of the targets, (G, 1), clamped to [1e-4, 1e6]."""
        return (self.nu - self.mu**2).clamp(min=0.0).sqrt().clamp(1e-4, 1e6)

    def normalize_values(self, val: Tensor) -> Tensor:
        """(val - mu) / sigma for values (..., G, 1)."""
        if not self.enabled:
            return val
        return (val - self.mu) / self.sigma

    def denormalize_values(self, val: Tensor) -> Tensor:
        """sigma * val + mu for normalised values (..., G, 1)."""
        if not self.enabled:
            return val
        return val * self.sigma + self.mu

    @torch.no_grad()
    def update_stats(self, val: Tensor, mask: Tensor) -> None:
        """Updates the statistics with `val` (..., G, 1) where `mask` (broadcastable) is True.

        Values that are not finite, or whose squares are not, are skipped. The statistics of a discount without any
        value, or that would overflow, are kept. In data-parallel runs the statistics are those of the whole batch.
        """
        if not self.enabled:
            return
        val = at_least_float32(val)
        counted = mask.bool() & torch.isfinite(val.square())
        val = torch.where(counted, val, torch.zeros_like(val))
        batch_dims = tuple(range(val.dim() - 2))
        sums = torch.stack(
            (counted.sum(batch_dims).to(val), val.sum(batch_dims), val.square().sum(batch_dims))
        )
        count, total, squares = sum_over_ranks(sums)  # each (G, 1)
        n = count.clamp(min=1.0)
        t = self._t + 1.0
        step = self.beta / (1.0 - (1.0 - self.beta) ** t)
        mu = (1.0 - step) * self.mu + step * total / n
        nu = (1.0 - step) * self.nu + step * squares / n
        usable = (count > 0) & mu.isfinite() & nu.isfinite()  # (G, 1); no synchronisation
        old_sigma, old_mu = self.sigma, self.mu.clone()
        self.mu.copy_(torch.where(usable, mu, self.mu))
        self.nu.copy_(torch.where(usable, nu, self.nu))
        self._t.copy_(torch.where(usable, t, self._t))
        new_sigma = self.sigma
        self.w.mul_(old_sigma / new_sigma)
        self.b.copy_((old_sigma * self.b + old_mu - self.mu) / new_sigma)

    def forward(self, x: Tensor, normalized: bool = True) -> Tensor:
        """Raw critic outputs (..., G, 1) -> predictions, normalised or in the units of the targets."""
        if not self.enabled:
            return x
        prediction = self.w * x + self.b
        return prediction if normalized else self.denormalize_values(prediction)
