"""One new timestep per row against a ring cache, in plain torch: the reference, and torch's fused attention.

A step reads the cache in place. Multiplying a (B, W, H, D) cache head by head would copy all of it first, so the
written-out form multiplies whole slots (B, W, H * D) by queries on a block diagonal: H times the arithmetic, which
is little for one query, and no copy.

Shapes: B rows, W slots of the cache, H heads, D head dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.mods import change_step_scores, step_mask_of
from amago.kernels.attention.options import FlexOptions, StepOptions
from amago.kernels.attention.reference import bias_and_clip, flex_softmax, masked_softmax
from amago.kernels.attention.sdpa import fused
from amago.kernels.precision import accumulation_dtype


class SlotPositions(NamedTuple):
    """Positions of the slots within the remembered window, whose oldest step has position 0.

    Args:
        now: (B,), position of the step that was just written.
        slots: (B, W), position of each slot; 0 for empty slots.
        filled: (B, W) bool, whether the slot holds a step of the episode.
    """

    now: Tensor
    slots: Tensor
    filled: Tensor


def write(k: Tensor, v: Tensor, cache: RingCache) -> Tensor:
    """Writes this step's key and value into every row's next slot; returns the slots (B,)."""
    slots = cache.lengths % cache.window
    rows = torch.arange(slots.shape[0], device=slots.device)
    cache.keys[rows, slots] = k[:, 0].to(cache.keys.dtype)
    cache.values[rows, slots] = v[:, 0].to(cache.values.dtype)
    return slots


def slot_positions(cache: RingCache, slots: Tensor) -> SlotPositions:
    """The positions of all slots after the step in `slots` (B,) was written."""
    size = cache.window
    age = (slots.unsqueeze(1) - torch.arange(size, device=slots.device)) % size  # (B, W)
    now = cache.lengths.clamp(max=size - 1)
    return SlotPositions(now, (now.unsqueeze(1) - age).clamp(min=0), age <= cache.lengths.unsqueeze(1))


def _visible(cache: RingCache, slots: Tensor, options: StepOptions) -> tuple[Tensor, Tensor | None]:
    """Masks over the slots, bool (B, W): those that the new step attends to, and the sinks among them."""
    if options.window is None and not options.sink:
        steps = torch.arange(cache.window, device=slots.device)
        return steps <= cache.lengths.unsqueeze(1), None
    now, positions, seen = slot_positions(cache, slots)
    sinks = seen & (positions < options.sink)
    if options.window is not None:
        seen = seen & ((now.unsqueeze(1) - positions <= options.window) | sinks)
    return seen, sinks


def _scores_of(q: Tensor, keys: Tensor) -> Tensor:
    """Products of one query per row (B, 1, H, D) with all keys (B, W, H, D): (B, H, W), no key copied."""
    diagonal = torch.diag_embed(q[:, 0].transpose(1, 2), dim1=1, dim2=3)  # (B, H, D, H), 0 off the diagonal
    return torch.bmm(keys.flatten(2), diagonal.flatten(1, 2)).transpose(1, 2)


def _average(weights: Tensor, values: Tensor) -> Tensor:
    """Values (B, W, H, D) averaged by weights (B, H, W): (B, 1, H, D), no value copied."""
    heads, dim = values.shape[2:]
    mixed = torch.bmm(weights, values.flatten(2))  # every head's weights for all heads
    mixed = mixed.view(values.shape[0], heads, heads, dim)
    return mixed.diagonal(dim1=1, dim2=2).transpose(1, 2).unsqueeze(1)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary embedding (Su et al. 2021, eq. 34): rotates features i and i + D/2 by position * base ** (-2 i / D).

    Angles and products are float32 (float64 for such an x), whatever the dtype of x.

    Args:
        x: (B, L, H, D), D even.
        positions: (B, L) integers.
        base: wavelengths run from 2 pi to 2 pi * base.

    Returns:
        (B, L, H, D), dtype of x.
    """
    wide, dim = accumulation_dtype(x), x.shape[-1]
    frequencies = base ** (-torch.arange(0, dim, 2, device=x.device, dtype=wide) / dim)
    angles = (positions.unsqueeze(-1) * frequencies).unsqueeze(2)  # (B, L, 1, D / 2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def _rotated(q: Tensor, k: Tensor, positions: Tensor | None, options: StepOptions) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, 1, H, D), rotated to their positions if these are given."""
    if options.rotary_base is None or positions is None:
        return q, k
    steps = positions.unsqueeze(1)
    return rotate(q, steps, options.rotary_base), rotate(k, steps, options.rotary_base)


def eager_step(
    q: Tensor, k: Tensor, v: Tensor, cache: RingCache, positions: Tensor | None, options: StepOptions
) -> Tensor:
    """See `amago.kernels.attention_step`."""
    q, k = _rotated(q, k, positions, options)
    seen, sinks = _visible(cache, write(k, v, cache), options)
    scores = _scores_of(q.to(cache.keys.dtype), cache.keys) * options.scale  # (B, H, W)
    sinks = None if sinks is None else sinks.unsqueeze(1)
    scores = bias_and_clip(scores, sinks, options.sink_bias, options.logit_clip)
    weights = masked_softmax(scores, seen.unsqueeze(1))
    return _average(weights, cache.values).to(q.dtype)


def _fused_step(q: Tensor, cache: RingCache, seen: Tensor, scale: float) -> Tensor:
    """torch's fused attention of one query per row to the slots in `seen`, bool broadcastable to (B, H, 1, W)."""
    out = fused(q.to(cache.keys.dtype), cache.keys, cache.values, attn_mask=seen, scale=scale)
    return out.to(q.dtype)  # (B, 1, H, D)


def sdpa_step(
    q: Tensor, k: Tensor, v: Tensor, cache: RingCache, positions: Tensor | None, options: StepOptions
) -> Tensor:
    """`eager_step` by torch's scaled_dot_product_attention."""
    q, k = _rotated(q, k, positions, options)
    seen, _ = _visible(cache, write(k, v, cache), options)
    return _fused_step(q, cache, seen[:, None, None], options.scale)


def flex_eager_step(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: FlexOptions) -> Tensor:
    """See `amago.kernels.flex_attention_step`."""
    now, slots, seen = slot_positions(cache, write(k, v, cache))
    products = _scores_of(q.to(cache.keys.dtype), cache.keys)  # (B, H, W)
    scores = products.to(accumulation_dtype(products)) * options.scale
    if options.score_mod is not None:
        scores = change_step_scores(options.score_mod, scores, now, slots)
    seen = seen.unsqueeze(1)
    if options.mask_mod is not None:
        seen = seen & step_mask_of(options.mask_mod, q.shape[2], now, slots)
    weights = flex_softmax(scores, seen, 0.0, cache.values.dtype)
    return _average(weights, cache.values).to(q.dtype)


def flex_sdpa_step(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: FlexOptions) -> Tensor:
    """`flex_eager_step` without a score function, by torch's scaled_dot_product_attention."""
    now, slots, seen = slot_positions(cache, write(k, v, cache))
    seen = seen.unsqueeze(1)
    if options.mask_mod is not None:
        seen = seen & step_mask_of(options.mask_mod, q.shape[2], now, slots)  # (B, 1 or H, W)
    return _fused_step(q, cache, seen.unsqueeze(2), options.scale)
