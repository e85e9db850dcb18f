"""The two-hot operations on a GPU: the kernels in Triton and in CUDA C++ as torch operators.

A kernel loops over the rows of tensors that share their leading axes and have strides of their own. Neighbouring
axes that all tensors lay out alike are one axis to the kernel; broadcast axes have stride 0, so nothing is copied.
Three axes are enough for critics' logits beside targets that the critics share.

Only the inputs are saved for the gradient: the backward pass has to read the logits anyway, and recomputes their
softmax in registers.

Shapes: n bins, other leading axes are free; target, mask and weight are expanded to them, not copied.
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
from amago.kernels.two_hot.native import fake_backward

MAX_BINS = {"triton": 4096, "cuda": 1024}  # a row stays in the registers of a program, or of a warp
_MAX_ROWS = (1 << 31) - (1 << 13)  # row numbers have 32 bits, in a last program that is not full too
MAX_AXES = 3
Operands = Sequence[Tensor | None]  # of a kernel, None for one not given


@dataclass(frozen=True, slots=True)
class RowAxes:
    """The merged leading axes of several tensors, outermost first, padded in front by axes of size 1.

    Args:
        sizes: of the MAX_AXES axes.
        strides: for each tensor one stride per axis, in numbers; zeros for a tensor that is not given.
        count: how many of the axes, the innermost, are needed.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    count: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        product = 1
        for size in self.sizes:
            product *= size
        return product

    def evenly_spaced(self, tensor: int) -> bool:
        """Whether the rows of a tensor, given by its number, lie one after the other in equal distances."""
        distance = self.strides[tensor][-1]
        for size, stride in zip(reversed(self.sizes), reversed(self.strides[tensor]), strict=True):
            if size != 1 and stride != distance:
                return False
            distance *= size
        return True


def row_axes(shape: Sequence[int], tensors: Operands) -> RowAxes | None:
    """The merged axes of tensors that broadcast to `shape`; None if there are more than MAX_AXES.

    Args:
        shape: the leading axes of all.
        tensors: of that shape after broadcasting, or with further axes behind it; None for one not given. Rows
            go in the order in which the first one lies in memory.
    """
    strides = [_strides(x, shape) for x in tensors]
    order = sorted((i for i, size in enumerate(shape) if size != 1), key=lambda i: -strides[0][i])
    merged: list[tuple[int, list[int]]] = []
    for axis in order:
        size, inner = shape[axis], [s[axis] for s in strides]
        if merged and all(a == b * size for a, b in zip(merged[-1][1], inner, strict=True)):
            merged[-1] = (merged[-1][0] * size, inner)
        else:
            merged.append((size, inner))
    if len(merged) > MAX_AXES:
        return None
    padded = [(1, [0] * len(tensors))] * (MAX_AXES - len(merged)) + merged
    return RowAxes(
        sizes=tuple(size for size, _ in padded),
        strides=tuple(tuple(s[i] for _, s in padded) for i in range(len(tensors))),
        count=max(1, len(merged)),
    )


def _strides(x: Tensor | None, shape: Sequence[int]) -> Sequence[int]:
    """The strides of x along the leading axes."""
    if x is None:
        return [0] * len(shape)
    return x.stride()[: len(shape)]


@dataclass(frozen=True)
class LabelBins(Bins):
    """Bins and the kind of label.

    Args:
        sharpness: 1 / (sigma sqrt 2) of a normal distribution's labels; 0 for two-hot labels.
    """

    sharpness: float = 0.0


def _contiguous(tensors: Operands, bins: Bins) -> tuple[Any, ...]:
    return *(None if x is None else x.contiguous() for x in tensors), bins


