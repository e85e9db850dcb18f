"""`attention_step` in Triton: a program reads the visible slots of some heads of a row.

Every slot is read once, a tile of slots at a time, and only if the row sees it. Each slot of a tile keeps a
softmax of its own in registers until the end: the loop sums over features alone, which neighbouring threads hold.
The new key and value come from the inputs, never from the cache: the program that has them writes them there, and
no other touches that slot. Where rows and heads are too few to fill the GPU, several programs share the slots of
a row, and a second kernel joins what each of them found.

Shapes: B rows, H heads, D head dimension, W slots of a ring; in a program S slots, G heads, and P, the power of
two that D fits in.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.gpu import groups_of_heads, splits_of_slots
from amago.kernels.attention.options import StepOptions
from amago.kernels.triton_runtime import on_device_of

_TILE_BYTES = 8192  # of keys, and as many of values: eight 16-byte loads in flight for each of 128 threads
_WARPS = 4
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _new_head(x, row, head, feature, x0, x2, x3, D: tl.constexpr):
    """This step's features of some heads of a row (G, P), 0 beyond D."""
    at = x + row * x0 + head[:, None] * x2 + feature[None, :] * x3
    return tl.load(at, (feature < D)[None, :], 0.0).to(tl.float32)


@triton.jit
def _rotated(x, row, head, feature, x0, x2, x3, positions, base, D: tl.constexpr):
    """`_new_head`, rotated if positions are given. Frequencies are computed in float64 and rounded once."""
    own = _new_head(x, row, head, feature, x0, x2, x3, D)
    if positions is not None:
        low = feature < D // 2
        other = tl.where(low, feature + D // 2, feature - D // 2)
        pair = tl.where(low, feature, other)
        wide = pair.to(tl.float64)
        exponent = tl.log2(wide * 0.0 + base) * wide * (-2.0 / D)
        angle = tl.load(positions + row).to(tl.float32) * tl.exp2(exponent).to(tl.float32)
        at = x + row * x0 + head[:, None] * x2 + other[None, :] * x3
        partner = tl.load(at, (feature < D)[None, :], 0.0).to(tl.float32)
        sine = tl.where(low, -tl.sin(angle), tl.sin(angle))
        own = own * tl.cos(angle)[None, :] + partner * sine[None, :]
    return own


@triton.jit
def _bounded(scores, sinks, sink_bias, clip, BIAS: tl.constexpr, CLIP: tl.constexpr):
    """Scores (S, G) with the bias of the sinks (S,), clipped, in base 2."""
    if BIAS:
        scores += tl.where(sinks, sink_bias, 0.0)[:, None]
    if CLIP:
        scores = tl.minimum(tl.maximum(scores, -clip), clip)
    return scores * _LOG2E


@triton.jit
def _joined(largest, total, mixed):
    """Joins the softmaxes (S, G) of all slots and their sums (S, G, P): maximum, total (G), sum (G, P)."""
    top = tl.max(largest, axis=0)
    share = tl.exp2(largest - tl.where(top == float("-inf"), 0.0, top)[None, :])
    return top, tl.sum(total * share, axis=0), tl.sum(mixed * share[:, :, None], axis=0)


@triton.jit
def _new_slot(
    query, k, v, key_at, value_at, row, head, feature, k0, k2, k3, v0, v2, v3, positions, base,
    D: tl.constexpr,
):  # fmt: skip
    """Writes this step's keys and values (G, P) to the cache; returns products with queries (G) and the values."""
    key = _rotated(k, row, head, feature, k0, k2, k3, positions, base, D)
    value = _new_head(v, row, head, feature, v0, v2, v3, D)
    key, value = key.to(key_at.dtype.element_ty), value.to(value_at.dtype.element_ty)
    real = (feature < D)[None, :]
    tl.store(key_at, key, real)
    tl.store(value_at, value, real)
    return tl.sum(query * key.to(tl.float32), axis=1), value.to(tl.float32)


@triton.jit
def _slots(index, oldest, start, sinks, size, WINDOW: tl.constexpr):
    """Positions (S) of the visible earlier steps with numbers `index`, and their slots."""
    position = index
    if WINDOW:
        position = tl.where(index < sinks, index, start + index - sinks)
    slot = oldest + position
    return position, tl.where(slot >= size, slot - size, slot).to(tl.int64)


@triton.jit
def _added(largest, total, mixed, score, value):
    """Adds a score and a value to each of the softmaxes (S, G)."""
    before = largest
    largest = tl.maximum(largest, score)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    weight, old = tl.exp2(score - shift), tl.exp2(before - shift)
    return largest, total * old + weight, mixed * old[:, :, None] + weight[:, :, None] * value.to(tl.float32)


@triton.jit
def _ring(
    q, k, v, keys, values, lengths, positions, out, part_max, part_sum, part_mixed,
    heads, size, splits, window, sink, sink_bias, clip, scale, base,
    q0, q2, q3, k0, k2, k3, v0, v2, v3,
    keys0, keys1, keys2, keys3, values0, values1, values2, values3,
    WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr, SPLIT: tl.constexpr,
    S: tl.constexpr, G: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Outputs (B, H, D); or for each split of the slots the maximum, sum (B, H, splits) and weighted values."""
    split, group = tl.program_id(0) % splits, tl.program_id(0) // splits
    row, first_head = (group // (heads // G)).to(tl.int64), group % (heads // G) * G
    head, feature, lane = first_head + tl.arange(0, G), tl.arange(0, P), tl.arange(0, S)
    head = head.to(tl.int64)
    length = tl.load(lengths + row)
    current, now = (length % size).to(tl.int32), tl.minimum(length, size - 1).to(tl.int32)
    oldest = (current - now + size) % size  # slot of position 0
    query = _rotated(q, row, head, feature, q0, q2, q3, positions, base, D) * scale

    # Positions 0 to `sinks` and `start` to `now` are visible; split 0 has the new one, which is not read.
    start, sinks = current * 0, current * 0
    if WINDOW:
        start = tl.maximum(now - window, 0)
        sinks = tl.minimum(sink, start)
    count = sinks + now - start
    share = tl.cdiv(count, splits)
    begin, end = split * share, tl.minimum(split * share + share, count)

    largest = tl.full((S, G), float("-inf"), tl.float32)
    total = tl.zeros((S, G), tl.float32)
    mixed = tl.zeros((S, G, P), tl.float32)
    keys_of, values_of = keys + row * keys0, values + row * values0
    at_key = head[:, None] * keys2 + feature[None, :] * keys3
    at_value = head[:, None] * values2 + feature[None, :] * values3
    if split == 0:
        key_at = keys_of + current.to(tl.int64) * keys1 + at_key
        value_at = values_of + current.to(tl.int64) * values1 + at_value
        score, value = _new_slot(
            query, k, v, key_at, value_at, row, head, feature, k0, k2, k3, v0, v2, v3, positions, base, D
        )  # fmt: skip
        score = _bounded(score[None, :], lane * 0 + now < sink, sink_bias, clip, BIAS, CLIP)
        new = (lane == 0)[:, None]
        largest = tl.where(new, score, largest)
        total = tl.where(new, 1.0, total)
        mixed = tl.where(new[:, :, None], value[None, :, :], mixed)

    for at in range(begin, end, S):
        index = at + lane
        position, slot = _slots(index, oldest, start, sinks, size, WINDOW)
        seen = index < end
        real = seen[:, None, None] & (feature < D)[None, None, :]
        key = tl.load(keys_of + (slot * keys1)[:, None, None] + at_key[None, :, :], real, 0.0)
        value = tl.load(values_of + (slot * values1)[:, None, None] + at_value[None, :, :], real, 0.0)
        score = tl.sum(key.to(tl.float32) * query[None, :, :], axis=2)
        score = _bounded(score, position < sink, sink_bias, clip, BIAS, CLIP)
        score = tl.where(seen[:, None], score, float("-inf"))
        largest, total, mixed = _added(largest, total, mixed, score, value)

    top, whole, result = _joined(largest, total, mixed)
    own = row * heads + head
    inside = (feature < D)[None, :]
    if SPLIT:
        part = own * splits + split
        tl.store(part_max + part, top)
        tl.store(part_sum + part, whole)
        tl.store(part_mixed + part[:, None] * D + feature[None, :], result, inside)
    else:
        result /= whole[:, None]
        tl.store(out + own[:, None] * D + feature[None, :], result.to(out.dtype.element_ty), inside)


@triton.jit
def _join(part_max, part_sum, part_mixed, out, splits, N: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    """Outputs of one row and head from its splits, of which there are at most N."""
    own = tl.program_id(0).to(tl.int64)
    split, feature = tl.arange(0, N), tl.arange(0, P)
    part, there = own * splits + split, split < splits
    largest = tl.load(part_max + part, there, float("-inf"))
    total = tl.load(part_sum + part, there, 0.0)
    at = part_mixed + part[:, None] * D + feature[None, :]
    mixed = tl.load(at, there[:, None] & (feature < D)[None, :], 0.0)
    share = tl.exp2(largest - tl.max(largest, axis=0))
    result = tl.sum(mixed * share[:, None], axis=0) / tl.sum(total * share, axis=0)
    tl.store(out + own * D + feature, result.to(out.dtype.element_ty), feature < D)


def tile_shape(heads: int, width: int, number_size: int) -> tuple[int, int]:
    """G and S, for heads of `width` features of `number_size` bytes in the cache: at least 8 slots."""
    numbers = _TILE_BYTES // number_size
    group = groups_of_heads(heads, numbers // (8 * width))
    return group, numbers // (group * width)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    out: Tensor,
    positions: Tensor | None,
    options: StepOptions,
) -> None:
    """Fills `out` (B, H, D), contiguous, and writes k and v (B, H, D) into the cache; B and H are not 0."""
    keys, values = cache.keys, cache.values
    rows, size, heads, dim = keys.shape
    width = triton.next_power_of_2(dim)
    group, slots = tile_shape(heads, width, keys.element_size())
    programs = rows * (heads // group)
    splits = splits_of_slots(programs, options.most_seen(size), 2 * slots, keys.device)
    parts: tuple[Tensor, ...] = (out, out, out)
    if splits > 1:
        shape = (rows, heads, splits)
        parts = tuple(out.new_empty(s, dtype=torch.float32) for s in (shape, shape, (*shape, dim)))
    strides = [stride for x in (q, k, v, keys, values) for stride in x.stride()]
    with on_device_of(q):
        _ring[(programs * splits,)](
            q, k, v, keys, values, cache.lengths, positions, out, *parts,
            heads, size, splits, 0 if options.window is None else min(options.window, size),
            min(options.sink, size), options.sink_bias, options.logit_clip or 0.0, options.scale,
            options.rotary_base or 0.0, *strides,
            WINDOW=options.window is not None, BIAS=options.biased, CLIP=options.logit_clip is not None,
            SPLIT=splits > 1, S=slots, G=group, D=dim, P=width,
            num_warps=_WARPS,
        )  # fmt: skip
        if splits > 1:
            count = triton.next_power_of_2(splits)
            _join[(rows * heads,)](*parts, out, splits, N=count, D=dim, P=width, num_warps=1)
