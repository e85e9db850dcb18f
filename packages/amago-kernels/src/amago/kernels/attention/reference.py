"""Attention written out in plain torch: the specification of the operation.

Shapes: B rows, L positions, H heads, D head dimension, W slots of the ring cache.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def visible(
    length: int,
    device: torch.device,
    *,
    causal: bool,
    window: int | None,
    sink: int,
    lengths: Tensor | None,
) -> Tensor | None:
    """Which position i sees which j: bool, broadcastable to (B, 1, L, L); None if all see all."""
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


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    sinks: Tensor | None,
    sink_bias: float,
    logit_clip: float | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """softmax(clip(scale * q k^T + sink bias)) v over the visible positions; a query that sees none gets 0.

    q (B, Lq, H, D), k and v (B, Lk, H, D), mask and sinks bool broadcastable to (B, 1, Lq, Lk); the result is
    (B, Lq, H, D).
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, L, D)
    scores = (q @ k.transpose(-1, -2)) * scale  # (B, H, Lq, Lk)
    if sinks is not None and sink_bias != 0.0:
        scores = scores + sink_bias * sinks.to(scores.dtype)
    if logit_clip is not None:
        scores = scores.clamp(-logit_clip, logit_clip)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    weights = F.dropout(weights, dropout_p)
    return (weights @ v).transpose(1, 2)  # (B, Lq, H, D)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    sink: int,
    sink_bias: float,
    logit_clip: float | None,
    lengths: Tensor | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """The whole-sequence form; see `amago.kernels.attention`."""
    length = q.shape[1]
    mask = visible(length, q.device, causal=causal, window=window, sink=sink, lengths=lengths)
    sinks = (torch.arange(length, device=q.device) < sink) if sink else None  # (Lk,)
    out = attend(
        q,
        k,
        v,
        mask,
        sinks=sinks,
        sink_bias=sink_bias,
        logit_clip=logit_clip,
        dropout_p=dropout_p,
        scale=scale,
    )
    return out if lengths is None else zero_padding(out, lengths)


def zero_padding(out: Tensor, lengths: Tensor) -> Tensor:
    """(B, L, H, D) with the rows at and beyond `lengths` (B,) set to 0."""
    steps = torch.arange(out.shape[1], device=out.device)
    return out.masked_fill((steps >= lengths.unsqueeze(1)).view(*out.shape[:2], 1, 1), 0.0)
