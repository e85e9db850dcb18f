"""The two-hot operations in C++ on the CPU: csrc/two_hot.cpp as torch operators.

Labels come as the short windows of `torch_ops`, once for a target that several critics share, so both losses are
one kernel. Tensors are read in place, by their strides.

Shapes: n bins, w bins of a window, other leading axes are free.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, TWO_HOT, operand
from amago.kernels.operators import Operator
from amago.kernels.precision import accumulation_dtype
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.torch_ops import label_window


def unsupported(logits: Tensor, *_: object) -> list[str]:
    """Reasons why it cannot run the call: logits on another device, or of another dtype."""
    reasons = []
    if logits.device.type != "cpu":
        reasons.append(f"the logits are on {logits.device}, not on the CPU")
    if logits.dtype not in DTYPES:
        reasons.append(f"the logits are {logits.dtype}, not one of {', '.join(DTYPES.values())}")
    return reasons


def _run(kernel: str, logits: Tensor, numbers: tuple[int, ...], operands: tuple[Tensor | None, ...]) -> None:
    """Calls a kernel of the native module on logits (..., n) and further tensors with the same leading axes."""
    *rows, n = logits.shape
    addresses = map(operand, (logits, *operands))
    run = getattr(TWO_HOT.load(), kernel)
    run(DTYPES[logits.dtype], rows, n, *numbers, *addresses, torch.get_num_threads())


def _cross_entropy(
    logits: Tensor, first: Tensor, label: Tensor, mask: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """weight * cross-entropy of softmax(logits) against labels that are zero outside a window of bins.

    Args:
        logits: (..., n).
        first: (...) int64, the first bin of each row's window, at most n - w.
        label: (..., w) in the accumulation dtype.
        mask: (...) bool, or None.
        weight: (...) in the accumulation dtype, or None.

    Returns:
        The losses (...), and for the gradient each row's max x and 1 / sum exp(x - max): (..., 2).
    """
    loss = torch.empty(logits.shape[:-1], dtype=label.dtype)
    softmax = torch.empty((*logits.shape[:-1], 2), dtype=label.dtype)
    operands = (first, label, mask, weight, loss, softmax)
    _run("cross_entropy", logits, (label.shape[-1],), operands)
    return loss, softmax


def _cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    first: Tensor,
    label: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    softmax: Tensor,
) -> Tensor:
    """The gradient of `_cross_entropy` with respect to the logits: grad (...) -> (..., n)."""
    out = torch.empty_like(logits)
    operands = (first, label, mask, weight, softmax, grad, out)
    _run("cross_entropy_gradient", logits, (label.shape[-1],), operands)
    return out


def _mean(logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j softmax(logits)_j points_j.

    Args:
        logits: (..., n).
        points: (n,) contiguous, in the accumulation dtype.

    Returns:
        The means (...), and for the gradient each row's max x and 1 / sum exp(x - max): (..., 2).
    """
    mean, softmax = _fake_mean(logits, points)
    _run("mean", logits, (), (points, mean, softmax))
    return mean, softmax


def _mean_backward(grad: Tensor, logits: Tensor, points: Tensor, mean: Tensor, softmax: Tensor) -> Tensor:
    """The gradient of `_mean` with respect to the logits: grad (...) -> (..., n)."""
    out = torch.empty_like(logits)
    _run("mean_gradient", logits, (), (points, mean, softmax, grad, out))
    return out


def _fake_cross_entropy(logits: Tensor, first: Tensor, label: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return label.new_empty(logits.shape[:-1]), label.new_empty((*logits.shape[:-1], 2))


def _fake_mean(logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    return points.new_empty(logits.shape[:-1]), points.new_empty((*logits.shape[:-1], 2))


def fake_backward(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    """A tensor like the logits."""
    return torch.empty_like(logits)


_WINDOW = "Tensor logits, Tensor first, Tensor label, Tensor? mask, Tensor? weight"
windowed_cross_entropy = Operator(
    "windowed_cross_entropy",
    _cross_entropy,
    _WINDOW,
    "(Tensor, Tensor)",
    fake=_fake_cross_entropy,
    device="cpu",
)
windowed_cross_entropy.differentiate(
    Operator(
        "windowed_cross_entropy_backward",
        _cross_entropy_backward,
        f"Tensor grad, {_WINDOW}, Tensor softmax",
        "Tensor",
        fake=fake_backward,
        device="cpu",
    ),
    keep=(1,),
    auxiliary=(1,),
)
expected_value = Operator(
    "expected_value",
    _mean,
    "Tensor logits, Tensor points",
    "(Tensor, Tensor)",
    fake=_fake_mean,
    device="cpu",
)
expected_value.differentiate(
    Operator(
        "expected_value_backward",
        _mean_backward,
        "Tensor grad, Tensor logits, Tensor points, Tensor mean, Tensor softmax",
        "Tensor",
        fake=fake_backward,
        device="cpu",
    ),
    keep=(0, 1),
    auxiliary=(1,),
)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    bins: Bins,
    mask: Tensor | None,
    weight: Tensor | None,
    sigma: float | None,
) -> Tensor:
    """See `amago.kernels.hl_gauss_cross_entropy`; `two_hot_cross_entropy` if sigma is None."""
    index, label = label_window(target.detach().to(accumulation_dtype(logits)), bins, sigma)
    rows = logits.shape[:-1]
    loss: Tensor
    loss, _ = windowed_cross_entropy(
        logits,
        index[..., 0].expand(rows),
        label.expand(*rows, -1),
        None if mask is None else mask.expand(rows),
        None if weight is None else weight.detach().to(label.dtype).expand(rows),
    )
    return loss


def mean(logits: Tensor, bins: Bins) -> Tensor:
    """See `amago.kernels.two_hot_mean`."""
    result, _ = expected_value(logits, bins.points(accumulation_dtype(logits), logits.device))
    return bins.returns(result)
