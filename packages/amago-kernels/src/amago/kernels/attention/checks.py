"""What the public functions of attention demand of their arguments."""

from __future__ import annotations

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
