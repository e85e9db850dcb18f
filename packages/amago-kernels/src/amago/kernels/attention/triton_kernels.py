"""Attention in Triton, forward: a program loops over the keys of a block of queries, softmax in registers.

The forward pass keeps the running maximum and the sum of exponentials per query, and saves the log-sum-exp for
the backward pass in `triton_backward` (FlashAttention-2, Dao 2023). Dropout of a weight is a function of the seed,
row, head, query and key.

A block of scores that is fully visible is computed without a mask, and one that is fully hidden not at all: only
blocks cut by the diagonal, the window's edge, the sinks or the end of a row compare positions. With D at 64 or
less the arithmetic on scores costs as much as the matrix products.

Shapes: B rows, L positions, H heads, D head dimension, W the smallest power of two not below D, M queries and N
keys of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.attention.options import AttentionOptions
from amago.kernels.triton_runtime import on_device_of

_SMALLEST_DOT = 16  # rows and columns of Triton's smallest matrix product
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_and_head(blocks, heads):
    """The index of a program's head among the heads of all rows, its row, and its head within the row."""
    row_head = tl.program_id(0) // blocks
    return row_head, (row_head // heads).to(tl.int64), (row_head % heads).to(tl.int64)


@triton.jit
def stop_of(lengths, row, length):
    """The length of a row without padding."""
    stop = length
    if lengths is not None:
        stop = tl.minimum(tl.load(lengths + row), length)
    return stop


@triton.jit
def tile(pointer, position, stride, feature, stride_feature, stop, BOUNDED: tl.constexpr, D: tl.constexpr,
         W: tl.constexpr):  # fmt: skip
    """Positions (M,) of one row and head as (M, W), 0 from `stop` on; unless BOUNDED all lie before it."""
    at = pointer + position[:, None] * stride + feature[None, :] * stride_feature
    if BOUNDED:
        return tl.load(at, (position < stop)[:, None] & (feature < D)[None, :], 0.0)
    if D < W:
        return tl.load(at, (feature < D)[None, :], 0.0)
    return tl.load(at)


@triton.jit
def bounded(
    products, j, sink, sink_bias, clip, scale, BIAS: tl.constexpr, CLIP: tl.constexpr
):  # fmt: skip
    """Base-2 scores of products with keys j, and whether clipping left them unchanged.

    Scores without bias and clip are rounded as here everywhere, for a softmax spans blocks of all kinds.
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
    """Whether queries i attend to keys j, each an axis of the block."""
    see = j < stop
    if CAUSAL:
        see = see & (j <= i)
    if WINDOW:
        see = see & ((tl.abs(i - j) <= window) | (j < sink))
    return see


@triton.jit
def kept(seed, row, i, j, dropout):
    """Dropout factors of queries i and keys j: 0 or 1 / (1 - dropout)."""
    zero = i * 0 + j * 0
    query, key, where = (zero + i).to(tl.uint32), (zero + j).to(tl.uint32), zero + row
    number, _, _, _ = tl.philox(tl.load(seed), query, key, where.to(tl.uint32), zero.to(tl.uint32))
    return tl.where(tl.uint_to_uniform_float(number) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def keys_seen(
    first, stop, window, sink, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The visible keys of a block of queries that begins at `first`, in blocks of N.

    Blocks of sinks come before `start`, others from there on; those between `free` and `bound` are fully visible.
    Returns the number of blocks of sinks, `start`, `free`, `bound`, and the number of blocks that need a mask.
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
    """Start of the `block`-th block that needs a mask."""
    after = start + (block - sinks) * N
    after = tl.where(after < free, after, after - free + bound)
    return tl.where(block < sinks, block * N, after)


@triton.jit
def queries_seeing(
    first, stop, window, sink, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The queries that attend to a block of keys from `first`, in blocks of M: as `keys_seen`, without sinks."""
    end = tl.where(first < stop, stop, 0)
    start, whole, bound = first * 0, first * 0, end
    if CAUSAL:
        start, whole = first, first + N - 1
    if WINDOW:
        near = first >= sink  # sinks are visible to all queries
        start = tl.where(near, tl.maximum(start, tl.maximum(first - window, 0)), start)
        end = tl.where(near, tl.minimum(end, first + N + window), end)
        whole = tl.maximum(whole, first + N - 1 - window)
        bound = tl.where(near, tl.minimum(bound, first + window + 1), 0)
    last = start + tl.cdiv(tl.maximum(end - start, 0), M) * M
    free = tl.minimum(start + tl.cdiv(tl.maximum(whole - start, 0), M) * M, last)
    bound = start + tl.maximum(bound - start, 0) // M * M
    bound = tl.minimum(tl.maximum(bound, free), last)
    return start, free, bound, (free - start + last - bound) // M


@triton.jit
def _attend(
    query, largest, total, mixed, k, v, seed, row_head, i, j, stop, window, sink, sink_bias, clip, scale, dropout,
    k1, k3, v1, v3,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Adds keys j to the softmax of queries i: maximum, sum of exponentials, and weighted values (M, W)."""
    feature = tl.arange(0, W)
    key = tile(k, j, k1, feature, k3, stop, MASKED, D, W)
    value = tile(v, j, v1, feature, v3, stop, MASKED, D, W)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    before = largest
    if MASKED or BIAS or CLIP:
        scores, _ = bounded(scores, j[None, :], sink, sink_bias, clip, scale, BIAS, CLIP)
        if MASKED:
            see = seen(i[:, None], j[None, :], stop, window, sink, CAUSAL, WINDOW)
            scores = tl.where(see, scores, float("-inf"))
        largest = tl.maximum(largest, tl.max(scores, axis=1))
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        weights, old = tl.exp2(scores - shift[:, None]), tl.exp2(before - shift)
    else:  # saves a product and a sum per score
        largest = tl.maximum(largest, tl.max(scores, axis=1) * (scale * LOG2E))
        weights, old = tl.exp2(scores * (scale * LOG2E) - largest[:, None]), tl.exp2(before - largest)
    total = total * old + tl.sum(weights, axis=1)
    if seed is not None:
        weights *= kept(seed, row_head, i[:, None], j[None, :], dropout)
    mixed = tl.dot(weights.to(value.dtype), value, mixed * old[:, None], input_precision=PRECISION)
    return largest, total, mixed


@triton.jit
def _forward(
    q, k, v, lengths, seed, out, lse,
    blocks, heads, length, window, sink, sink_bias, clip, scale, dropout,
    q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, out0, out1, out2, out3,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Outputs, and base-2 log-sum-exps (B, H, L), inf for fully masked queries."""
    row_head, row, head = row_and_head(blocks, heads)
    first = (blocks - 1 - tl.program_id(0) % blocks) * M  # late queries have the most keys, so they go first
    i, feature = first + tl.arange(0, M), tl.arange(0, W)
    stop = stop_of(lengths, row, length)
    query = tile(q + row * q0 + head * q2, i, q1, feature, q3, stop, True, D, W)
    k += row * k0 + head * k2
    v += row * v0 + head * v2
    largest = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    mixed = tl.zeros((M, W), tl.float32)
    sinks, start, free, bound, masked = keys_seen(first, stop, window, sink, CAUSAL, WINDOW, M, N)
    for at in range(free, bound, N):
        largest, total, mixed = _attend(
            query, largest, total, mixed, k, v, seed, row_head, i, at + tl.arange(0, N), stop,
            window, sink, sink_bias, clip, scale, dropout, k1, k3, v1, v3,
            False, CAUSAL, WINDOW, BIAS, CLIP, PRECISION, D, W,
        )  # fmt: skip
    for block in range(masked):
        at = masked_keys(block, sinks, start, free, bound, N)
        largest, total, mixed = _attend(
            query, largest, total, mixed, k, v, seed, row_head, i, at + tl.arange(0, N), stop,
            window, sink, sink_bias, clip, scale, dropout, k1, k3, v1, v3,
            True, CAUSAL, WINDOW, BIAS, CLIP, PRECISION, D, W,
        )  # fmt: skip
    some = (total > 0.0) & (i < stop)
    mixed = tl.where(some[:, None], mixed / tl.where(some, total, 1.0)[:, None], 0.0)
    at = out + row * out0 + head * out2 + i[:, None] * out1 + feature[None, :] * out3
    tl.store(at, mixed.to(out.dtype.element_ty), (i < length)[:, None] & (feature < D)[None, :])
    logarithm = tl.where(some, largest + tl.log2(tl.where(some, total, 1.0)), float("inf"))
    tl.store(lse + row_head.to(tl.int64) * length + i, logarithm, i < length)


class Shape(NamedTuple):
    """Queries and keys of a block, and Triton's compile options."""

    queries: int
    keys: int
    warps: int
    stages: int


class Kind(NamedTuple):
    """Determines the shape of blocks: larger ones would not fit in registers (see test_triton_compiled.py).

    Args:
        width: W.
        size: bytes of a number.
        exact: float32 products without tensor cores.
    """

    width: int
    size: int
    exact: bool


def forward_shape(kind: Kind) -> Shape:
    """Blocks of the forward pass."""
    wide = kind.width > 64
    if kind.size == 2:
        return Shape(128, 64, 8, 3)
    if kind.exact:
        return Shape(32, 16, 8, 2) if wide else Shape(64, 32, 8, 2)
    return Shape(64, 32, 4, 2) if wide else Shape(64, 64, 4, 2)


class Launch:
    """Grids, numbers and constants that the kernels of one call share."""

    def __init__(self, q: Tensor, options: AttentionOptions) -> None:
        rows, length, heads, dim = q.shape
        self._length: int = length
        self._row_heads, self._heads = rows * heads, heads
        exact = torch.get_float32_matmul_precision() == "highest"
        width = max(_SMALLEST_DOT, triton.next_power_of_2(dim))
        self.kind = Kind(width, q.element_size(), exact)
        window = 0 if options.window is None else min(options.window, self._length)
        clip = 0.0 if options.logit_clip is None else options.logit_clip
        sink = min(options.sink, self._length)
        self._numbers = (window, sink, options.sink_bias, clip, options.scale, options.dropout_p)
        self.constants: dict[str, Any] = {
            "CAUSAL": options.causal,
            "WINDOW": options.window is not None,
            "BIAS": options.biased,
            "CLIP": options.logit_clip is not None,
            "PRECISION": "ieee" if exact else "tf32",
            "D": dim,
            "W": width,
        }

    def blocks(self, size: int) -> int:
        """The number of blocks of that size in a sequence."""
        return -(-self._length // size)

    def grid(self, size: int) -> tuple[int]:
        """One program for every block of every row and head."""
        return (self.blocks(size) * self._row_heads,)

    def fitted(self, size: int) -> int:
        """A block size no larger than the sequence requires."""
        longest: int = triton.next_power_of_2(self._length)
        return min(size, max(_SMALLEST_DOT, longest))

    def numbers(self, size: int) -> tuple[float, ...]:
        """Sizes and options as the kernels take them, for blocks of that size."""
        return (self.blocks(size), self._heads, self._length, *self._numbers)


def strides_of(tensors: Sequence[Tensor]) -> list[int]:
    """Concatenated strides of all tensors."""
    return [stride for x in tensors for stride in x.stride()]


def forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, seed: Tensor | None, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Outputs (B, L, H, D) and log-sum-exps (B, H, L); the scale is not negative, and no seed means no dropout."""
    rows, length, heads, _ = q.shape
    out, lse = q.new_empty(q.shape), q.new_empty((rows, heads, length), dtype=torch.float32)
    if q.numel():
        launch = Launch(q, options)
        shape = forward_shape(launch.kind)
        queries, keys = launch.fitted(shape.queries), launch.fitted(shape.keys)
        strides = strides_of((q, k, v, out))
        with on_device_of(q):
            _forward[launch.grid(queries)](
                q, k, v, lengths, seed, out, lse, *launch.numbers(queries), *strides,
                M=queries, N=keys, num_warps=shape.warps, num_stages=shape.stages, **launch.constants,
            )  # fmt: skip
    return out, lse
