"""Attention in Triton: a program walks over the keys of a block of queries and keeps their softmax in registers.

The forward pass keeps the running largest score and the sum of exponentials per query, and saves their logarithm
for the backward pass, which computes the weights again (FlashAttention-2, Dao 2023): one kernel per block of keys
for the gradients of keys and values, one per block of queries for theirs, so no atomic operation, and the same
numbers come out every time. Blocks of scores that nobody sees are never computed. Whether dropout takes a weight
is a function of the seed, its row, head, query and key.

Shapes: B rows, L positions, H heads, D head dimension, W the power of two that D fits in, M positions of a block.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.triton_runtime import on_device_of

_LARGEST_BLOCK = 64
_SMALLEST_DOT = 16  # rows and columns of the least product of matrices that Triton has
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(pointer, position, stride, feature, stride_feature, stop, D: tl.constexpr):
    """Positions (M,) of one row and head as (M, W), 0 from `stop` on."""
    at = pointer + position[:, None] * stride + feature[None, :] * stride_feature
    return tl.load(at, (position < stop)[:, None] & (feature < D)[None, :], 0.0)


@triton.jit
def _scores(
    q, k, i, j, stop, window, sink, sink_bias, clip, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of queries i and keys j, -inf where unseen, for the base 2; and whether clipping left them alone."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if BIAS:
        scores += tl.where(j < sink, sink_bias, 0.0)[None, :]
    free = tl.full(scores.shape, 1, tl.int1)
    if CLIP:
        free = tl.abs(scores) <= clip
        scores = tl.minimum(tl.maximum(scores, -clip), clip)
    seen = (i < stop)[:, None] & (j < stop)[None, :]
    if CAUSAL:
        seen &= j[None, :] <= i[:, None]
    if WINDOW:
        seen &= (tl.abs(i[:, None] - j[None, :]) <= window) | (j < sink)[None, :]
    return tl.where(seen, scores * _LOG2E, float("-inf")), free


@triton.jit
def _kept(seed, row, i, j, dropout):
    """What dropout multiplies the weights of queries i and keys j by: 0 or 1 / (1 - dropout)."""
    zero = i[:, None] * 0 + j[None, :] * 0
    query, key, where = (zero + i[:, None]).to(tl.uint32), (zero + j[None, :]).to(tl.uint32), zero + row
    number, _, _, _ = tl.philox(tl.load(seed), query, key, where.to(tl.uint32), zero.to(tl.uint32))
    return tl.where(tl.uint_to_uniform_float(number) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _keys_seen(
    first, stop, window, sink, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Keys that the queries from `first` on see: blocks of sinks before the rest, where that starts, blocks."""
    end = tl.where(first < stop, stop, 0)
    if CAUSAL:
        end = tl.minimum(end, first + M)
    start, sinks = first * 0, first * 0
    if WINDOW:
        end = tl.minimum(end, tl.maximum(first + M + window, tl.minimum(sink, end)))
        start = tl.maximum(first - window, 0) // M * M
        sinks = tl.where(end > 0, tl.cdiv(tl.minimum(sink, start), M), 0)
    return sinks, start, sinks + tl.maximum(tl.cdiv(end - start, M), 0)


