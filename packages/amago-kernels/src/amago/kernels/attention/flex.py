"""`flex_attention` by torch's own, compiled, on CUDA (Dong et al. 2024).

The block mask, which selects the tiles of scores that are computed, is made once per mask function and shape and
cached, so a mask function must be pure.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.attention.mods import MaskMod, ScoreMod, depends_on
from amago.kernels.attention.options import FlexOptions
from amago.kernels.attention.reference import zero_padding
from amago.kernels.attention.sdpa import heads_first

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_HEAD_DIM = 256


def unsupported(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, options: FlexOptions) -> list[str]:
    """Reasons why it cannot run the call."""
    reasons = []
    if q.device.type != "cuda":
        reasons.append(
            f"flex_attention runs on CUDA devices only (torch has no gradient of it on a CPU), q is on {q.device}"
        )
    if q.dtype not in _DTYPES:
        reasons.append(f"flex_attention computes in float32, bfloat16 and float16, q is {q.dtype}")
    if q.shape[-1] > _LARGEST_HEAD_DIM:
        reasons.append(f"flex_attention takes heads up to {_LARGEST_HEAD_DIM} wide, q's are {q.shape[-1]}")
    if options.dropout_p > 0.0:
        reasons.append("flex_attention has no dropout of attention weights")
    return reasons


def missing(build: bool = False) -> list[str]:
    """Reasons why it cannot run on this machine."""
    reasons = []
    if not torch.cuda.is_available():
        reasons.append("flex_attention runs on CUDA devices only, torch finds none")
    if importlib.util.find_spec("triton") is None:
        reasons.append("flex_attention needs triton: pip install triton")
    return reasons


@cache
def _compiled() -> Callable[..., Tensor]:
    """torch's flex_attention as a fused kernel; uncompiled it would write the whole matrix of scores."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Tensor] = torch.compile(flex_attention)
    return compiled


def _make_block_mask(
    mask_mod: MaskMod | None, causal: bool, rows: int, heads: int, length: int, device: torch.device
) -> BlockMask | None:
    """The block mask of causality and the mask function; None if every query attends to all keys."""
    from torch.nn.attention.flex_attention import create_block_mask

    if mask_mod is None and not causal:
        return None

    def seen(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        if mask_mod is None:
            return q_idx >= kv_idx
        return (q_idx >= kv_idx) & mask_mod(b, h, q_idx, kv_idx) if causal else mask_mod(b, h, q_idx, kv_idx)

    by_row = mask_mod is not None and depends_on(mask_mod, 0, rows, device)
    by_head = mask_mod is not None and depends_on(mask_mod, 1, heads, device)
    with torch.inference_mode(False), torch.no_grad():  # it may be made in a rollout and kept for training
        return create_block_mask(
            seen, rows if by_row else None, heads if by_head else None, length, length, device=device
        )


_kept_block_mask = lru_cache(maxsize=64)(_make_block_mask)


def _block_mask(mask_mod: MaskMod | None, *rest: Any) -> BlockMask | None:
    """The cached block mask of the same function and shape, or a new one."""
    if isinstance(mask_mod, Hashable):
        return _kept_block_mask(mask_mod, *rest)
    return _make_block_mask(mask_mod, *rest)


def _scores_within(score_mod: ScoreMod | None, lengths: Tensor | None) -> ScoreMod | None:
    """The score function, and -inf for keys at and beyond each row's length (B,)."""
    if score_mod is None and lengths is None:
        return None

    def changed(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        if score_mod is not None:
            score = score_mod(score, b, h, q_idx, kv_idx)
        return score if lengths is None else torch.where(kv_idx < lengths[b], score, -float("inf"))

    return changed


def _padded(x: Tensor) -> Tensor:
    """(B, L, H, D) -> (B, H, L, D'), zeros added up to a power of two of at least 16, as older torch demands."""
    dim = x.shape[-1]
    width = max(16, 1 << (dim - 1).bit_length())
    return heads_first(x if width == dim else F.pad(x, (0, width - dim)))


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    options: FlexOptions,
    run: Callable[..., Tensor] | None = None,
) -> Tensor:
    """See `amago.kernels.flex_attention`. `run` replaces the compiled function."""
    rows, length, heads, dim = q.shape
    out = (run or _compiled())(
        _padded(q),
        _padded(k),
        _padded(v),
        score_mod=_scores_within(options.score_mod, lengths),
        block_mask=_block_mask(options.mask_mod, options.causal, rows, heads, length, q.device),
        scale=options.scale,
    )
    out = out[..., :dim].transpose(1, 2)  # (B, L, H, D)
    return out if lengths is None else zero_padding(out, lengths)
