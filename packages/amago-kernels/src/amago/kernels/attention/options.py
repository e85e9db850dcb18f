"""Options of the attention operations, and the checks of their arguments.

Shapes: B rows, L positions, H heads, D head dimension, W slots of a ring cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.mods import MaskMod, ScoreMod
from amago.kernels.operators import require_tensors


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Options that `amago.kernels.attention` and `attention_step` share; see there.

    Raises:
        ValueError: for options outside their ranges.
        TypeError: for a window or sink that is not an integer.
    """

    window: int | None
    sink: int
    sink_bias: float
    logit_clip: float | None
    scale: float

    def __post_init__(self) -> None:
        if self.window is not None and not isinstance(self.window, int):
            raise TypeError(f"window must be None or an integer number of steps back, got {self.window!r}")
        if self.window is not None and self.window < 0:
            raise ValueError(f"window must be None or at least 0 steps back, got {self.window}")
        if not isinstance(self.sink, int):
            raise TypeError(f"sink must be an integer number of positions, got {self.sink!r}")
        if self.sink < 0:
            raise ValueError(f"sink must be at least 0 positions, got {self.sink}")
        if not -math.inf < self.sink_bias < math.inf:
            raise ValueError(f"sink_bias must be a finite number, got {self.sink_bias}")
        if self.logit_clip is not None and not self.logit_clip > 0:
            raise ValueError(f"logit_clip must be None or positive, got {self.logit_clip}")

    @property
    def biased(self) -> bool:
        """Whether the scores of sinks have a bias."""
        return self.sink > 0 and self.sink_bias != 0.0


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(ScoreOptions):
    """Options of `amago.kernels.attention`, except the tensor of lengths."""

    causal: bool
    dropout_p: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_dropout(self.dropout_p)

    @property
    def plain(self) -> bool:
        """Whether every query attends to all positions up to its own (or to all), by unchanged scores."""
        return self.window is None and self.logit_clip is None and not self.biased


@dataclass(frozen=True, kw_only=True)
class StepOptions(ScoreOptions):
    """Options of `amago.kernels.attention_step`, except the tensor of positions."""

    rotary_base: float | None

    def most_seen(self, size: int) -> int:
        """The number of the `size` slots that a step attends to at most."""
        return size if self.window is None else min(size, self.window + 1 + self.sink)


@dataclass(frozen=True, kw_only=True)
class FlexOptions:
    """Options of `amago.kernels.flex_attention`, except the tensor of lengths, and of `flex_attention_step`.

    Raises:
        ValueError: for a dropout outside [0, 1).
        TypeError: for functions that are neither None nor callable.
    """

    score_mod: ScoreMod | None
    mask_mod: MaskMod | None
    scale: float
    causal: bool = True
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        for name, function in (("score_mod", self.score_mod), ("mask_mod", self.mask_mod)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be None or a function, got {function!r}")
        _check_dropout(self.dropout_p)


def _check_dropout(dropout_p: float) -> None:
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must lie in [0, 1), got {dropout_p}")


def scale_of(scale: float | None, q: Tensor) -> float:
    """The scale of the scores, 1 / sqrt(D) by default; raises ValueError unless it is finite."""
    if scale is None:
        return 1.0 / math.sqrt(q.shape[-1])
    if not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be None or a finite number, got {scale}")
    return scale


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


def check_per_row(name: str, x: Tensor | None, q: Tensor) -> None:
    """Raises ValueError unless x is None or (B,) integers, one per row of q, on its device."""
    if x is None:
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.shape != q.shape[:1]:
        raise ValueError(f"{name} must be ({q.shape[0]},), one per row, got {tuple(x.shape)}")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, got {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} must be on {q.device} like q, got {x.device}")


def check_cache(q: Tensor, cache: RingCache) -> None:
    """Raises ValueError unless the cache's tensors fit each other, and q is one step of its rows."""
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
    """Raises ValueError unless q (B, 1, H, D) can be rotated at the positions, if `rotary_base` is given."""
    if rotary_base is None:
        if positions is not None:
            raise ValueError("positions need rotary embeddings: give rotary_base (say 10000.0) as well")
        return
    if not 0.0 < rotary_base < math.inf:
        raise ValueError(
            f"rotary_base must be None or a positive number (10000.0 is usual), got {rotary_base}"
        )
    if q.shape[-1] % 2:
        raise ValueError(f"q must have an even head dimension to be rotated in pairs, got {q.shape[-1]}")
    check_per_row("positions", positions, q)
