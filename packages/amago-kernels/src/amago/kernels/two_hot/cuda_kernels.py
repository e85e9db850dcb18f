"""The two-hot operations in CUDA C++: calls of csrc/two_hot.cu with what `triton_kernels` takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, TWO_HOT_CUDA
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.rows import RowAxes

_ABSENT = (0, (0, 0, 0), 0)


def _run(
    task: str,
    axes: RowAxes,
    bins: Bins,
    sharpness: float,
    operands: Sequence[Tensor | None],
    places: Sequence[int],
) -> None:
    """Runs a kernel over all rows.

    Args:
        task: what to compute, by its name in csrc/two_hot_cuda.h.
        axes: of the operands.
        bins, sharpness: as in `op`.
        operands: the first are the logits.
        places: where each operand stands among logits, target, mask, weight, incoming gradient and result.
    """
    module = TWO_HOT_CUDA.load()
    six = [_ABSENT] * 6
    for x, strides, place in zip(operands, axes.strides, places, strict=True):
        if x is not None:
            six[place] = (x.data_ptr(), strides, x.stride(-1) if x.dim() else 0)  # type: ignore[assignment]
    logits = operands[0]
    assert logits is not None
    numbers = (bins.low, bins.high, bins.start, bins.width, sharpness)
    with torch.cuda.device(logits.device):
        module.run(
            DTYPES[logits.dtype],
            task,
            (axes.rows, *axes.sizes[1:]),
            bins.n,
            bins.symlog,
            numbers,
            six,
            torch.cuda.current_stream().cuda_stream,
        )


def cross_entropy(
    axes: RowAxes,
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    loss: Tensor,
    bins: Bins,
    sharpness: float,
) -> None:
    """Fills `loss`; target, weight and loss are float32."""
    operands = (logits, target, mask, weight, loss)
    _run("loss", axes, bins, sharpness, operands, (0, 1, 2, 3, 5))


def cross_entropy_backward(
    axes: RowAxes,
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    grad: Tensor,
    out: Tensor,
    bins: Bins,
    sharpness: float,
) -> None:
    """Fills `out` with the gradient of the logits; target, weight and grad are float32."""
    operands = (logits, target, mask, weight, grad, out)
    _run("loss_gradient", axes, bins, sharpness, operands, range(6))


def mean(axes: RowAxes, logits: Tensor, value: Tensor, bins: Bins) -> None:
    """Fills `value`, float32, with the expected returns."""
    _run("mean", axes, bins, 0.0, (logits, value), (0, 5))


def mean_backward(axes: RowAxes, logits: Tensor, grad: Tensor, out: Tensor, bins: Bins) -> None:
    """Fills `out` with the gradient of the logits; grad is float32."""
    _run("mean_gradient", axes, bins, 0.0, (logits, grad, out), (0, 4, 5))
