"""Attention with score and mask functions written out: every device, dtype and gradient, and dropout.

The functions are evaluated at each call, vectorised over all positions. A mask that looks at positions alone is
one (L, L) matrix for all rows and heads; scores are one (B, H, L, L) matrix.

Shapes: B rows, L positions, H heads, D head dimension, W slots of the ring cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.attention import sdpa
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.mods import (
    MaskMod,
    ScoreMod,
    change_scores,
    change_step_scores,
    mask_of,
    step_mask_of,
)
from amago.kernels.attention.reference import visible, zero_padding
from amago.kernels.attention.step import fused_step, mix, places, scores_of, without_remains, write
from amago.kernels.precision import accumulation_dtype


def sdpa_unsupported(*_: object, **options: Any) -> list[str]:
    """Why torch's fused attention cannot run the call: it takes a mask, no function of the scores."""
    reasons = sdpa.unsupported(logit_clip=None, sink=0, **options)
    if options["score_mod"] is not None:
        reasons.append("scaled_dot_product_attention cannot apply a score_mod")
    return reasons


def _seen(q: Tensor, mask_mod: MaskMod | None, causal: bool, lengths: Tensor | None) -> Tensor | None:
    """Which query sees which key: bool, broadcastable to (B, H, L, L) and no larger than it needs to be."""
    rows, length, heads, _ = q.shape
    seen = visible(length, q.device, causal=causal, window=None, sink=0, lengths=lengths)
    if mask_mod is None:
        return seen
    mask = mask_of(mask_mod, torch.Size((rows, heads, length, length)), q.device)
    return mask if seen is None else seen & mask


def _weights(scores: Tensor, seen: Tensor | None, dropout_p: float, dtype: torch.dtype) -> Tensor:
    """Softmax over the last axis; a query that sees nothing, by the mask or by scores of -inf, weighs all 0."""
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    blind = scores.amax(dim=-1, keepdim=True).isneginf()
    weights = torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
    return F.dropout(weights.to(dtype), dropout_p)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    causal: bool,
    lengths: Tensor | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """The specification of `amago.kernels.flex_attention`."""
    # Score functions compute in float32 at least, whatever the inputs' own precision is.
    products = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)  # (B, H, L, L)
    scores = products.to(accumulation_dtype(products)) * scale
    if score_mod is not None:
        scores = change_scores(score_mod, scores)
    weights = _weights(scores, _seen(q, mask_mod, causal, lengths), dropout_p, v.dtype)
    out = (weights @ v.transpose(1, 2)).transpose(1, 2)  # (B, L, H, D)
    return out if lengths is None else zero_padding(out, lengths)


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask_mod: MaskMod | None,
    causal: bool,
    lengths: Tensor | None,
    dropout_p: float,
    scale: float,
    **_: object,
) -> Tensor:
    """The same without a score function, by torch's scaled_dot_product_attention."""
    seen = _seen(q, mask_mod, causal, lengths)
    out = sdpa.fused(q, k, v, attn_mask=seen, dropout_p=dropout_p, scale=scale)
    return out if lengths is None else zero_padding(out, lengths)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float,
) -> Tensor:
    """The specification of `amago.kernels.flex_attention_step`."""
    now, slots, seen = places(cache, write(k, v, cache))
    products = scores_of(q.to(cache.keys.dtype), cache.keys)  # (B, H, W)
    scores = products.to(accumulation_dtype(products)) * scale
    if score_mod is not None:
        scores = change_step_scores(score_mod, scores, now, slots)
    seen = seen.unsqueeze(1)
    if mask_mod is not None:
        seen = seen & step_mask_of(mask_mod, q.shape[2], now, slots)
    weights = _weights(scores, seen, 0.0, cache.values.dtype)
    return without_remains(lambda: mix(weights, cache.values), cache).to(q.dtype)


def sdpa_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    *,
    mask_mod: MaskMod | None,
    scale: float,
    **_: object,
) -> Tensor:
    """The same without a score function, by torch's scaled_dot_product_attention."""
    now, slots, seen = places(cache, write(k, v, cache))
    seen = seen.unsqueeze(1)
    if mask_mod is not None:
        seen = seen & step_mask_of(mask_mod, q.shape[2], now, slots)  # (B, 1 or H, W)
    return fused_step(q, cache, seen.unsqueeze(2), scale)
