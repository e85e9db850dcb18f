"""Attention written out in plain torch: the specification of the operation.

Shapes: B rows, L positions, H heads, D head dimension.
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
    """Which position i sees which j: bool (1, 1, L, L), or (B, 1, L, L) with lengths; None if all see all."""
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


def weights_of(scores: Tensor, mask: Tensor | None, dropout_p: float = 0.0) -> Tensor:
    """Softmax of scores (..., Lk) over what the mask (bool, broadcastable) shows; all 0 where it shows nothing."""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return F.dropout(weights, dropout_p)


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
    sinks = (torch.arange(length, device=q.device) < sink) if sink else None  # (L,)
    scores = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * scale  # (B, H, L, L)
    weights = weights_of(bias_and_clip(scores, sinks, sink_bias, logit_clip), mask, dropout_p)
    out = (weights @ v.transpose(1, 2)).transpose(1, 2)  # (B, L, H, D)
    return out if lengths is None else zero_padding(out, lengths)


def zero_padding(out: Tensor, lengths: Tensor) -> Tensor:
    """(B, L, H, D) with the rows at and beyond `lengths` (B,) set to 0."""
    steps = torch.arange(out.shape[1], device=out.device)
    return out.masked_fill((steps >= lengths.unsqueeze(1)).view(*out.shape[:2], 1, 1), 0.0)
