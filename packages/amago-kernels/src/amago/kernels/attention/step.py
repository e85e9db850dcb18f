"""One new timestep per row against a ring cache: what a rollout does.

Shapes: B rows, W slots of the cache, H heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.reference import attend
from amago.kernels.attention.sdpa import heads_first


def _write(k: Tensor, v: Tensor, cache: RingCache) -> Tensor:
    """Puts this step's key and value into every row's next slot; returns the slots (B,)."""
    slots = cache.lengths % cache.window
    rows = torch.arange(len(slots), device=slots.device)
    cache.keys[rows, slots] = k[:, 0].to(cache.keys.dtype)
    cache.values[rows, slots] = v[:, 0].to(cache.values.dtype)
    return slots


def _visible(cache: RingCache, slots: Tensor, window: int | None, sink: int) -> tuple[Tensor, Tensor | None]:
    """Masks over the slots, bool (B, 1, 1, W): those that the new step sees, and the sinks among them."""
    size = cache.window
    if window is None and not sink:
        filled = torch.arange(size, device=slots.device) <= cache.lengths.unsqueeze(1)  # (B, W)
        return filled[:, None, None], None
    age = (slots.unsqueeze(1) - torch.arange(size, device=slots.device)) % size  # (B, W)
    seen = age <= cache.lengths.unsqueeze(1)
    # The window that is remembered begins at the episode's start, or W - 1 steps ago.
    place = cache.lengths.clamp(max=size - 1).unsqueeze(1) - age
    sinks = seen & (place < sink)
    if window is not None:
        seen = seen & ((age <= window) | sinks)
    return seen[:, None, None], sinks[:, None, None]


def eager_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    *,
    window: int | None,
    sink: int,
    sink_bias: float,
    logit_clip: float | None,
    scale: float,
) -> Tensor:
    """The specification of `amago.kernels.attention_step`."""
    seen, sinks = _visible(cache, _write(k, v, cache), window, sink)
    dtype = cache.keys.dtype
    return attend(
        q.to(dtype),
        cache.keys,
        cache.values,
        seen,
        sinks=sinks,
        sink_bias=sink_bias,
        logit_clip=logit_clip,
        dropout_p=0.0,
        scale=scale,
    ).to(q.dtype)


def sdpa_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    *,
    window: int | None,
    sink: int,
    scale: float,
    **_: Any,
) -> Tensor:
    """The same by torch's scaled_dot_product_attention."""
    seen, _sinks = _visible(cache, _write(k, v, cache), window, sink)
    out = F.scaled_dot_product_attention(
        heads_first(q.to(cache.keys.dtype)),
        heads_first(cache.keys),
        heads_first(cache.values),
        attn_mask=seen,
        scale=scale,
    )
    return out.transpose(1, 2).to(q.dtype)  # (B, 1, H, D)
