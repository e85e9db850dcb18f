"""The two-hot operations in C++ on the CPU: csrc/two_hot.cpp as torch operators.

Labels of either kind are zero, in float32, outside a short window of neighbouring bins around the target.
These windows are computed in torch, so both losses are one kernel.

Shapes: R rows, n bins, w bins of a window.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, TWO_HOT
from amago.kernels.operators import Operator
from amago.kernels.precision import accumulation_dtype
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.rows import from_rows, logits_to_rows, memory_order, to_rows

_REACH = 6.0  # standard deviations beyond which a normal distribution is 0 in float32


def unsupported(logits: Tensor, *_: object) -> list[str]:
    """Reasons why it cannot run the call: logits on another device, or of another dtype."""
    reasons = []
    if logits.device.type != "cpu":
        reasons.append(f"the logits are on {logits.device}, not on the CPU")
    if logits.dtype not in DTYPES:
        reasons.append(f"the logits are {logits.dtype}, not one of {', '.join(DTYPES.values())}")
    return reasons


def _label_window(target: Tensor, bins: Bins, sigma: float | None) -> tuple[Tensor, Tensor]:
    """Labels of returns (...) and the bins that they belong to: index (..., w) and label (..., w)."""
    return _two_hot_window(target, bins) if sigma is None else _hl_gauss_window(target, bins, sigma)


def _two_hot_window(target: Tensor, bins: Bins) -> tuple[Tensor, Tensor]:
    """The two bins around each return and their labels: index (..., 2) and label (..., 2)."""
    position = bins.position(target)
    # NaN has no position on the support; its label is NaN, at any bin.
    first = position.nan_to_num(0.0).floor().clamp(max=bins.n - 2)
    upper = position - first
    label = torch.stack((1.0 - upper, upper), dim=-1)
    return _indices(first, 2), label


def _hl_gauss_window(target: Tensor, bins: Bins, sigma: float) -> tuple[Tensor, Tensor]:
    """The bins within reach of each return and their labels: index (..., w) and label (..., w)."""
    position = bins.position(target).unsqueeze(-1)
    # In float64 the tails beyond six standard deviations are not 0: there the window is the whole support.
    reach = bins.n if target.dtype == torch.float64 else math.ceil(_REACH * sigma + 0.5)
    size = min(bins.n, 2 * reach + 1)
    first = (position.nan_to_num(0.0).round() - reach).clamp(0, bins.n - size)  # (..., 1)
    edges = first + torch.arange(size + 1, dtype=position.dtype, device=position.device) - 0.5
    outer = torch.tensor((-0.5, bins.n - 0.5), dtype=position.dtype, device=position.device)
    scale = sigma * math.sqrt(2.0)
    total = torch.erf((outer - position) / scale).diff(dim=-1)
    label = torch.erf((edges - position) / scale).diff(dim=-1) / total
    return _indices(first.squeeze(-1), size), label


def _indices(first: Tensor, size: int) -> Tensor:
    """size neighbouring bins from `first` (...) on: int64 (..., size)."""
    return first.long().unsqueeze(-1) + torch.arange(size, device=first.device)


def _run(kernel: str, logits: Tensor, numbers: tuple[int, ...], operands: tuple[Tensor | None, ...]) -> None:
    """Calls a kernel of the native module on logits (R, n) and further tensors, outputs last."""
    dense = [None if x is None else x.contiguous() for x in (logits, *operands)]
    addresses = [0 if x is None else x.data_ptr() for x in dense]
    run = getattr(TWO_HOT.load(), kernel)
    run(DTYPES[logits.dtype], *logits.shape, *numbers, *addresses, torch.get_num_threads())


def _cross_entropy(
    logits: Tensor, first: Tensor, label: Tensor, mask: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """weight * cross-entropy of softmax(logits) against labels that are zero outside a window of bins.

    Args:
        logits: (R, n).
        first: (R,) int64, the first bin of each row's window, at most n - w.
        label: (R, w) in the accumulation dtype.
        mask: (R,) bool, or None.
        weight: (R,) in the accumulation dtype, or None.

    Returns:
        The losses (R,), and for the gradient each row's max x and 1 / sum exp(x - max): (R, 2).
    """
    loss, softmax = _empty_results(logits, label)
    _run("cross_entropy", logits, (label.shape[1],), (first, label, mask, weight, loss, softmax))
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
    """The gradient of `_cross_entropy` with respect to the logits: grad (R,) -> (R, n)."""
    out = logits.new_empty(logits.shape)
    operands = (first, label, mask, weight, softmax, grad, out)
    _run("cross_entropy_gradient", logits, (label.shape[1],), operands)
    return out


def _mean(logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j softmax(logits)_j points_j.

    Args:
        logits: (R, n).
        points: (n,), in the accumulation dtype.

    Returns:
        The means (R,), and for the gradient each row's max x and 1 / sum exp(x - max): (R, 2).
    """
    mean, softmax = _empty_results(logits, points)
    _run("mean", logits, (), (points, mean, softmax))
    return mean, softmax


def _mean_backward(grad: Tensor, logits: Tensor, points: Tensor, mean: Tensor, softmax: Tensor) -> Tensor:
    """The gradient of `_mean` with respect to the logits: grad (R,) -> (R, n)."""
    out = logits.new_empty(logits.shape)
    _run("mean_gradient", logits, (), (points, mean, softmax, grad, out))
    return out


def _empty_results(logits: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    return like.new_empty(len(logits)), like.new_empty((len(logits), 2))


def _fake_cross_entropy(logits: Tensor, first: Tensor, label: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(logits, label)


def _fake_backward(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


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
        fake=_fake_backward,
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
    fake=_empty_results,
    device="cpu",
)
expected_value.differentiate(
    Operator(
        "expected_value_backward",
        _mean_backward,
        "Tensor grad, Tensor logits, Tensor points, Tensor mean, Tensor softmax",
        "Tensor",
        fake=_fake_backward,
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
    index, label = _label_window(target.detach().to(accumulation_dtype(logits)), bins, sigma)
    shape, order = logits.shape[:-1], memory_order(logits)
    loss: Tensor
    loss, _ = windowed_cross_entropy(
        logits_to_rows(logits, order),
        to_rows(index[..., 0], shape, order),
        logits_to_rows(label.expand(*shape, -1), order),
        None if mask is None else to_rows(mask, shape, order),
        None if weight is None else to_rows(weight.detach().to(label.dtype), shape, order),
    )
    return from_rows(loss, shape, order)


def mean(logits: Tensor, bins: Bins) -> Tensor:
    """See `amago.kernels.two_hot_mean`."""
    order = memory_order(logits)
    points = bins.points(accumulation_dtype(logits), logits.device)
    result, _ = expected_value(logits_to_rows(logits, order), points)
    return bins.returns(from_rows(result, logits.shape[:-1], order))
