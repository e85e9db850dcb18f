"""What the public functions of attention demand of their arguments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from amago.kernels.arguments import require_tensors
from amago.kernels.attention.cache import RingCache


def check_same(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises ValueError unless q, k and v are (B, L, H, D) of one shape, dtype and device."""
    require_tensors(q=q, k=k, v=v)
    if q.dim() != 4 or q.shape[3] == 0:
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


def check_options(
    window: int | None, sink: int, sink_bias: float, logit_clip: float | None, scale: float | None
) -> None:
    """Raises ValueError for options outside their ranges, TypeError for numbers of steps that are no integers."""
    if window is not None and not isinstance(window, int):
        raise TypeError(f"window must be None or an integer (steps back that are seen), got {window!r}")
    if window is not None and window < 0:
        raise ValueError(f"window must be None or at least 0 (steps back that are seen), got {window}")
    if not isinstance(sink, int):
        raise TypeError(f"sink must be an integer number of positions, got {sink!r}")
    if sink < 0:
        raise ValueError(f"sink must be at least 0 positions, got {sink}")
    if not -math.inf < sink_bias < math.inf:
        raise ValueError(f"sink_bias must be a finite number, got {sink_bias}")
    if logit_clip is not None and not logit_clip > 0:
        raise ValueError(f"logit_clip must be None or positive, got {logit_clip}")
    check_scale(scale)


def check_scale(scale: float | None) -> None:
    """Raises ValueError for a scale that is no number."""
    if scale is not None and not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be None or a finite number, got {scale}")


def check_sequence(q: Tensor, lengths: Tensor | None, dropout_p: float) -> None:
    """Raises ValueError for lengths that are not one integer per row and dropout that is no probability."""
    if lengths is not None:
        check_per_row("lengths", lengths, q)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must lie in [0, 1), got {dropout_p}")


def check_per_row(name: str, x: Tensor, q: Tensor) -> None:
    """Raises ValueError unless x is one integer for every row of q, on its device."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.shape != q.shape[:1]:
        raise ValueError(f"{name} must be ({q.shape[0]},), one per row, got {tuple(x.shape)}")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, got {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} must be on {q.device} like q, got {x.device}")


def check_cache(q: Tensor, cache: RingCache) -> None:
    """Raises ValueError unless the cache is one of keys, values and steps taken, and q one step for its rows."""
    if not isinstance(cache, RingCache):
        raise TypeError(f"cache must be a RingCache, got {type(cache).__name__}")
    keys, values, lengths = cache.keys, cache.values, cache.lengths
    if keys.dim() != 4 or keys.shape[1] == 0:
        raise ValueError(
            f"the cache's keys must be (batch, slots, heads, head dim) with a slot, got {tuple(keys.shape)}"
        )
    if (values.shape, values.dtype, values.device) != (keys.shape, keys.dtype, keys.device):
        raise ValueError(
            f"the cache's values must be like its keys, {keys.dtype} {tuple(keys.shape)} on {keys.device}, got "
            f"{values.dtype} {tuple(values.shape)} on {values.device}"
        )
    if not keys.is_floating_point():
        raise ValueError(f"the cache's keys must be floating-point numbers, got {keys.dtype}")
    rows, _, heads, dim = keys.shape
    if q.shape != (rows, 1, heads, dim):
        raise ValueError(f"q must be {(rows, 1, heads, dim)} to fit the cache, got {tuple(q.shape)}")
    if keys.device != q.device:
        raise ValueError(f"the cache must be on {q.device} like q, got {keys.device}")
    if lengths.dtype != torch.int64:
        raise ValueError(f"the cache's lengths must be torch.int64, got {lengths.dtype}")
    check_per_row("the cache's lengths", lengths, q)


def check_rotary(q: Tensor, rotary_base: float | None, positions: Tensor | None) -> None:
    """Raises ValueError unless q (B, 1, H, D) can be rotated at the positions, if it shall be."""
    if rotary_base is None:
        if positions is not None:
            raise ValueError(
                "positions are those of rotary embeddings: give rotary_base (say 10000.0) as well"
            )
        return
    if not 0.0 < rotary_base < math.inf:
        raise ValueError(
            f"rotary_base must be None or a positive number (10000.0 is usual), got {rotary_base}"
        )
    if q.shape[-1] % 2:
        raise ValueError(f"q must have an even head dimension to be rotated in pairs, got {q.shape[-1]}")
    if positions is not None:
        check_per_row("positions", positions, q)
