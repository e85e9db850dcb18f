"""Attention in Triton, backward: the weights are recomputed from the saved log-sum-exps.

One kernel per block of keys computes the gradients of keys and values, one per block of queries those of queries
(FlashAttention-2, Dao 2023, algorithm 2, without its atomic additions: two more matrix products, but
deterministic). The first computes scores with keys along the rows, which saves transposing the weights.

Shapes: B rows, L positions, H heads, D head dimension, W the smallest power of two not below D, M queries and N
keys of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.attention.options import AttentionOptions
from amago.kernels.attention.triton_kernels import (
    LOG2E,
    Kind,
    Launch,
    Shape,
    bounded,
    kept,
    keys_seen,
    masked_keys,
    queries_seeing,
    row_and_head,
    seen,
    stop_of,
    strides_of,
    tile,
)
from amago.kernels.triton_runtime import on_device_of


@triton.jit
def _through_output(
    grad, out, delta, blocks, heads, length, grad0, grad1, grad2, grad3, out0, out1, out2, out3,
    M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """delta (B, H, L): the dot product of every output with its gradient."""
    row_head, row, head = row_and_head(blocks, heads)
    i, feature = tl.program_id(0) % blocks * M + tl.arange(0, M), tl.arange(0, W)
    grad += row * grad0 + head * grad2
    out += row * out0 + head * out2
    g = tile(grad, i, grad1, feature, grad3, length, True, D, W).to(tl.float32)
    o = tile(out, i, out1, feature, out3, length, True, D, W).to(tl.float32)
    tl.store(delta + row_head.to(tl.int64) * length + i, tl.sum(g * o, axis=1), i < length)


@triton.jit
def _weights(
    products, i, j, logarithm, stop, window, sink, sink_bias, clip, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    """Weights of queries i and keys j, each an axis; and whether clipping left the scores unchanged."""
    if MASKED or BIAS or CLIP:
        scores, free = bounded(products, j, sink, sink_bias, clip, scale, BIAS, CLIP)
        if MASKED:
            scores = tl.where(seen(i, j, stop, window, sink, CAUSAL, WINDOW), scores, float("-inf"))
        weights = tl.exp2(scores - logarithm)
    else:
        weights, free = tl.exp2(products * (scale * LOG2E) - logarithm), products == products
    return weights, free


@triton.jit
def _keys_step(
    d_key, d_value, key, value, q, grad, seed, lse, delta, row_head, i, j, stop, length,
    window, sink, sink_bias, clip, scale, dropout, q1, q3, grad1, grad3,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Adds the contribution of queries i to the gradients (N, W) of keys j and their values."""
    feature = tl.arange(0, W)
    query = tile(q, i, q1, feature, q3, stop, MASKED, D, W)
    g = tile(grad, i, grad1, feature, grad3, stop, MASKED, D, W)
    own = row_head.to(tl.int64) * length + i
    if MASKED:
        logarithm, through = tl.load(lse + own, i < stop, float("inf")), tl.load(delta + own, i < stop, 0.0)
    else:
        logarithm, through = tl.load(lse + own), tl.load(delta + own)
    products = tl.dot(key, tl.trans(query), input_precision=PRECISION)
    weights, free = _weights(
        products, i[None, :], j[:, None], logarithm[None, :], stop, window, sink, sink_bias, clip, scale,
        MASKED, CAUSAL, WINDOW, BIAS, CLIP,
    )  # fmt: skip
    d_weights = tl.dot(value, tl.trans(g), input_precision=PRECISION)
    mixing = weights
    if seed is not None:
        alive = kept(seed, row_head, i[None, :], j[:, None], dropout)
        mixing, d_weights = weights * alive, d_weights * alive
    d_value = tl.dot(mixing.to(g.dtype), g, d_value, input_precision=PRECISION)
    d_scores = weights * (d_weights - through[None, :])
    if CLIP:
        d_scores = tl.where(free, d_scores, 0.0)
    d_key = tl.dot(d_scores.to(query.dtype), query, d_key, input_precision=PRECISION)
    return d_key, d_value