@triton.jit
def _forward(
    q, k, v, lengths, seed, out, lse,
    blocks, heads, length, window, sink, sink_bias, clip, scale, dropout,
    q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, out0, out1, out2, out3,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Outputs, and lse (B, H, L): logarithms to the base 2 of the sums of exponentials, inf for empty sums."""
    row_head = tl.program_id(0) // blocks
    row, head = (row_head // heads).to(tl.int64), (row_head % heads).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    i, feature = first + tl.arange(0, M), tl.arange(0, W)
    stop = length
    if lengths is not None:
        stop = tl.minimum(tl.load(lengths + row), length)
    query = _tile(q + row * q0 + head * q2, i, q1, feature, q3, stop, D)
    largest = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    mixed = tl.zeros((M, W), tl.float32)
    sinks, start, count = _keys_seen(first, stop, window, sink, CAUSAL, WINDOW, M)
    for block in range(count):
        j = tl.where(block < sinks, block * M, start + (block - sinks) * M) + tl.arange(0, M)
        key = _tile(k + row * k0 + head * k2, j, k1, feature, k3, stop, D)
        value = _tile(v + row * v0 + head * v2, j, v1, feature, v3, stop, D)
        scores, _ = _scores(
            query, key, i, j, stop, window, sink, sink_bias, clip, scale,
            CAUSAL, WINDOW, BIAS, CLIP, PRECISION,
        )  # fmt: skip
        before = largest
        largest = tl.maximum(largest, tl.max(scores, axis=1))
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        weights, old = tl.exp2(scores - shift[:, None]), tl.exp2(before - shift)
        total = total * old + tl.sum(weights, axis=1)
        if seed is not None:
            weights *= _kept(seed, row_head, i, j, dropout)
        mixed = mixed * old[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    some = total > 0.0
    mixed /= tl.where(some, total, 1.0)[:, None]
    at = out + row * out0 + head * out2 + i[:, None] * out1 + feature[None, :] * out3
    tl.store(at, mixed.to(out.dtype.element_ty), (i < length)[:, None] & (feature < D)[None, :])
    logarithm = tl.where(some, largest + tl.log2(tl.where(some, total, 1.0)), float("inf"))
    tl.store(lse + row_head.to(tl.int64) * length + i, logarithm, i < length)


@triton.jit
def _through_output(
    grad, out, delta, blocks, heads, length, grad0, grad1, grad2, grad3, out0, out1, out2, out3,
    M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """delta (B, H, L): the product of every output with its gradient."""
    row_head = tl.program_id(0) // blocks
    row, head = (row_head // heads).to(tl.int64), (row_head % heads).to(tl.int64)
    i, feature = tl.program_id(0) % blocks * M + tl.arange(0, M), tl.arange(0, W)
    g = _tile(grad + row * grad0 + head * grad2, i, grad1, feature, grad3, length, D).to(tl.float32)
    o = _tile(out + row * out0 + head * out2, i, out1, feature, out3, length, D).to(tl.float32)
    tl.store(delta + row_head.to(tl.int64) * length + i, tl.sum(g * o, axis=1), i < length)


@triton.jit
def _keys_backward(
    grad, q, k, v, lengths, seed, lse, delta, grad_k, grad_v,
    blocks, heads, length, window, sink, sink_bias, clip, scale, dropout,
    grad0, grad1, grad2, grad3, q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, out0, out1, out2, out3,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and of their values, which lie in memory alike (strides out0 to out3)."""
    row_head = tl.program_id(0) // blocks
    row, head = (row_head // heads).to(tl.int64), (row_head % heads).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    j, feature = first + tl.arange(0, M), tl.arange(0, W)
    stop = length
    if lengths is not None:
        stop = tl.minimum(tl.load(lengths + row), length)
    key = _tile(k + row * k0 + head * k2, j, k1, feature, k3, stop, D)
    value = _tile(v + row * v0 + head * v2, j, v1, feature, v3, stop, D)
    d_key, d_value = tl.zeros((M, W), tl.float32), tl.zeros((M, W), tl.float32)
    start, end = first * 0, tl.where(first < stop, stop, 0)
    if CAUSAL:
        start = first
    if WINDOW:  # sinks are seen from everywhere
        start = tl.where(first < sink, start, tl.maximum(start, tl.maximum(first - window, 0) // M * M))
        end = tl.where(first < sink, end, tl.minimum(end, first + M + window))
    for block in range(tl.maximum(tl.cdiv(end - start, M), 0)):
        i = start + block * M + tl.arange(0, M)
        query = _tile(q + row * q0 + head * q2, i, q1, feature, q3, stop, D)
        g = _tile(grad + row * grad0 + head * grad2, i, grad1, feature, grad3, stop, D)
        own = row_head.to(tl.int64) * length + i
        scores, free = _scores(
            query, key, i, j, stop, window, sink, sink_bias, clip, scale,
            CAUSAL, WINDOW, BIAS, CLIP, PRECISION,
        )  # fmt: skip
        weights = tl.exp2(scores - tl.load(lse + own, i < stop, float("inf"))[:, None])
        d_weights = tl.dot(g, tl.trans(value), input_precision=PRECISION)
        mixing = weights
        if seed is not None:
            kept = _kept(seed, row_head, i, j, dropout)
            mixing, d_weights = weights * kept, d_weights * kept
        d_value += tl.dot(tl.trans(mixing).to(g.dtype), g, input_precision=PRECISION)
        d_scores = weights * (d_weights - tl.load(delta + own, i < stop, 0.0)[:, None])
        if CLIP:
            d_scores = tl.where(free, d_scores, 0.0)
        d_key += tl.dot(tl.trans(d_scores).to(query.dtype), query, input_precision=PRECISION)
    at = row * out0 + head * out2 + j[:, None] * out1 + feature[None, :] * out3
    inside = (j < length)[:, None] & (feature < D)[None, :]
    tl.store(grad_k + at, (d_key * scale).to(grad_k.dtype.element_ty), inside)
    tl.store(grad_v + at, d_value.to(grad_v.dtype.element_ty), inside)


@triton.jit
def _queries_backward(
    grad, q, k, v, lengths, seed, lse, delta, grad_q,
    blocks, heads, length, window, sink, sink_bias, clip, scale, dropout,
    grad0, grad1, grad2, grad3, q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, out0, out1, out2, out3,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries."""
    row_head = tl.program_id(0) // blocks
    row, head = (row_head // heads).to(tl.int64), (row_head % heads).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    i, feature = first + tl.arange(0, M), tl.arange(0, W)
    stop = length
    if lengths is not None:
        stop = tl.minimum(tl.load(lengths + row), length)
    query = _tile(q + row * q0 + head * q2, i, q1, feature, q3, stop, D)
    g = _tile(grad + row * grad0 + head * grad2, i, grad1, feature, grad3, stop, D)
    own = row_head.to(tl.int64) * length + i
    logarithm = tl.load(lse + own, i < stop, float("inf"))
    through = tl.load(delta + own, i < stop, 0.0)
    d_query = tl.zeros((M, W), tl.float32)
    sinks, start, count = _keys_seen(first, stop, window, sink, CAUSAL, WINDOW, M)
    for block in range(count):
        j = tl.where(block < sinks, block * M, start + (block - sinks) * M) + tl.arange(0, M)
        key = _tile(k + row * k0 + head * k2, j, k1, feature, k3, stop, D)
        value = _tile(v + row * v0 + head * v2, j, v1, feature, v3, stop, D)
        scores, free = _scores(
            query, key, i, j, stop, window, sink, sink_bias, clip, scale,
            CAUSAL, WINDOW, BIAS, CLIP, PRECISION,
        )  # fmt: skip
        weights = tl.exp2(scores - logarithm[:, None])
        d_weights = tl.dot(g, tl.trans(value), input_precision=PRECISION)
        if seed is not None:
            d_weights *= _kept(seed, row_head, i, j, dropout)
        d_scores = weights * (d_weights - through[:, None])
        if CLIP:
            d_scores = tl.where(free, d_scores, 0.0)
        d_query += tl.dot(d_scores.to(key.dtype), key, input_precision=PRECISION)
    at = grad_q + row * out0 + head * out2 + i[:, None] * out1 + feature[None, :] * out3
    inside = (i < length)[:, None] & (feature < D)[None, :]
    tl.store(at, (d_query * scale).to(grad_q.dtype.element_ty), inside)


class _Launch:
    """What the kernels of one call have in common: grid, numbers and constants."""

    def __init__(
        self,
        q: Tensor,
        causal: bool,
        window: int | None,
        sink: int,
        sink_bias: float,
        logit_clip: float | None,
        dropout_p: float,
        scale: float,
    ) -> None:
        rows, length, heads, dim = q.shape
        block = min(_LARGEST_BLOCK, max(_SMALLEST_DOT, triton.next_power_of_2(length)))
        blocks = triton.cdiv(length, block)
        sink = min(sink, length)
        self.grid = (blocks * rows * heads,)
        self.sizes = (blocks, heads, length)
        reach = 0 if window is None else min(window, length)
        clip = 0.0 if logit_clip is None else logit_clip
        self.numbers = (*self.sizes, reach, sink, sink_bias, clip, scale, dropout_p)
        self.tile = {"M": block, "D": dim, "W": max(_SMALLEST_DOT, triton.next_power_of_2(dim))}
        exact = torch.get_float32_matmul_precision() == "highest"
        self.constants: dict[str, Any] = {
            "CAUSAL": causal,
            "WINDOW": window is not None,
            "BIAS": sink > 0 and sink_bias != 0.0,
            "CLIP": logit_clip is not None,
            "PRECISION": "ieee" if exact else "tf32",
            **self.tile,
        }


def forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, seed: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    """Outputs (B, L, H, D) and lse (B, H, L); `options` are those of `_Launch`, dropout is 0 without a seed."""
    rows, length, heads, _ = q.shape
    out, lse = q.new_empty(q.shape), q.new_empty((rows, heads, length), dtype=torch.float32)
    if q.numel():
        launch = _Launch(q, *options)
        strides = [s for x in (q, k, v, out) for s in x.stride()]
        with on_device_of(q):
            _forward[launch.grid](
                q, k, v, lengths, seed, out, lse, *launch.numbers, *strides, **launch.constants
            )
    return out, lse


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, given that of the output."""
    grad_q, grad_k, grad_v = (q.new_empty(q.shape) for _ in range(3))
    if q.numel():
        launch = _Launch(q, *options)
        delta = torch.empty_like(lse)
        strides = [s for x in (grad, q, k, v, grad_q) for s in x.stride()]
        inputs = (grad, q, k, v, lengths, seed, lse, delta)
        with on_device_of(q):
            _through_output[launch.grid](
                grad, out, delta, *launch.sizes, *grad.stride(), *out.stride(), **launch.tile
            )
            _keys_backward[launch.grid](
                *inputs, grad_k, grad_v, *launch.numbers, *strides, **launch.constants
            )
            _queries_backward[launch.grid](*inputs, grad_q, *launch.numbers, *strides, **launch.constants)
    return grad_q, grad_k, grad_v
