"""The two-hot operations in CUDA C++: launches csrc/two_hot.cu with the arguments of `triton_kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from amago.kernels.native import DTYPES, TWO_HOT_CUDA
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.gpu import Operands, RowAxes

_ABSENT = (0, (0, 0, 0), 0)


def _run(
    task: str,
    axes: RowAxes,
    bins: Bins,
    sharpness: float,
    operands: Operands,
    slots: Sequence[int],
) -> None:
    """Runs a kernel over all rows.

    Args:
        task: name of the kernel in csrc/two_hot_cuda.h.
        axes: of the operands.
        bins: the support.
        sharpness: see `gpu.LabelBins`.
        operands: the first are the logits.
        slots: position of each operand among logits, target, mask, weight, incoming gradient and result.
    """
    module = TWO_HOT_CUDA.load()
    six = [_ABSENT] * 6
    for x, strides, slot in zip(operands, axes.strides, slots, strict=True):
        if x is not None:
            six[slot] = (x.data_ptr(), strides, x.stride(-1) if x.dim() else 0)  # type: ignore[assignment]
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


def cross_entropy(axes: RowAxes, operands: Operands, bins: Bins, sharpness: float) -> None:
    """Fills the last of the operands: logits, target, mask, weight and loss; all but the logits float32."""
    _run("loss", axes, bins, sharpness, operands, (0, 1, 2, 3, 5))


def cross_entropy_backward(axes: RowAxes, operands: Operands, bins: Bins, sharpness: float) -> None:
    """Fills the last of the operands: logits, target, mask, weight, the loss's gradient, and the logits'."""
    _run("loss_gradient", axes, bins, sharpness, operands, range(6))


def mean(axes: RowAxes, operands: Operands, bins: Bins) -> None:
    """Fills the last of the operands: logits and expected returns, float32."""
    _run("mean", axes, bins, 0.0, operands, (0, 5))


def mean_backward(axes: RowAxes, operands: Operands, bins: Bins) -> None:
    """Fills the last of the operands: logits, the gradient of the returns, float32, and that of the logits."""
    _run("mean_gradient", axes, bins, 0.0, operands, (0, 4, 5))
