"""The two-hot operations in Triton: each reads the logits once, and the gradients are written once.

A row of bins lies in registers, so the softmax needs no second pass, and the backward pass recomputes it from the
logits that it has to read anyway: only the inputs are saved. Labels are computed where they are used, from the
scalar target. In half precision a pass over logits is limited by arithmetic as much as by memory: see
`rows_of_program`.

Tensors are contiguous: logits and their gradients (rows, N), all others (rows,).

Shapes: R rows of a tile, N bins, W the smallest power of two not below N.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.triton_numbers import expm1, log1p
from amago.kernels.triton_runtime import on_device_of
from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.gpu import LabelBins, Operands

_THREADS = 128
_TILE = 16384  # numbers: 128 for each thread
_SMALL_TILE = 4096  # where float32 gradients or labels of many bins need registers beside the logits
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows_of(rows, mask, R: tl.constexpr):
    """The rows (R) of a program, which of them exist, and which of those are not masked."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inside = row < rows
    live = inside
    if mask is not None:
        live = live & tl.load(mask + row, inside, 0).to(tl.int1)
    return row, inside, live


@triton.jit
def logits_of(logits, row, bins, live, N: tl.constexpr, W: tl.constexpr):
    """Rows (R, W) of logits as float32; -inf beyond the last bin and where a row is not live."""
    there = live[:, None]
    if N < W:
        there = there & (bins < N)[None, :]
    return tl.load(logits + row[:, None] * N + bins[None, :], there, -float("inf")).to(tl.float32)


@triton.jit
def store(out, row, bins, inside, x, N: tl.constexpr, W: tl.constexpr):
    """Writes rows (R, W) of gradients."""
    there = inside[:, None]
    if N < W:
        there = there & (bins < N)[None, :]
    tl.store(out + row[:, None] * N + bins[None, :], x.to(out.dtype.element_ty), there)


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
def likely_of(logits, row, live, top, position, N: tl.constexpr):
    """sum_j label_j (x_j - top) (R) of two-hot labels; the two logits are read again, from the L1 cache."""
    low = tl.where(position == position, position, 0.0).to(tl.int32)
    share = position - low.to(tl.float32)
    at = logits + row * N + low
    lower = tl.load(at, live, 0.0).to(tl.float32) - top
    upper = tl.load(at + 1, live & (low < N - 1), 0.0).to(tl.float32) - top
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


def launch(kernel: Any, inputs: Operands, out: Tensor, n: int, *numbers: float, **constants: bool) -> None:
    """Runs a kernel over all rows: inputs, of which the first are the logits, output, rows, further numbers."""
    logits = inputs[0]
    assert logits is not None
    width = triton.next_power_of_2(n)
    wide_gradient = out.dim() == 2 and logits.element_size() == 4
    size = rows_of_program(width, wide_gradient or constants.get("GAUSS", False))
    with on_device_of(logits):
        kernel[(triton.cdiv(len(logits), size),)](
            *inputs, out, len(logits), *numbers, N=n, W=width, R=size, num_warps=_THREADS // 32, **constants
        )


@triton.jit
def _cross_entropy(
    logits, target, mask, weight, loss, rows, low, high, start, per_width, sharpness,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr, SYMLOG: tl.constexpr, GAUSS: tl.constexpr,
):  # fmt: skip
    """loss = weight * (log sum_j exp x_j - sum_j label_j x_j); 0 where the mask is false."""
    row, inside, live = rows_of(rows, mask, R)
    bins = tl.arange(0, W)
    x = logits_of(logits, row, bins, live, N, W)
    goal = tl.load(target + row, live, 0.0)
    position = position_of(goal, low, high, start, per_width, N, SYMLOG)
    _, total, top = softmax(x, live)
    if GAUSS:
        label = gauss(position, bins, sharpness, N)
        likely = tl.sum(tl.where(label == 0.0, 0.0, label * (x - top[:, None])), axis=1)
    else:
        likely = likely_of(logits, row, live, top, position, N)
    result = tl.log(total) - likely
    if weight is not None:
        result *= tl.load(weight + row, live, 0.0)
    tl.store(loss + row, tl.where(live, result, 0.0), inside)