@triton.jit
def _keys_backward(
    grad, q, k, v, lengths, seed, lse, delta, grad_k, grad_v,
    blocks, heads, length, window, sink, sink_bias, clip, scale, dropout,
    grad0, grad1, grad2, grad3, q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, out0, out1, out2, out3,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and of their values, which share strides (out0 to out3)."""
    row_head, row, head = row_and_head(blocks, heads)
    first = tl.program_id(0) % blocks * N  # early keys have the most queries, so they go first
    j, feature = first + tl.arange(0, N), tl.arange(0, W)
    stop = stop_of(lengths, row, length)
    key = tile(k + row * k0 + head * k2, j, k1, feature, k3, stop, True, D, W)
    value = tile(v + row * v0 + head * v2, j, v1, feature, v3, stop, True, D, W)
    q += row * q0 + head * q2
    grad += row * grad0 + head * grad2
    d_key, d_value = tl.zeros((N, W), tl.float32), tl.zeros((N, W), tl.float32)
    start, free, bound, masked = queries_seeing(first, stop, window, sink, CAUSAL, WINDOW, M, N)
    for block in range(masked):
        at = masked_keys(block, 0, start, free, bound, M)
        d_key, d_value = _keys_step(
            d_key, d_value, key, value, q, grad, seed, lse, delta, row_head, at + tl.arange(0, M), j, stop, length,
            window, sink, sink_bias, clip, scale, dropout, q1, q3, grad1, grad3,
            True, CAUSAL, WINDOW, BIAS, CLIP, PRECISION, D, W,
        )  # fmt: skip
    for at in range(free, bound, M):
        d_key, d_value = _keys_step(
            d_key, d_value, key, value, q, grad, seed, lse, delta, row_head, at + tl.arange(0, M), j, stop, length,
            window, sink, sink_bias, clip, scale, dropout, q1, q3, grad1, grad3,
            False, CAUSAL, WINDOW, BIAS, CLIP, PRECISION, D, W,
        )  # fmt: skip
    real = (j < stop)[:, None]  # beyond, a block without a mask computes garbage
    d_key, d_value = tl.where(real, d_key * scale, 0.0), tl.where(real, d_value, 0.0)
    at = row * out0 + head * out2 + j[:, None] * out1 + feature[None, :] * out3
    inside = (j < length)[:, None] & (feature < D)[None, :]
    tl.store(grad_k + at, d_key.to(grad_k.dtype.element_ty), inside)
    tl.store(grad_v + at, d_value.to(grad_v.dtype.element_ty), inside)


@triton.jit
def _queries_step(
    d_query, query, g, k, v, seed, logarithm, through, row_head, i, j, stop,
    window, sink, sink_bias, clip, scale, dropout, k1, k3, v1, v3,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Adds the contribution of keys j to the gradients (M, W) of queries i."""
    feature = tl.arange(0, W)
    key = tile(k, j, k1, feature, k3, stop, MASKED, D, W)
    value = tile(v, j, v1, feature, v3, stop, MASKED, D, W)
    products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    weights, free = _weights(
        products, i[:, None], j[None, :], logarithm[:, None], stop, window, sink, sink_bias, clip, scale,
        MASKED, CAUSAL, WINDOW, BIAS, CLIP,
    )  # fmt: skip
    d_weights = tl.dot(g, tl.trans(value), input_precision=PRECISION)
    if seed is not None:
        d_weights *= kept(seed, row_head, i[:, None], j[None, :], dropout)
    d_scores = weights * (d_weights - through[:, None])
    if CLIP:
        d_scores = tl.where(free, d_scores, 0.0)
    return tl.dot(d_scores.to(key.dtype), key, d_query, input_precision=PRECISION)


@triton.jit
def _queries_backward(
    grad, q, k, v, lengths, seed, lse, delta, grad_q,
    blocks, heads, length, window, sink, sink_bias, clip, scale, dropout,
    grad0, grad1, grad2, grad3, q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, out0, out1, out2, out3,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries."""
    row_head, row, head = row_and_head(blocks, heads)
    first = (blocks - 1 - tl.program_id(0) % blocks) * M
    i, feature = first + tl.arange(0, M), tl.arange(0, W)
    stop = stop_of(lengths, row, length)
    query = tile(q + row * q0 + head * q2, i, q1, feature, q3, stop, True, D, W)
    g = tile(grad + row * grad0 + head * grad2, i, grad1, feature, grad3, stop, True, D, W)
    k += row * k0 + head * k2
    v += row * v0 + head * v2
    own = row_head.to(tl.int64) * length + i
    logarithm = tl.load(lse + own, i < stop, float("inf"))
    through = tl.load(delta + own, i < stop, 0.0)
    d_query = tl.zeros((M, W), tl.float32)
    sinks, start, free, bound, masked = keys_seen(first, stop, window, sink, CAUSAL, WINDOW, M, N)
    for at in range(free, bound, N):
        d_query = _queries_step(
            d_query, query, g, k, v, seed, logarithm, through, row_head, i, at + tl.arange(0, N), stop,
            window, sink, sink_bias, clip, scale, dropout, k1, k3, v1, v3,
            False, CAUSAL, WINDOW, BIAS, CLIP, PRECISION, D, W,
        )  # fmt: skip
    for block in range(masked):
        at = masked_keys(block, sinks, start, free, bound, N)
        d_query = _queries_step(
            d_query, query, g, k, v, seed, logarithm, through, row_head, i, at + tl.arange(0, N), stop,
            window, sink, sink_bias, clip, scale, dropout, k1, k3, v1, v3,
            True, CAUSAL, WINDOW, BIAS, CLIP, PRECISION, D, W,
        )  # fmt: skip
    at = grad_q + row * out0 + head * out2 + i[:, None] * out1 + feature[None, :] * out3
    inside = (i < length)[:, None] & (feature < D)[None, :]
    tl.store(at, (d_query * scale).to(grad_q.dtype.element_ty), inside)


def keys_shape(kind: Kind) -> Shape:
    """Blocks of the kernel for keys and values."""
    wide = kind.width > 64
    if kind.size == 2:
        return Shape(64, 64, 8, 2) if wide else Shape(64, 64, 4, 2)
    if kind.exact:
        return Shape(16, 32, 8, 2) if wide else Shape(32, 32, 8, 2)
    return Shape(32, 32, 8, 2) if wide else Shape(32, 64, 4, 2)


def queries_shape(kind: Kind) -> Shape:
    """Blocks of the kernel for queries."""
    wide = kind.width > 64
    if kind.size == 2:
        return Shape(64, 64, 8, 2) if wide else Shape(64, 64, 4, 2)
    if kind.exact:
        return Shape(32, 32, 8, 2) if wide else Shape(64, 32, 8, 2)
    return Shape(64, 32, 8, 2) if wide else Shape(64, 32, 4, 2)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, given that of the output; arguments as in `forward`."""
    grad_q, grad_k, grad_v = (q.new_empty(q.shape) for _ in range(3))
    if q.numel() == 0:
        return grad_q, grad_k, grad_v
    launch = Launch(q, options)
    constants = launch.constants
    delta = torch.empty_like(lse)
    strides = strides_of((grad, q, k, v, grad_q))
    of_outputs = strides_of((grad, out))
    inputs = (grad, q, k, v, lengths, seed, lse, delta)
    block = launch.fitted(64)
    by_keys, by_queries = keys_shape(launch.kind), queries_shape(launch.kind)
    with on_device_of(q):
        _through_output[launch.grid(block)](
            grad, out, delta, *launch.numbers(block)[:3], *of_outputs,
            M=block, D=constants["D"], W=constants["W"],
        )  # fmt: skip
        queries, keys = launch.fitted(by_keys.queries), launch.fitted(by_keys.keys)
        _keys_backward[launch.grid(keys)](
            *inputs, grad_k, grad_v, *launch.numbers(keys), *strides, M=queries, N=keys,
            num_warps=by_keys.warps, num_stages=by_keys.stages, **constants,
        )  # fmt: skip
        queries, keys = launch.fitted(by_queries.queries), launch.fitted(by_queries.keys)
        _queries_backward[launch.grid(queries)](
            *inputs, grad_q, *launch.numbers(queries), *strides, M=queries, N=keys,
            num_warps=by_queries.warps, num_stages=by_queries.stages, **constants,
        )  # fmt: skip
    return grad_q, grad_k, grad_v
