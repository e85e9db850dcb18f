"""Attention by `torch.nn.functional.scaled_dot_product_attention`, which picks torch's own fused kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.attention.reference import visible, zero_padding
from amago.kernels.precision import full_precision, needs_gradient


def unsupported(*_: Tensor, **options: Any) -> list[str]:
    """Why the call cannot run: scores cannot be clipped or biased, nor turned around, before the softmax."""
    reasons = []
    if options["logit_clip"] is not None:
        reasons.append("scaled_dot_product_attention cannot clip logits")
    if options["sink"] and options["sink_bias"] != 0.0:
        reasons.append("scaled_dot_product_attention cannot bias sinks")
    if not options["scale"] > 0.0:  # it scales the -inf of a mask too
        reasons.append(f"scaled_dot_product_attention needs a positive scale, got {options['scale']}")
    return reasons


# On a CPU torch's backward pass in half precision takes 3 to 5 times as long as in float32 up to this length.
_LONGEST_IN_FLOAT32 = 512


def fused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """scaled_dot_product_attention of (B, L, H, D) tensors, in the precision in which the device is quickest."""
    q, k, v = (heads_first(x) for x in (q, k, v))
    half = q.dtype in (torch.bfloat16, torch.float16)
    slow = half and q.device.type == "cpu" and q.shape[2] <= _LONGEST_IN_FLOAT32
    if slow and needs_gradient(q, k, v):
        with full_precision(q.device):
            out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **options).to(q.dtype)
    else:
        out = F.scaled_dot_product_attention(q, k, v, **options)
    return out.transpose(1, 2)  # (B, L, H, D)


def heads_first(x: Tensor) -> Tensor:
    """(B, L, H, D) -> (B, H, L, D) with adjacent features, without which torch leaves its fused kernels."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x.transpose(1, 2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    sink: int,
    lengths: Tensor | None,
    dropout_p: float,
    scale: float,
    **_: object,
) -> Tensor:
    """The whole-sequence form; see `amago.kernels.attention`."""
    if window is None and lengths is None:
        mask = None
    else:
        mask = visible(q.shape[1], q.device, causal=causal, window=window, sink=sink, lengths=lengths)
    out = fused(q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=causal and mask is None, scale=scale)
    return out if lengths is None else zero_padding(out, lengths)
