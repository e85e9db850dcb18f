"""The two-hot operations on a GPU: how calls of the public functions reach the kernels of `op`.

Shapes: n bins, other leading axes are free.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.precision import traced
from amago.kernels.two_hot import op
from amago.kernels.two_hot.bins import Bins

MAX_BINS = 4096  # a row in the registers of 128 threads
_MAX_ROWS = (1 << 31) - 1


def unsupported(logits: Tensor, *_: object, **__: object) -> list[str]:
    """Why Triton's kernels cannot run a call; none if they can."""
    reasons = triton_runtime.unsupported("logits", logits)
    if logits.shape[-1] > MAX_BINS:
        reasons.append(f"it takes at most {MAX_BINS} bins, got {logits.shape[-1]}")
    if logits.numel() > _MAX_ROWS * logits.shape[-1]:
        reasons.append(f"it takes at most {_MAX_ROWS} rows, got logits {tuple(logits.shape)}")
    return reasons


def _plain(x: Tensor, rows: torch.Size) -> Tensor:
    """x expanded to the rows, without gradient, in a dtype that the kernels read."""
    return (x.detach().float() if x.dtype == torch.float64 else x.detach()).expand(rows)


class GpuTwoHot:
    """The three operations by one set of kernels.

    Args:
        kernels: "triton" or "cuda", see `op`.
    """

    def __init__(self, kernels: str) -> None:
        self._kernels = kernels

    def _loss(
        self,
        logits: Tensor,
        target: Tensor,
        bins: Bins,
        mask: Tensor | None,
        weight: Tensor | None,
        sharpness: float,
    ) -> Tensor:
        rows = logits.shape[:-1]
        run = op.cross_entropy_op if traced(logits) else op.cross_entropy
        loss: Tensor = run(
            logits,
            _plain(target, rows),
            None if mask is None else mask.expand(rows),
            None if weight is None else _plain(weight, rows),
            float(bins.low),
            float(bins.high),
            bins.symlog,
            sharpness,
            self._kernels,
        )
        return loss

    def two_hot_cross_entropy(
        self, logits: Tensor, target: Tensor, bins: Bins, *, mask: Tensor | None, weight: Tensor | None
    ) -> Tensor:
        """See `amago.kernels.two_hot_cross_entropy`."""
        return self._loss(logits, target, bins, mask, weight, 0.0)

    def hl_gauss_cross_entropy(
        self,
        logits: Tensor,
        target: Tensor,
        bins: Bins,
        *,
        mask: Tensor | None,
        weight: Tensor | None,
        sigma: float,
    ) -> Tensor:
        """See `amago.kernels.hl_gauss_cross_entropy`."""
        return self._loss(logits, target, bins, mask, weight, 1.0 / (sigma * math.sqrt(2.0)))

    def two_hot_mean(self, logits: Tensor, bins: Bins) -> Tensor:
        """See `amago.kernels.two_hot_mean`."""
        run = op.expected_return_op if traced(logits) else op.expected_return
        value: Tensor = run(logits, float(bins.low), float(bins.high), bins.symlog, self._kernels)
        return value