@triton.jit
def _cross_entropy_backward(
    logits, target, mask, weight, grad, out, rows, low, high, start, per_width, sharpness,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr, SYMLOG: tl.constexpr, GAUSS: tl.constexpr,
):  # fmt: skip
    """d loss / d x_j = weight * (softmax_j - label_j), times the gradient of the loss; 0 where masked."""
    row, inside, live = rows_of(rows, mask, R)
    bins = tl.arange(0, W)
    x = logits_of(logits, row, bins, live, N, W)
    goal = tl.load(target + row, live, 0.0)
    scale = tl.load(grad + row, live, 0.0)
    if weight is not None:
        scale *= tl.load(weight + row, live, 0.0)
    position = position_of(goal, low, high, start, per_width, N, SYMLOG)
    e, total, _ = softmax(x, live)
    if GAUSS:
        label = gauss(position, bins, sharpness, N)
    else:
        label = tl.maximum(1.0 - tl.abs(bins.to(tl.float32)[None, :] - position[:, None]), 0.0)
        scale = tl.where(position == position, scale, position)  # tl.maximum drops a NaN
    share = (e * (1.0 / total)[:, None] - label) * scale[
        :, None
    ]  # where a row is not live, e and scale are 0
    store(out, row, bins, inside, share, N, W)


@triton.jit
def _mean(
    logits, value, rows, start, width,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr, SYMLOG: tl.constexpr,
):  # fmt: skip
    """The expected support point, as a return."""
    row, inside, _ = rows_of(rows, None, R)
    bins = tl.arange(0, W)
    x = logits_of(logits, row, bins, inside, N, W)
    e, total, _ = softmax(x, inside)
    point = start + width * bins.to(tl.float32)
    result = tl.sum(e * point[None, :], axis=1) / total
    if SYMLOG:
        size = expm1(tl.abs(result))
        result = tl.where(result < 0.0, -size, size)
    tl.store(value + row, result, inside)


@triton.jit
def _mean_backward(
    logits, grad, out, rows, start, width,
    N: tl.constexpr, W: tl.constexpr, R: tl.constexpr, SYMLOG: tl.constexpr,
):  # fmt: skip
    """d mean / d x_j = softmax_j (point_j - mean), times exp |mean| where the bins are in symlog."""
    row, inside, _ = rows_of(rows, None, R)
    bins = tl.arange(0, W)
    x = logits_of(logits, row, bins, inside, N, W)
    scale = tl.load(grad + row, inside, 0.0)
    e, total, _ = softmax(x, inside)
    point = start + width * bins.to(tl.float32)
    mean = tl.sum(e * point[None, :], axis=1) / total
    if SYMLOG:
        scale *= tl.exp(tl.abs(mean))
    result = e * (scale / total)[:, None] * (point[None, :] - mean[:, None])
    store(out, row, bins, inside, result, N, W)


def _loss(kernel: Any, inputs: Operands, out: Tensor, bins: LabelBins) -> None:
    """Runs a kernel of the loss."""
    numbers = (bins.low, bins.high, bins.start, 1.0 / bins.width, bins.sharpness)
    launch(kernel, inputs, out, bins.n, *numbers, SYMLOG=bins.symlog, GAUSS=bins.sharpness > 0.0)


def cross_entropy(inputs: Operands, loss: Tensor, bins: LabelBins) -> None:
    """Fills `loss` (rows,), given logits, target, mask and weight; all but the logits and the mask float32."""
    _loss(_cross_entropy, inputs, loss, bins)


def cross_entropy_backward(inputs: Operands, out: Tensor, bins: LabelBins) -> None:
    """Fills `out` (rows, N), given logits, target, mask, weight and the gradient of the loss."""
    _loss(_cross_entropy_backward, inputs, out, bins)


def mean(inputs: Operands, value: Tensor, bins: Bins) -> None:
    """Fills `value` (rows,), given logits."""
    launch(_mean, inputs, value, bins.n, bins.start, bins.width, SYMLOG=bins.symlog)


def mean_backward(inputs: Operands, out: Tensor, bins: Bins) -> None:
    """Fills `out` (rows, N), given logits and the gradient of the expected returns."""
    launch(_mean_backward, inputs, out, bins.n, bins.start, bins.width, SYMLOG=bins.symlog)
