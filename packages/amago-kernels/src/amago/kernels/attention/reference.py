"""Attention written out in plain torch: the reference of whole-sequence attention, with options or functions.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.attention.mods import MaskMod, change_scores, mask_of
from amago.kernels.attention.options import AttentionOptions, FlexOptions
from amago.kernels.precision import accumulation_dtype


def visible(
    length: int,
    device: torch.device,
    *,
    causal: bool,
    lengths: Tensor | None,
    window: int | None = None,
    sink: int = 0,
) -> Tensor | None:
    """Attention mask, bool (1, 1, L, L), or (B, 1, L, L) with lengths; None if every query attends to all."""
    if not causal and window is None and lengths is None:
        return None
    i = torch.arange(length, device=device).unsqueeze(1)
    j = torch.arange(length, device=device).unsqueeze(0)
    mask = torch.ones(length, length, dtype=torch.bool, device=device)
    if causal:
        mask = j <= i
    if window is not None:
        near = (i - j).abs() <= window
        mask = mask & (near | (j < sink))
    mask = mask.view(1, 1, length, length)
    if lengths is not None:
        mask = mask & (j < lengths.view(-1, 1, 1, 1))  # (B, 1, L, L)
    return mask


def bias_and_clip(scores: Tensor, sinks: Tensor | None, sink_bias: float, logit_clip: float | None) -> Tensor:
    """Scores (B, H, Lq, Lk) with the bias of the sinks (bool, broadcastable) added, then clipped."""
    if sinks is not None and sink_bias != 0.0:
        scores = scores + sink_bias * sinks.to(scores.dtype)
    return scores if logit_clip is None else scores.clamp(-logit_clip, logit_clip)


def masked_softmax(scores: Tensor, mask: Tensor | None, dropout_p: float = 0.0) -> Tensor:
    """Softmax of scores (..., Lk) where the mask (bool, broadcastable) is true; 0 in rows without any."""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return F.dropout(weights, dropout_p)


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, options: AttentionOptions) -> Tensor:
    """See `amago.kernels.attention`."""
    length, sink = q.shape[1], options.sink
    mask = visible(length, q.device, causal=options.causal, lengths=lengths, window=options.window, sink=sink)
    sinks = (torch.arange(length, device=q.device) < sink) if sink else None  # (L,)
    scores = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * options.scale  # (B, H, L, L)
    scores = bias_and_clip(scores, sinks, options.sink_bias, options.logit_clip)
    weights = masked_softmax(scores, mask, options.dropout_p)
    out = (weights @ v.transpose(1, 2)).transpose(1, 2)  # (B, L, H, D)
    return out if lengths is None else zero_padding(out, lengths)


def zero_padding(out: Tensor, lengths: Tensor) -> Tensor:
    """(B, L, H, D) with the positions at and beyond `lengths` (B,) set to 0."""
    steps = torch.arange(out.shape[1], device=out.device)
    return out.masked_fill((steps >= lengths.unsqueeze(1)).view(*out.shape[:2], 1, 1), 0.0)


def flex_mask(q: Tensor, mask_mod: MaskMod | None, causal: bool, lengths: Tensor | None) -> Tensor | None:
    """Attention mask of a mask function, causality and lengths: bool, broadcastable to (B, H, L, L)."""
    rows, length, heads, _ = q.shape
    seen = visible(length, q.device, causal=causal, lengths=lengths)
    if mask_mod is None:
        return seen
    mask = mask_of(mask_mod, torch.Size((rows, heads, length, length)), q.device)
    return mask if seen is None else seen & mask


def flex_softmax(scores: Tensor, mask: Tensor | None, dropout_p: float, dtype: torch.dtype) -> Tensor:
    """`masked_softmax` for scores that may be -inf themselves: a row without a finite score is 0."""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    empty = scores.amax(dim=-1, keepdim=True).isneginf()
    weights = torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)
    return F.dropout(weights.to(dtype), dropout_p)


def flex_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, options: FlexOptions) -> Tensor:
    """See `amago.kernels.flex_attention`. The functions are evaluated at each call, for all positions at once."""
    # Score functions compute in float32 at least, whatever the inputs' precision is.
    products = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)  # (B, H, L, L)
    scores = products.to(accumulation_dtype(products)) * options.scale
    if options.score_mod is not None:
        scores = change_scores(options.score_mod, scores)
    mask = flex_mask(q, options.mask_mod, options.causal, lengths)
    weights = flex_softmax(scores, mask, options.dropout_p, v.dtype)
    out = (weights @ v.transpose(1, 2)).transpose(1, 2)  # (B, L, H, D)
    return out if lengths is None else zero_padding(out, lengths)
