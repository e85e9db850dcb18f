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

MAX_BINS = {"triton": 4096, "cuda": 1024}  # a row stays in the registers of a program, or of a warp
_MAX_ROWS = (1 << 31) - (1 << 13)  # numbers of rows have 32 bits, in a last program that is not full too


class GpuTwoHot:
    """The three operations by one set of kernels.

    Args:
        kernels: "triton" or "cuda", see `op`.
    """

    def __init__(self, kernels: str) -> None:
        self._kernels = kernels

    def unsupported(self, logits: Tensor, *_: object, **__: object) -> list[str]:
        """Why the kernels cannot run a call; none if they can."""
        reasons = triton_runtime.unsupported("logits", logits)
        if self._kernels == "cuda" and not logits.is_cuda:
            reasons = [f"its kernels need a CUDA device and logits is on {logits.device}"]
        if logits.shape[-1] > MAX_BINS[self._kernels]:
            reasons.append(f"it takes at most {MAX_BINS[self._kernels]} bins, got {logits.shape[-1]}")
        if logits.numel() > _MAX_ROWS * logits.shape[-1]:
            reasons.append(f"it takes at most {_MAX_ROWS} rows, got logits {tuple(logits.shape)}")
        return reasons

    def _plain(self, x: Tensor, rows: torch.Size) -> Tensor:
        """x expanded to the rows, without gradient, in a dtype that the kernels read."""
        convert = x.dtype == torch.float64 or self._kernels == "cuda"
        return (x.detach().float() if convert else x.detach()).expand(rows)

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
            self._plain(target, rows),
            None if mask is None else mask.expand(rows),
            None if weight is None else self._plain(weight, rows),
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
