"""What the attention kernels in Triton share: tiles in memory, scores, dropout, and which blocks need a mask.

A block of scores that every query of it sees whole is computed without a mask, and one that nobody sees not at
all: what is left to compare are the few blocks that the diagonal, the window's edge, the sinks or the end cut
through. With D at 64 or less the arithmetic on scores costs as much as the products of matrices.

Shapes: M queries and N keys of a block, D head dimension, W the power of two that D fits in.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_and_head(blocks, heads):
    """Which of all heads of all rows a program has, numbered through; its row, and its head."""
    row_head = tl.program_id(0) // blocks
    return row_head, (row_head // heads).to(tl.int64), (row_head % heads).to(tl.int64)


@triton.jit
def stop_of(lengths, row, length):
    """Where the positions of a row end that count."""
    stop = length
    if lengths is not None:
        stop = tl.minimum(tl.load(lengths + row), length)
    return stop


@triton.jit
def tile(pointer, position, stride, feature, stride_feature, stop, BOUNDED: tl.constexpr, D: tl.constexpr,
         W: tl.constexpr, UNIT: tl.constexpr):  # fmt: skip
    """Positions (M,) of one row and head as (M, W), 0 from `stop` on; unless BOUNDED all lie before it."""
    at = pointer + position[:, None] * (stride * UNIT) + feature[None, :] * stride_feature
    if BOUNDED:
        return tl.load(at, (position < stop)[:, None] & (feature < D)[None, :], 0.0)
    if D < W:
        return tl.load(at, (feature < D)[None, :], 0.0)
    return tl.load(at)


@triton.jit
def bounded(
    products, j, sink, sink_bias, clip, scale, BIAS: tl.constexpr, CLIP: tl.constexpr
):  # fmt: skip
    """Scores for the base 2 of products with keys j, an axis of them; and whether clipping left them alone.

    Wherever a score is computed without bias and clip it is rounded as here: softmaxes span blocks of all kinds.
    """
    if not (BIAS or CLIP):
        return products * (scale * LOG2E), products == products
    scores = products * scale
    if BIAS:
        scores += tl.where(j < sink, sink_bias, 0.0)
    free = tl.full(scores.shape, 1, tl.int1)
    if CLIP:
        free = tl.abs(scores) <= clip
        scores = tl.minimum(tl.maximum(scores, -clip), clip)
    return scores * LOG2E, free


@triton.jit
def seen(i, j, stop, window, sink, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether queries i see keys j, each an axis of the block."""
    see = j < stop
    if CAUSAL:
        see = see & (j <= i)
    if WINDOW:
        see = see & ((tl.abs(i - j) <= window) | (j < sink))
    return see


@triton.jit
def kept(seed, row, i, j, dropout):
    """What dropout multiplies the weights of queries i and keys j by: 0 or 1 / (1 - dropout)."""
    zero = i * 0 + j * 0
    query, key, where = (zero + i).to(tl.uint32), (zero + j).to(tl.uint32), zero + row
    number, _, _, _ = tl.philox(tl.load(seed), query, key, where.to(tl.uint32), zero.to(tl.uint32))
    return tl.where(tl.uint_to_uniform_float(number) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def keys_seen(
    first, stop, window, sink, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The keys that the queries from `first` on see, in blocks of N.

    Blocks of sinks come before `start`, others from there on; those between `free` and `bound` every query sees
    whole. Returns blocks of sinks, `start`, `free`, `bound`, and how many blocks need a mask.
    """
    end = tl.where(first < stop, stop, 0)
    bound = end
    if CAUSAL:
        end = tl.minimum(end, first + M)
        bound = tl.minimum(end, first + 1)
    start, sinks, free = first * 0, first * 0, first * 0
    if WINDOW:
        end = tl.minimum(end, tl.maximum(first + M + window, tl.minimum(sink, end)))
        bound = tl.minimum(bound, first + window + 1)
        start = tl.maximum(first - window, 0) // N * N
        sinks = tl.where(end > 0, tl.cdiv(tl.minimum(sink, start), N), 0)
        free = tl.cdiv(tl.maximum(first + M - 1 - window, 0), N) * N
    last = start + tl.cdiv(tl.maximum(end - start, 0), N) * N
    free = tl.minimum(tl.maximum(free, start), last)
    bound = tl.minimum(tl.maximum(bound // N * N, free), last)
    return sinks, start, free, bound, sinks + (free - start + last - bound) // N


@triton.jit
def masked_keys(block, sinks, start, free, bound, N: tl.constexpr):
    """Where block number `block` of those that need a mask begins."""
    after = start + (block - sinks) * N
    after = tl.where(after < free, after, after - free + bound)
    return tl.where(block < sinks, block * N, after)


@triton.jit
def queries_seeing(
    first, stop, window, sink, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The queries that see keys from `first` on, in blocks of M: `start`, `free`, `bound`, blocks with a mask."""
    end = tl.where(first < stop, stop, 0)
    start, whole, bound = first * 0, first * 0, end
    if CAUSAL:
        start, whole = first, first + N - 1
    if WINDOW:
        near = first >= sink  # sinks are seen from everywhere
        start = tl.where(near, tl.maximum(start, tl.maximum(first - window, 0)), start)
        end = tl.where(near, tl.minimum(end, first + N + window), end)
        whole = tl.maximum(whole, first + N - 1 - window)
        bound = tl.where(near, tl.minimum(bound, first + window + 1), 0)
    last = start + tl.cdiv(tl.maximum(end - start, 0), M) * M
    free = tl.minimum(start + tl.cdiv(tl.maximum(whole - start, 0), M) * M, last)
    bound = start + tl.maximum(bound - start, 0) // M * M
    bound = tl.minimum(tl.maximum(bound, free), last)
    return start, free, bound, (free - start + last - bound) // M