def _fake_rows(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


_LOSS = "Tensor logits, Tensor target, Tensor? mask, Tensor? weight"


class GpuTwoHot:
    """The two-hot operations by one set of kernels.

    Args:
        kernels: "triton" or "cuda".
    """

    def __init__(self, kernels: str) -> None:
        self._kernels = kernels
        self._loss = Operator(
            f"{kernels}_cross_entropy", self._forward, _LOSS, "Tensor", options=LabelBins, fake=_fake_rows
        )
        self._loss.differentiate(
            Operator(
                f"{kernels}_cross_entropy_backward",
                self._backward,
                f"Tensor grad, {_LOSS}",
                "Tensor",
                options=LabelBins,
                fake=fake_backward,
            )
        )
        self._mean = Operator(
            f"{kernels}_expected_return",
            self._mean_forward,
            "Tensor logits",
            "Tensor",
            options=Bins,
            fake=_fake_rows,
        )
        self._mean.differentiate(
            Operator(
                f"{kernels}_expected_return_backward",
                self._mean_backward,
                "Tensor grad, Tensor logits",
                "Tensor",
                options=Bins,
                fake=fake_backward,
            )
        )

    def unsupported(self, logits: Tensor, *_: object) -> list[str]:
        """Reasons why the kernels cannot run a call."""
        reasons = triton_runtime.unsupported("logits", logits)
        if self._kernels == "cuda" and not logits.is_cuda:
            reasons = [f"its kernels need a CUDA device and logits is on {logits.device}"]
        if logits.shape[-1] > MAX_BINS[self._kernels]:
            reasons.append(f"it takes at most {MAX_BINS[self._kernels]} bins, got {logits.shape[-1]}")
        if logits.numel() > _MAX_ROWS * logits.shape[-1]:
            reasons.append(f"it takes at most {_MAX_ROWS} rows, got logits {tuple(logits.shape)}")
        return reasons

    def _launch(self, kernel: str, axes: RowAxes, operands: Operands, bins: Bins, *numbers: float) -> None:
        """Runs a kernel over all rows, if there are any; the module is imported by the first call."""
        if axes.rows:
            module = importlib.import_module(f"amago.kernels.two_hot.{self._kernels}_kernels")
            getattr(module, kernel)(axes, operands, bins, *numbers)

    def _forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, weight: Tensor | None, bins: LabelBins
    ) -> Tensor:
        """weight * cross-entropy of softmax(logits) against the targets' labels: (..., n) -> (...) float32."""
        loss = _fake_rows(logits)
        operands = (logits, target, mask, weight, loss)
        axes = row_axes(loss.shape, operands)
        if axes is None:
            return self._forward(*_contiguous(operands[:-1], bins))
        self._launch("cross_entropy", axes, operands, bins, bins.sharpness)
        return loss

    def _backward(
        self,
        grad: Tensor,
        logits: Tensor,
        target: Tensor,
        mask: Tensor | None,
        weight: Tensor | None,
        bins: LabelBins,
    ) -> Tensor:
        """The gradient of `_forward` with respect to the logits: grad (...) -> (..., n)."""
        out = torch.empty_like(logits)
        operands = (logits, target, mask, weight, grad, out)
        axes = row_axes(grad.shape, operands)
        if axes is None:
            return out.copy_(self._backward(*_contiguous((grad, *operands[:-2]), bins)))
        self._launch("cross_entropy_backward", axes, operands, bins, bins.sharpness)
        return out

    def _mean_forward(self, logits: Tensor, bins: Bins) -> Tensor:
        """The expected return under softmax(logits): (..., n) -> (...) float32."""
        value = _fake_rows(logits)
        axes = row_axes(value.shape, (logits, value))
        if axes is None:
            return self._mean_forward(logits.contiguous(), bins)
        self._launch("mean", axes, (logits, value), bins)
        return value

    def _mean_backward(self, grad: Tensor, logits: Tensor, bins: Bins) -> Tensor:
        """The gradient of `_mean_forward` with respect to the logits: grad (...) -> (..., n)."""
        out = torch.empty_like(logits)
        axes = row_axes(grad.shape, (logits, grad, out))
        if axes is None:
            return out.copy_(self._mean_backward(grad.contiguous(), logits.contiguous(), bins))
        self._launch("mean_backward", axes, (logits, grad, out), bins)
        return out

    def _readable(self, x: Tensor, rows: torch.Size) -> Tensor:
        """x expanded to the rows, without gradient, in a dtype that the kernels read."""
        convert = x.dtype == torch.float64 or self._kernels == "cuda"
        return (x.detach().float() if convert else x.detach()).expand(rows)

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
        rows = logits.shape[:-1]
        sharpness = 0.0 if sigma is None else 1.0 / (sigma * math.sqrt(2.0))
        labels = LabelBins(float(bins.low), float(bins.high), bins.n, bins.symlog, sharpness)
        loss: Tensor = self._loss(
            logits,
            self._readable(target, rows),
            None if mask is None else mask.expand(rows),
            None if weight is None else self._readable(weight, rows),
            labels,
        )
        return loss

    def mean(self, logits: Tensor, bins: Bins) -> Tensor:
        """See `amago.kernels.two_hot_mean`."""
        value: Tensor = self._mean(logits, bins)
        return value
