"""The two-hot operations in CUDA C++: launches csrc/two_hot.cu; arguments as in `triton_kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, TWO_HOT_CUDA
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.gpu import LabelBins, Operands


def _run(task: str, operands: Operands, bins: Bins, sharpness: float = 0.0) -> None:
    """Runs a kernel over all rows.

    Args:
        task: name of the kernel in csrc/two_hot_cuda.h.
        operands: logits, target, mask, weight, incoming gradient and result.
        bins: the support.
        sharpness: see `LabelBins`.
    """
    module = TWO_HOT_CUDA.load()
    logits = operands[0]
    assert logits is not None
    with torch.cuda.device(logits.device):
        module.run(
            DTYPES[logits.dtype],
            task,
            len(logits),
            bins.n,
            bins.symlog,
            (bins.low, bins.high, bins.start, bins.width, sharpness),
            [0 if x is None else x.data_ptr() for x in operands],
            torch.cuda.current_stream().cuda_stream,
        )


def cross_entropy(inputs: Operands, loss: Tensor, bins: LabelBins) -> None:
    """Fills `loss` (R,)."""
    _run("loss", [*inputs, None, loss], bins, bins.sharpness)


def cross_entropy_backward(inputs: Operands, out: Tensor, bins: LabelBins) -> None:
    """Fills `out` (R, n), the gradient of the logits."""
    _run("loss_gradient", [*inputs, out], bins, bins.sharpness)


def mean(inputs: Operands, value: Tensor, bins: Bins) -> None:
    """Fills `value` (R,) with expected returns."""
    _run("mean", [*inputs, None, None, None, None, value], bins)


def mean_backward(inputs: Operands, out: Tensor, bins: Bins) -> None:
    """Fills `out` (R, n), the gradient of the logits."""
    logits, grad = inputs
    _run("mean_gradient", [logits, None, None, None, grad, out], bins)
