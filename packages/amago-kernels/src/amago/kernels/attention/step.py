"""One new timestep per row against a ring cache: what a rollout does.

A step reads the cache where it lies. Multiplying a (B, W, H, D) cache head by head would copy all of it first,
so the written-out form multiplies whole slots (B, W, H * D) by queries that are spread over a block diagonal:
H times the arithmetic, of which one query has little, and none of the copying.

Shapes: B rows, W slots of the cache, H heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.reference import bias_and_clip, weights_of
from amago.kernels.attention.rotary import rotate
from amago.kernels.attention.sdpa import fused
from amago.kernels.attention.step_options import StepOptions


class Places(NamedTuple):
    """Where in a row's window the slots of its ring lie. The window that is remembered begins at position 0,
    which is the episode's first step, or the one W - 1 steps ago.

    Args:
        now: (B,), position of the step that was just written.
        slots: (B, W), position of each slot; 0 for slots that hold nothing of the episode.
        filled: (B, W) bool, whether the slot holds a step of the episode.
    """

    now: Tensor
    slots: Tensor
    filled: Tensor


def write(k: Tensor, v: Tensor, cache: RingCache) -> Tensor:
    """Puts this step's key and value into every row's next slot; returns the slots (B,)."""
    slots = cache.lengths % cache.window
    rows = torch.arange(len(slots), device=slots.device)
    cache.keys[rows, slots] = k[:, 0].to(cache.keys.dtype)
    cache.values[rows, slots] = v[:, 0].to(cache.values.dtype)
    return slots


def places(cache: RingCache, slots: Tensor) -> Places:
    """The positions of all slots after the step in `slots` (B,) was written."""
    size = cache.window
    age = (slots.unsqueeze(1) - torch.arange(size, device=slots.device)) % size  # (B, W)
    now = cache.lengths.clamp(max=size - 1)
    return Places(now, (now.unsqueeze(1) - age).clamp(min=0), age <= cache.lengths.unsqueeze(1))


def _visible(cache: RingCache, slots: Tensor, window: int | None, sink: int) -> tuple[Tensor, Tensor | None]:
    """Masks over the slots, bool (B, W): those that the new step sees, and the sinks among them."""
    if window is None and not sink:
        steps = torch.arange(cache.window, device=slots.device)
        return steps <= cache.lengths.unsqueeze(1), None
    now, where, seen = places(cache, slots)
    sinks = seen & (where < sink)
    if window is not None:
        seen = seen & ((now.unsqueeze(1) - where <= window) | sinks)
    return seen, sinks


def scores_of(q: Tensor, keys: Tensor) -> Tensor:
    """Products of one query per row (B, 1, H, D) with all keys (B, W, H, D): (B, H, W), no key copied."""
    spread = torch.diag_embed(q[:, 0].transpose(1, 2), dim1=1, dim2=3)  # (B, H, D, H), 0 off the diagonal
    return torch.bmm(keys.flatten(2), spread.flatten(1, 2)).transpose(1, 2)


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Values (B, W, H, D) averaged by weights (B, H, W): (B, 1, H, D), no value copied."""
    heads, dim = values.shape[2:]
    mixed = torch.bmm(weights, values.flatten(2))  # every head's weights for all
    mixed = mixed.view(len(values), heads, heads, dim)
    return mixed.diagonal(dim1=1, dim2=2).transpose(1, 2).unsqueeze(1)


def without_remains(attend: Callable[[], Tensor], cache: RingCache) -> Tensor:
    """`attend()`, whatever an episode before left in slots that the new one has not reached.

    It is weighed with 0 there, and 0 times what is not finite is no number. That shows in the output: then these
    slots are set to 0, and it is computed again. To keep them out of every product would copy the cache at each
    step. On a GPU nobody looks, for that would wait for it, nor where gradients or a compiler follow.
    """
    out = attend()
    if out.device.type != "cpu" or out.requires_grad or torch.compiler.is_compiling():
        return out
    # In float16 a sum of large numbers overflows that are all finite themselves.
    if math.isfinite(out.sum(dtype=torch.float32).item()):
        return out
    unused = torch.arange(cache.window) > cache.lengths.unsqueeze(1)  # (B, W)
    for x in (cache.keys, cache.values):
        x.masked_fill_(unused[..., None, None], 0.0)
    return attend()


def rotated(q: Tensor, k: Tensor, options: StepOptions) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, 1, H, D) at their positions, if these are rotary."""
    if options.rotary_base is None or options.positions is None:
        return q, k
    steps = options.positions.unsqueeze(1)
    return rotate(q, steps, options.rotary_base), rotate(k, steps, options.rotary_base)


def eager_step(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: StepOptions) -> Tensor:
    """The specification of `amago.kernels.attention_step`."""
    q, k = rotated(q, k, options)
    seen, sinks = _visible(cache, write(k, v, cache), options.window, options.sink)
    scores = scores_of(q.to(cache.keys.dtype), cache.keys) * options.scale  # (B, H, W)
    sinks = None if sinks is None else sinks.unsqueeze(1)
    scores = bias_and_clip(scores, sinks, options.sink_bias, options.logit_clip)
    weights = weights_of(scores, seen.unsqueeze(1))
    return without_remains(lambda: mix(weights, cache.values), cache).to(q.dtype)


def fused_step(q: Tensor, cache: RingCache, seen: Tensor, scale: float) -> Tensor:
    """torch's fused attention of one query per row to the slots in `seen`, bool broadcastable to (B, H, 1, W)."""
    query = q.to(cache.keys.dtype)

    def attend() -> Tensor:
        return fused(query, cache.keys, cache.values, attn_mask=seen, scale=scale)

    return without_remains(attend, cache).to(q.dtype)  # (B, 1, H, D)


def sdpa_step(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: StepOptions) -> Tensor:
    """The same by torch's scaled_dot_product_attention."""
    q, k = rotated(q, k, options)
    seen, _sinks = _visible(cache, write(k, v, cache), options.window, options.sink)
    return fused_step(q, cache, seen[:, None, None], options.scale)
