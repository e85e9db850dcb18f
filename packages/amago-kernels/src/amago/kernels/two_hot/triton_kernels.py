"""The two-hot operations in Triton: each reads the logits once, and the gradients are written once.

A row of bins lies in registers whole, so the softmax needs no second look at it, and the backward pass finds it
again from the logits that it has to read anyway: nothing is kept but the inputs. Labels are computed where they
are used, from the scalar target. What limits a pass over logits in half precision is the arithmetic as much as the
memory, so there is little of it: see `triton_blocks.rows_of_program`.

What the kernels share is in `triton_blocks`: how rows are found and read, their softmax, the labels.

Shapes: R rows of a tile, N bins, W the power of two that N fits in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from amago.kernels.triton_numbers import expm1
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.rows import Operands, RowAxes
from amago.kernels.two_hot.triton_blocks import (
    gauss,
    launch,
    likely_of,
    logits_of,
    place,
    position_of,
    rows_of,
    softmax,
    store,
)


@triton.jit
def _cross_entropy(
    logits, target, mask, weight, loss,
    rows, size1, size2,
    logits0, logits1, logits2, logits_bin,
    target0, target1, target2,
    mask0, mask1, mask2,
    weight0, weight1, weight2,
    loss0, loss1, loss2,
    low, high, start, per_width, sharpness,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    AXES: tl.constexpr, LOGITS_AXES: tl.constexpr, SYMLOG: tl.constexpr, GAUSS: tl.constexpr,
):  # fmt: skip
    """loss = weight * (log sum_j exp x_j - sum_j label_j x_j); 0 where the mask is false."""
    row, bins = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside, live = rows_of(row, rows, mask, size1, size2, mask0, mask1, mask2, AXES)
    at = place(row, size1, size2, logits0, logits1, logits2, LOGITS_AXES)
    x = logits_of(logits, at, bins, logits_bin, live, N, W)
    goal = tl.load(target + place(row, size1, size2, target0, target1, target2, AXES), live, 0.0)
    position = position_of(goal.to(tl.float32), low, high, start, per_width, N, SYMLOG)
    _, total, top = softmax(x, live)
    if GAUSS:
        label = gauss(position, bins, sharpness, N)
        likely = tl.sum(tl.where(label == 0.0, 0.0, label * (x - top[:, None])), axis=1)
    else:
        likely = likely_of(logits, at, logits_bin, live, top, position, N)
    result = tl.log(total) - likely
    if weight is not None:
        weigh = tl.load(weight + place(row, size1, size2, weight0, weight1, weight2, AXES), live, 0.0)
        result *= weigh.to(tl.float32)
    at = place(row, size1, size2, loss0, loss1, loss2, AXES)
    tl.store(loss + at, tl.where(live, result, 0.0), inside)


@triton.jit
def _cross_entropy_backward(
    logits, target, mask, weight, grad, out,
    rows, size1, size2,
    logits0, logits1, logits2, logits_bin,
    target0, target1, target2,
    mask0, mask1, mask2,
    weight0, weight1, weight2,
    grad0, grad1, grad2,
    out0, out1, out2, out_bin,
    low, high, start, per_width, sharpness,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    AXES: tl.constexpr, LOGITS_AXES: tl.constexpr, SYMLOG: tl.constexpr, GAUSS: tl.constexpr,
):  # fmt: skip
    """d loss / d x_j = weight * (softmax_j - label_j), times the gradient of the loss; 0 where masked."""
    row, bins = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside, live = rows_of(row, rows, mask, size1, size2, mask0, mask1, mask2, AXES)
    at = place(row, size1, size2, logits0, logits1, logits2, LOGITS_AXES)
    x = logits_of(logits, at, bins, logits_bin, live, N, W)
    goal = tl.load(target + place(row, size1, size2, target0, target1, target2, AXES), live, 0.0)
    scale = tl.load(grad + place(row, size1, size2, grad0, grad1, grad2, AXES), live, 0.0).to(tl.float32)
    if weight is not None:
        weigh = tl.load(weight + place(row, size1, size2, weight0, weight1, weight2, AXES), live, 0.0)
        scale *= weigh.to(tl.float32)
    position = position_of(goal.to(tl.float32), low, high, start, per_width, N, SYMLOG)
    e, total, _ = softmax(x, live)
    if GAUSS:
        label = gauss(position, bins, sharpness, N)
    else:
        label = tl.maximum(1.0 - tl.abs(bins.to(tl.float32)[None, :] - position[:, None]), 0.0)
        scale = tl.where(position == position, scale, position)  # the maximum drops a NaN
    result = (e * (1.0 / total)[:, None] - label) * scale[:, None]  # of what is not live e and scale are 0
    at = place(row, size1, size2, out0, out1, out2, LOGITS_AXES)
    store(out, at, bins, out_bin, inside, result, N, W)


@triton.jit
def _mean(
    logits, value,
    rows, size1, size2,
    logits0, logits1, logits2, logits_bin,
    value0, value1, value2,
    start, width,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    AXES: tl.constexpr, LOGITS_AXES: tl.constexpr, SYMLOG: tl.constexpr,
):  # fmt: skip
    """The expected support point, as a return."""
    row, bins = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = row < rows
    at = place(row, size1, size2, logits0, logits1, logits2, LOGITS_AXES)
    x = logits_of(logits, at, bins, logits_bin, inside, N, W)
    e, total, _ = softmax(x, inside)
    point = start + width * bins.to(tl.float32)
    result = tl.sum(e * point[None, :], axis=1) / total
    if SYMLOG:
        size = expm1(tl.abs(result))
        result = tl.where(result < 0.0, -size, size)
    tl.store(value + place(row, size1, size2, value0, value1, value2, AXES), result, inside)


@triton.jit
def _mean_backward(
    logits, grad, out,
    rows, size1, size2,
    logits0, logits1, logits2, logits_bin,
    grad0, grad1, grad2,
    out0, out1, out2, out_bin,
    start, width,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    AXES: tl.constexpr, LOGITS_AXES: tl.constexpr, SYMLOG: tl.constexpr,
):  # fmt: skip
    """d mean / d x_j = softmax_j (point_j - mean), times exp |mean| where the bins are in symlog."""
    row, bins = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = row < rows
    at = place(row, size1, size2, logits0, logits1, logits2, LOGITS_AXES)
    x = logits_of(logits, at, bins, logits_bin, inside, N, W)
    scale = tl.load(grad + place(row, size1, size2, grad0, grad1, grad2, AXES), inside, 0.0).to(tl.float32)
    e, total, _ = softmax(x, inside)
    point = start + width * bins.to(tl.float32)
    mean = tl.sum(e * point[None, :], axis=1) / total
    if SYMLOG:
        scale *= tl.exp(tl.abs(mean))
    result = e * (scale / total)[:, None] * (point[None, :] - mean[:, None])
    at = place(row, size1, size2, out0, out1, out2, LOGITS_AXES)
    store(out, at, bins, out_bin, inside, result, N, W)


def _support(bins: Bins, sharpness: float) -> tuple[float, ...]:
    """What the kernels of the losses are told of the bins, and of a normal distribution's labels."""
    return (bins.low, bins.high, bins.start, 1.0 / bins.width, sharpness)


