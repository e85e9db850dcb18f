"""The two-hot operations in C++ on the CPU: csrc/two_hot.cpp behind torch custom operators.

Labels arrive as the short windows that `fused` makes, for a target that several critics share once, so both
losses are one kernel. Tensors are read where they lie, by their strides.

Shapes: n bins, w bins of a window, other leading axes are free.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, TWO_HOT, operand
from amago.kernels.precision import accumulation_dtype, traced
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.fused import hl_gauss_window, two_hot_window


def unsupported(logits: Tensor, *_: object, **__: object) -> list[str]:
    """Why the call cannot run: logits elsewhere than on the CPU, or of another dtype."""
    reasons = []
    if logits.device.type != "cpu":
        reasons.append(f"the logits are on {logits.device}, not on the CPU")
    if logits.dtype not in DTYPES:
        reasons.append(f"the logits are {logits.dtype}, not one of {', '.join(DTYPES.values())}")
    return reasons


def _sizes(logits: Tensor) -> tuple[list[int], int]:
    """The leading axes, and n."""
    *rows, n = logits.shape
    return rows, n


def _windowed_cross_entropy(
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
    rows, n = _sizes(logits)
    loss = torch.empty(rows, dtype=label.dtype)
    softmax = torch.empty((*rows, 2), dtype=label.dtype)
    TWO_HOT.load().cross_entropy(
        DTYPES[logits.dtype],
        rows,
        n,
        label.shape[-1],
        *map(operand, (logits, first, label, mask, weight, loss, softmax)),
        torch.get_num_threads(),
    )
    return loss, softmax


windowed_cross_entropy = torch.library.custom_op(
    "amago_kernels::windowed_cross_entropy", _windowed_cross_entropy, mutates_args=(), device_types="cpu"
)


@windowed_cross_entropy.register_fake
def _(
    logits: Tensor, first: Tensor, label: Tensor, mask: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    return label.new_empty(logits.shape[:-1]), label.new_empty((*logits.shape[:-1], 2))


@torch.library.custom_op(
    "amago_kernels::windowed_cross_entropy_backward", mutates_args=(), device_types="cpu"
)
def windowed_cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    first: Tensor,
    label: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    softmax: Tensor,
) -> Tensor:
    """The gradient of `windowed_cross_entropy` with respect to the logits: grad (...) -> (..., n)."""
    rows, n = _sizes(logits)
    out = torch.empty_like(logits)
    TWO_HOT.load().cross_entropy_gradient(
        DTYPES[logits.dtype],
        rows,
        n,
        label.shape[-1],
        *map(operand, (logits, first, label, mask, weight, softmax, grad, out)),
        torch.get_num_threads(),
    )
    return out


@windowed_cross_entropy_backward.register_fake
def _(
    grad: Tensor,
    logits: Tensor,
    first: Tensor,
    label: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    softmax: Tensor,
) -> Tensor:
    return torch.empty_like(logits)


def _save_for_cross_entropy(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _cross_entropy_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return windowed_cross_entropy_backward(grad, *ctx.saved_tensors), None, None, None, None


windowed_cross_entropy.register_autograd(_cross_entropy_backward, setup_context=_save_for_cross_entropy)


def _expected_value(logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j softmax(logits)_j points_j.

    Args:
        logits: (..., n).
        points: (n,) contiguous, in the accumulation dtype.

    Returns:
        The means (...), and for the gradient each row's max x and 1 / sum exp(x - max): (..., 2).
    """
    rows, n = _sizes(logits)
    mean = points.new_empty(rows)
    softmax = points.new_empty((*rows, 2))
    TWO_HOT.load().mean(
        DTYPES[logits.dtype],
        rows,
        n,
        *map(operand, (logits, points, mean, softmax)),
        torch.get_num_threads(),
    )
    return mean, softmax


expected_value = torch.library.custom_op(
    "amago_kernels::expected_value", _expected_value, mutates_args=(), device_types="cpu"
)


@expected_value.register_fake
def _(logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    return points.new_empty(logits.shape[:-1]), points.new_empty((*logits.shape[:-1], 2))


@torch.library.custom_op("amago_kernels::expected_value_backward", mutates_args=(), device_types="cpu")
def expected_value_backward(
    grad: Tensor, logits: Tensor, points: Tensor, mean: Tensor, softmax: Tensor
) -> Tensor:
    """The gradient of `expected_value` with respect to the logits: grad (...) -> (..., n)."""
    rows, n = _sizes(logits)
    out = torch.empty_like(logits)
    TWO_HOT.load().mean_gradient(
        DTYPES[logits.dtype],
        rows,
        n,
        *map(operand, (logits, points, mean, softmax, grad, out)),
        torch.get_num_threads(),
    )
    return out


@expected_value_backward.register_fake
def _(grad: Tensor, logits: Tensor, points: Tensor, mean: Tensor, softmax: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _save_for_mean(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])


def _mean_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return expected_value_backward(grad, *ctx.saved_tensors), None


expected_value.register_autograd(_mean_backward, setup_context=_save_for_mean)


def _cross_entropy(
    logits: Tensor, window: tuple[Tensor, Tensor], mask: Tensor | None, weight: Tensor | None
) -> Tensor:
    """The loss against labels in windows: index and label (..., w), broadcast over the rows of the logits."""
    index, label = window
    rows = logits.shape[:-1]
    run = windowed_cross_entropy if traced(logits) else _windowed_cross_entropy
    loss, _ = run(
        logits,
        index[..., 0].expand(rows),
        label.expand(*rows, -1),
        None if mask is None else mask.expand(rows),
        None if weight is None else weight.detach().to(label.dtype).expand(rows),
    )
    return loss


def two_hot_cross_entropy(
    logits: Tensor, target: Tensor, bins: Bins, *, mask: Tensor | None, weight: Tensor | None
) -> Tensor:
    """See `amago.kernels.two_hot_cross_entropy`."""
    window = two_hot_window(target.detach().to(accumulation_dtype(logits)), bins)
    return _cross_entropy(logits, window, mask, weight)


def hl_gauss_cross_entropy(
    logits: Tensor, target: Tensor, bins: Bins, *, mask: Tensor | None, weight: Tensor | None, sigma: float
) -> Tensor:
    """See `amago.kernels.hl_gauss_cross_entropy`."""
    window = hl_gauss_window(target.detach().to(accumulation_dtype(logits)), bins, sigma)
    return _cross_entropy(logits, window, mask, weight)


def two_hot_mean(logits: Tensor, bins: Bins) -> Tensor:
    """See `amago.kernels.two_hot_mean`."""
    run = expected_value if traced(logits) else _expected_value
    mean, _ = run(logits, bins.points(accumulation_dtype(logits), logits.device))
    return bins.returns(mean)
