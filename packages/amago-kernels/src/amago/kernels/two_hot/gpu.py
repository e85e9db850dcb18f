"""The two-hot operations on a GPU: the kernels in Triton and in CUDA C++ as torch operators.

Only the inputs are saved for the gradient: the backward pass has to read the logits anyway, and recomputes their
softmax in registers.

Shapes: R rows, n bins.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.operators import Operator
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.rows import from_rows, logits_to_rows, memory_order, to_rows

MAX_BINS = {"triton": 4096, "cuda": 1024}  # a row stays in the registers of a program, or of a warp
Operands = Sequence[Tensor | None]  # of a kernel, None for one that is not given


@dataclass(frozen=True)
class LabelBins(Bins):
    """Bins and the kind of label.

    Args:
        sharpness: 1 / (sigma sqrt 2) of a normal distribution's labels; 0 for two-hot labels.
    """

    sharpness: float = 0.0


def _empty_rows(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape[:1], dtype=torch.float32)


def _empty_gradient(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


_LOSS = "Tensor logits, Tensor target, Tensor? mask, Tensor? weight"


class GpuTwoHot:
    """The two-hot operations by one set of kernels.

    Args:
        kernels: "triton" or "cuda".
    """

    def __init__(self, kernels: str) -> None:
        self._kernels = kernels
        self._loss = Operator(
            f"{kernels}_cross_entropy", self._forward, _LOSS, "Tensor", options=LabelBins, fake=_empty_rows
        )
        self._loss.differentiate(
            Operator(
                f"{kernels}_cross_entropy_backward",
                self._backward,
                f"Tensor grad, {_LOSS}",
                "Tensor",
                options=LabelBins,
                fake=_empty_gradient,
            )
        )
        self._mean = Operator(
            f"{kernels}_expected_return",
            self._mean_forward,
            "Tensor logits",
            "Tensor",
            options=Bins,
            fake=_empty_rows,
        )
        self._mean.differentiate(
            Operator(
                f"{kernels}_expected_return_backward",
                self._mean_backward,
                "Tensor grad, Tensor logits",
                "Tensor",
                options=Bins,
                fake=_empty_gradient,
            )
        )

    def unsupported(self, logits: Tensor, *_: object) -> list[str]:
        """Reasons why the kernels cannot run a call."""
        reasons = triton_runtime.unsupported("logits", logits)
        if self._kernels == "cuda" and not logits.is_cuda:
            reasons = [f"its kernels need a CUDA device and logits is on {logits.device}"]
        if logits.shape[-1] > MAX_BINS[self._kernels]:
            reasons.append(f"it takes at most {MAX_BINS[self._kernels]} bins, got {logits.shape[-1]}")
        return reasons

    def _launch(self, kernel: str, inputs: Operands, out: Tensor, bins: Bins) -> Tensor:
        """Fills `out` by a kernel; the module of the kernels is imported by the first call."""
        if out.numel():
            module = importlib.import_module(f"amago.kernels.two_hot.{self._kernels}_kernels")
            getattr(module, kernel)([None if x is None else x.contiguous() for x in inputs], out, bins)
        return out

    def _forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, weight: Tensor | None, bins: LabelBins
    ) -> Tensor:
        """weight * cross-entropy of softmax(logits) against the targets' labels: (R, n) -> (R,) float32."""
        return self._launch("cross_entropy", (logits, target, mask, weight), _empty_rows(logits), bins)

    def _backward(
        self,
        grad: Tensor,
        logits: Tensor,
        target: Tensor,
        mask: Tensor | None,
        weight: Tensor | None,
        bins: LabelBins,
    ) -> Tensor:
        """The gradient of `_forward` with respect to the logits: (R,) -> (R, n)."""
        inputs = (logits, target, mask, weight, grad)
        return self._launch("cross_entropy_backward", inputs, _empty_gradient(grad, logits), bins)

    def _mean_forward(self, logits: Tensor, bins: Bins) -> Tensor:
        """The expected return under softmax(logits): (R, n) -> (R,) float32."""
        return self._launch("mean", (logits,), _empty_rows(logits), bins)

    def _mean_backward(self, grad: Tensor, logits: Tensor, bins: Bins) -> Tensor:
        """The gradient of `_mean_forward` with respect to the logits: (R,) -> (R, n)."""
        return self._launch("mean_backward", (logits, grad), _empty_gradient(grad, logits), bins)

    def cross_entropy(
        self,
        logits: Tensor,
        target: Tensor,
        bins: Bins,
        mask: Tensor | None,
        weight: Tensor | None,
        sigma: float | None,
    ) -> Tensor:
        """See `amago.kernels.hl_gauss_cross_entropy`; `two_hot_cross_entropy` if sigma is None."""
        shape, order = logits.shape[:-1], memory_order(logits)
        sharpness = 0.0 if sigma is None else 1.0 / (sigma * math.sqrt(2.0))
        loss: Tensor = self._loss(
            logits_to_rows(logits, order),
            to_rows(target.detach().float(), shape, order),
            None if mask is None else to_rows(mask, shape, order),
            None if weight is None else to_rows(weight.detach().float(), shape, order),
            LabelBins(float(bins.low), float(bins.high), bins.n, bins.symlog, sharpness),
        )
        return from_rows(loss, shape, order)

    def mean(self, logits: Tensor, bins: Bins) -> Tensor:
        """See `amago.kernels.two_hot_mean`."""
        order = memory_order(logits)
        value: Tensor = self._mean(logits_to_rows(logits, order), bins)
        return from_rows(value, logits.shape[:-1], order)
