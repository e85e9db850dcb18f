"""The two-hot operations in Triton: each reads the logits once, and the gradients are written once.

A row of bins lies in registers, so the softmax needs no second pass, and the backward pass recomputes it from the
logits that it has to read anyway: only the inputs are saved. Labels are computed where they are used, from the
scalar target. In half precision a pass over logits is limited by arithmetic as much as by memory: see
`rows_of_program`.

Rows are numbered through up to three axes (see `gpu.RowAxes`), by which every tensor has strides of its own.

Shapes: R rows of a tile, N bins, W the smallest power of two not below N.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from amago.kernels.triton_numbers import expm1, log1p
from amago.kernels.triton_runtime import on_device_of
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.gpu import Operands, RowAxes

_THREADS = 128
_TILE = 16384  # numbers: 128 for each thread
_SMALL_TILE = 4096  # where float32 gradients or labels of many bins need registers beside the logits
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def place(row, size1, size2, stride0, stride1, stride2, AXES: tl.constexpr):
    """Offsets of rows (R) of one tensor; with fewer axes the outer ones are absent."""
    if AXES == 1:
        return row.to(tl.int64) * stride2
    outer = row // size2
    inner = (row % size2).to(tl.int64) * stride2
    if AXES == 2:
        return inner + outer.to(tl.int64) * stride1
    return inner + (outer % size1).to(tl.int64) * stride1 + (outer // size1).to(tl.int64) * stride0


@triton.jit
def rows_of(row, rows, mask, size1, size2, mask0, mask1, mask2, AXES: tl.constexpr):
    """Which rows (R) exist, and which of them are not masked."""
    inside = row < rows
    live = inside
    if mask is not None:
        kept = tl.load(mask + place(row, size1, size2, mask0, mask1, mask2, AXES), inside, 0)
        live = live & kept.to(tl.int1)
    return inside, live


@triton.jit
def logits_of(logits, begin, bins, logits_bin, live, N: tl.constexpr, W: tl.constexpr):
    """Rows (R, W) of logits as float32; -inf beyond the last bin and where a row is not live."""
    at = logits + begin[:, None] + bins.to(tl.int64)[None, :] * logits_bin
    there = live[:, None]
    if N < W:
        there = there & (bins < N)[None, :]
    return tl.load(at, there, -float("inf")).to(tl.float32)


@triton.jit
def store(out, begin, bins, out_bin, inside, x, N: tl.constexpr, W: tl.constexpr):
    """Writes rows (R, W) of gradients."""
    at = out + begin[:, None] + bins.to(tl.int64)[None, :] * out_bin
    there = inside[:, None]
    if N < W:
        there = there & (bins < N)[None, :]
    tl.store(at, x.to(out.dtype.element_ty), there)


@triton.jit
def softmax(x, live):
    """exp(x - max) (R, W), its sums (R) and the maxima (R) of rows (R, W), finite where a row is not live."""
    top = tl.where(live, tl.max(x, axis=1), 0.0)
    e = tl.exp2((x - top[:, None]) * _LOG2E)
    return e, tl.where(live, tl.sum(e, axis=1), 1.0), top


@triton.jit
def position_of(target, low, high, start, per_width, N: tl.constexpr, SYMLOG: tl.constexpr):
    """`Bins.position` of targets (R). Comparisons, not minima: NaN must stay NaN."""
    x = tl.where(target < low, low, target)
    x = tl.where(x > high, high, x)
    if SYMLOG:
        size = log1p(tl.abs(x))
        x = tl.where(x < 0.0, -size, size)
    position = (x - start) * per_width
    position = tl.where(position < 0.0, 0.0, position)
    return tl.where(position > N - 1.0, N - 1.0, position)


@triton.jit
def gauss(position, bins, sharpness, N: tl.constexpr):
    """Labels (R, W) of a normal distribution around positions (R); 0 beyond the last bin."""
    away = bins.to(tl.float32)[None, :] - position[:, None]
    between = tl.erf((away + 0.5) * sharpness) - tl.erf((away - 0.5) * sharpness)
    total = tl.erf((N - 0.5 - position) * sharpness) - tl.erf((-0.5 - position) * sharpness)
    return tl.where(bins[None, :] < N, between / total[:, None], 0.0)


@triton.jit
def likely_of(logits, begin, logits_bin, live, top, position, N: tl.constexpr):
    """sum_j label_j (x_j - top) (R) of two-hot labels; the two logits are read again, from the L1 cache."""
    low = tl.where(position == position, position, 0.0).to(tl.int32)
    share = position - low.to(tl.float32)
    at = logits + begin + low.to(tl.int64) * logits_bin
    lower = tl.load(at, live, 0.0).to(tl.float32) - top
    upper = tl.load(at + logits_bin, live & (low < N - 1), 0.0).to(tl.float32) - top
    return (1.0 - share) * lower + tl.where(share == 0.0, 0.0, share * upper)


def rows_of_program(width: int, crowded: bool) -> int:
    """R: one row per thread, or as many as fit in the registers.

    With one row per thread Triton computes targets, masks and weights once per row; with fewer, once in each of
    the 16 or 32 threads that share a row, and that arithmetic takes longer than the memory access.

    Args:
        width: W.
        crowded: whether the registers hold more than logits.
    """
    tile = _SMALL_TILE if crowded or width < _THREADS else _TILE
    return max(1, tile // width)


def launch(
    kernel: Any,
    axes: RowAxes,
    operands: Operands,
    numbers: Sequence[float],
    n: int,
    *,
    writes: bool = False,
    **constants: bool,
) -> None:
    """Runs a kernel over all rows: operands, sizes of the axes, strides, further numbers.

    Args:
        kernel: the kernel.
        axes: of the operands.
        operands: the first are the logits.
        numbers: arguments of the kernel after the strides.
        n: N.
        writes: whether the last operand has rows as long as the logits'.
        constants: further ones of the kernel.
    """
    logits, result = operands[0], operands[-1]
    assert logits is not None
    assert result is not None
    of_logits, *of_others = axes.strides
    strides = [*of_logits, logits.stride(-1), *(s for one in of_others for s in one)]
    if writes:
        strides.append(result.stride(-1))
    width = triton.next_power_of_2(n)
    size = rows_of_program(width, (writes and logits.element_size() == 4) or constants.get("GAUSS", False))
    whole = axes.evenly_spaced(0) and (not writes or axes.evenly_spaced(len(operands) - 1))
    with on_device_of(logits):
        kernel[(triton.cdiv(axes.rows, size),)](
            *operands, axes.rows, *axes.sizes[1:], *strides, *numbers,
            N=n, W=width, R=size, AXES=axes.count, LOGITS_AXES=1 if whole else axes.count,
            num_warps=_THREADS // 32, **constants,
        )  # fmt: skip


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
        scale = tl.where(position == position, scale, position)  # tl.maximum drops a NaN
    result = (e * (1.0 / total)[:, None] - label) * scale[
        :, None
    ]  # where a row is not live, e and scale are 0
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
    """The loss kernels' arguments for the bins and the kind of label."""
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
