"""What the public functions of attention demand of their arguments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache


def check_same(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises ValueError unless q, k and v are (B, L, H, D) of one shape, dtype and device."""
    if q.dim() != 4:
        raise ValueError(f"q must be (batch, length, heads, head dim), got shape {tuple(q.shape)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be floating-point numbers, got {q.dtype}")
    for name, other in (("k", k), ("v", v)):
        if other.shape != q.shape:
            raise ValueError(f"{name} must have the shape of q, {tuple(q.shape)}, got {tuple(other.shape)}")
        if other.dtype != q.dtype or other.device != q.device:
            raise ValueError(
                f"{name} must be {q.dtype} on {q.device} like q, got {other.dtype} on {other.device}"
            )


def check_options(window: int | None, sink: int, logit_clip: float | None) -> None:
    """Raises ValueError for options outside their ranges."""
    if window is not None and window < 0:
        raise ValueError(f"window must be None or at least 0 (steps back that are seen), got {window}")
    if sink < 0:
        raise ValueError(f"sink must be at least 0 positions, got {sink}")
    if logit_clip is not None and logit_clip <= 0:
        raise ValueError(f"logit_clip must be None or positive, got {logit_clip}")


def check_sequence(q: Tensor, lengths: Tensor | None, dropout_p: float) -> None:
    """Raises ValueError for lengths that are not one per row and dropout that is no probability below 1."""
    if lengths is not None and lengths.shape != q.shape[:1]:
        raise ValueError(f"lengths must be ({q.shape[0]},), one per row, got {tuple(lengths.shape)}")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must lie in [0, 1), got {dropout_p}")


def check_cache(q: Tensor, cache: RingCache) -> None:
    """Raises ValueError unless q is one step for every row and head of the cache."""
    rows, _, heads, dim = cache.keys.shape
    if q.shape != (rows, 1, heads, dim):
        raise ValueError(f"q must be {(rows, 1, heads, dim)} to fit the cache, got {tuple(q.shape)}")


def check_rotary(q: Tensor, rotary_base: float | None, positions: Tensor | None) -> None:
    """Raises ValueError unless q (B, 1, H, D) can be rotated at the positions, if it shall be."""
    if rotary_base is None:
        if positions is not None:
            raise ValueError(
                "positions are those of rotary embeddings: give rotary_base (say 10000.0) as well"
            )
        return
    if not (math.isfinite(rotary_base) and rotary_base > 0):
        raise ValueError(
            f"rotary_base must be None or a positive number (10000.0 is usual), got {rotary_base}"
        )
    if q.shape[-1] % 2:
        raise ValueError(f"q must have an even head dimension to be rotated in pairs, got {q.shape[-1]}")
    if positions is None:
        return
    if positions.shape != q.shape[:1]:
        raise ValueError(f"positions must be ({q.shape[0]},), one per row, got {tuple(positions.shape)}")
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise ValueError(f"positions must be integers, got {positions.dtype}")
    if positions.device != q.device:
        raise ValueError(f"positions must be on {q.device} like q, got {positions.device}")
