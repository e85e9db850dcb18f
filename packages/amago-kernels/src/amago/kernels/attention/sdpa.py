"""Attention by `torch.nn.functional.scaled_dot_product_attention`, which picks torch's own fused kernels.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.attention.options import AttentionOptions, FlexOptions
from amago.kernels.attention.reference import flex_mask, visible, zero_padding
from amago.kernels.operators import needs_gradient
from amago.kernels.precision import full_precision

# On a CPU torch's backward pass in half precision takes 3 to 5 times as long as in float32 up to this length.
_LONGEST_IN_FLOAT32 = 512
# Up to this length, in float32 on a CPU, two products and a softmax take less time than torch's fused kernel: 1.1
# instead of 1.7 ms, forward and backward, for 24 rows of 46 positions with 4 heads of 16.
_LONGEST_BY_PRODUCTS = 48


def unsupported(*arguments: Any) -> list[str]:
    """Reasons why it cannot run a call of any attention operation; the options come last."""
    options = arguments[-1]
    reasons = []
    if isinstance(options, FlexOptions):
        if options.score_mod is not None:
            reasons.append("scaled_dot_product_attention cannot apply a score_mod")
    else:
        if options.logit_clip is not None:
            reasons.append("scaled_dot_product_attention cannot clip logits")
        if options.biased:
            reasons.append("scaled_dot_product_attention cannot bias sinks")
    if not options.scale > 0.0:  # it scales the -inf of a mask too
        reasons.append(f"scaled_dot_product_attention needs a positive scale, got {options.scale}")
    return reasons


def fused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """scaled_dot_product_attention of (B, L, H, D) tensors, in the precision that is fastest on the device."""
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
    """(B, L, H, D) -> (B, H, L, D) with adjacent features, which torch's fused kernels require."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x.transpose(1, 2)


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, options: AttentionOptions) -> Tensor:
    """See `amago.kernels.attention`."""
    mask, causal = None, options.causal
    short = q.device.type == "cpu" and q.dtype == torch.float32 and 0 < q.shape[1] <= _LONGEST_BY_PRODUCTS
    if short and causal and options.plain and lengths is None:
        return _causal_by_products(q, k, v, options)
    if options.window is not None or lengths is not None:
        mask = visible(
            q.shape[1], q.device, causal=causal, lengths=lengths, window=options.window, sink=options.sink
        )
        causal = False
    out = fused(q, k, v, attn_mask=mask, dropout_p=options.dropout_p, is_causal=causal, scale=options.scale)
    return out if lengths is None else zero_padding(out, lengths)


def _causal_by_products(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    """Causal attention without other options, by batched matrix products."""
    rows, length, heads, features = q.shape
    q, k, v = (x.transpose(1, 2).reshape(rows * heads, length, features) for x in (q, k, v))
    hidden = q.new_full((length, length), float("-inf")).triu_(1)
    weights = torch.softmax(torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=options.scale), dim=-1)
    out = F.dropout(weights, options.dropout_p) @ v
    return out.view(rows, heads, length, features).transpose(1, 2)


def flex_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, options: FlexOptions) -> Tensor:
    """See `amago.kernels.flex_attention`; without a score function."""
    mask = flex_mask(q, options.mask_mod, options.causal, lengths)
    out = fused(q, k, v, attn_mask=mask, dropout_p=options.dropout_p, scale=options.scale)
    return out if lengths is None else zero_padding(out, lengths)