def cross_entropy(axes: RowAxes, operands: Operands, bins: Bins, sharpness: float) -> None:
    """Fills the last of the operands: logits, target, mask, weight and loss. Sharpness 0 means two-hot."""
    kinds = {"SYMLOG": bins.symlog, "GAUSS": sharpness > 0.0}
    launch(_cross_entropy, axes, operands, _support(bins, sharpness), bins.n, **kinds)


def cross_entropy_backward(axes: RowAxes, operands: Operands, bins: Bins, sharpness: float) -> None:
    """Fills the last of the operands: logits, target, mask, weight, the loss's gradient, and the logits'."""
    kinds = {"SYMLOG": bins.symlog, "GAUSS": sharpness > 0.0}
    support = _support(bins, sharpness)
    launch(_cross_entropy_backward, axes, operands, support, bins.n, writes=True, **kinds)


def mean(axes: RowAxes, operands: Operands, bins: Bins) -> None:
    """Fills the last of the operands: logits and expected returns."""
    launch(_mean, axes, operands, (bins.start, bins.width), bins.n, SYMLOG=bins.symlog)


def mean_backward(axes: RowAxes, operands: Operands, bins: Bins) -> None:
    """Fills the last of the operands: logits, the gradient of the returns, and that of the logits."""
    numbers = (bins.start, bins.width)
    launch(_mean_backward, axes, operands, numbers, bins.n, writes=True, SYMLOG=bins.symlog)
