"""What the two-hot kernels in Triton share: rows in memory, their softmax, labels, and how a kernel is started.

Rows are numbered through up to three axes (see `rows`), by which every tensor has strides of its own.

Shapes: R rows of a tile, N bins, W the power of two that N fits in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from amago.kernels.triton_numbers import log1p
from amago.kernels.triton_runtime import on_device_of
from amago.kernels.two_hot.rows import Operands, RowAxes

_THREADS = 128
_TILE = 16384  # numbers: 128 for each thread
_SMALL_TILE = 4096  # where float32 gradients or labels of many bins need registers beside the logits
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def place(row, size1, size2, stride0, stride1, stride2, AXES: tl.constexpr):
    """Where rows (R) of one tensor begin; with fewer axes the outer ones are absent."""
    if AXES == 1:
        return row.to(tl.int64) * stride2
    outer = row // size2
    inner = (row % size2).to(tl.int64) * stride2
    if AXES == 2:
        return inner + outer.to(tl.int64) * stride1
    return inner + (outer % size1).to(tl.int64) * stride1 + (outer // size1).to(tl.int64) * stride0


@triton.jit
def rows_of(row, rows, mask, size1, size2, mask0, mask1, mask2, AXES: tl.constexpr):
    """Which rows (R) there are, and which of them the mask leaves."""
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
    """`Bins.position` of targets (R). Comparisons, not minima: a NaN has to stay one."""
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
    """sum_j label_j (x_j - top) (R) of two-hot labels: the two logits are read again, from the nearest cache."""
    low = tl.where(position == position, position, 0.0).to(tl.int32)
    share = position - low.to(tl.float32)
    at = logits + begin + low.to(tl.int64) * logits_bin
    lower = tl.load(at, live, 0.0).to(tl.float32) - top
    upper = tl.load(at + logits_bin, live & (low < N - 1), 0.0).to(tl.float32) - top
    return (1.0 - share) * lower + tl.where(share == 0.0, 0.0, share * upper)


def rows_of_program(width: int, crowded: bool) -> int:
    """R: as many rows as there are threads, or as fit in their registers.

    With so many Triton finds targets, masks and weights once per row; with fewer, once in each of the 16 or 32
    threads that share a row, and that arithmetic then takes longer than the memory does.

    Args:
        width: W.
        crowded: whether there is more in the registers than logits.
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
        numbers: what the kernel takes behind the strides.
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
