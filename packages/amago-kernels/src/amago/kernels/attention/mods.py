"""Score and mask functions, and their evaluation for all positions at once.

A mask function `mask_mod(b, h, q_idx, kv_idx)` returns whether a query attends to a key; a score function
`score_mod(score, b, h, q_idx, kv_idx)` changes the scaled product of the two. They are written for one pair, as
for `torch.nn.attention.flex_attention`; every argument is a tensor of one element. `SlidingWindow` and
`ClippedSinks` are the functions that equal options of `amago.kernels.attention`.

Shapes: B rows, H heads, Lq queries, Lk keys, W slots of the ring cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# vmap axes of (b, h, q_idx, kv_idx), one tuple for each axis of the scores.
_SEQUENCE = ((0, None, None, None), (None, 0, None, None), (None, None, 0, None), (None, None, None, 0))
# In a step there is one query per row; its position and those of the keys depend on the row.
_STEP = ((0, None, 0, 0), (None, 0, None, None), (None, None, None, 0))


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Mask function: position i attends to j with |i - j| <= window, and to the first `sink` positions.

    Args:
        window: steps on either side, at least 0.
        sink: number of positions, at least 0.
    """

    window: int
    sink: int = 0

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Bool: whether the query attends to the key."""
        near = (q_idx - kv_idx).abs() <= self.window
        return near | (kv_idx < self.sink) if self.sink else near


@dataclass(frozen=True, slots=True)
class ClippedSinks:
    """Score function: adds `sink_bias` to the scores of the first `sink` positions, then clips all of them.

    Args:
        sink: number of positions, at least 0.
        sink_bias: added to the scores of the sinks.
        logit_clip: scores are clamped to plus and minus this; None for no limit.
    """

    sink: int = 0
    sink_bias: float = 0.0
    logit_clip: float | None = None

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """The score, biased and clipped."""
        if self.sink and self.sink_bias != 0.0:
            score = torch.where(kv_idx < self.sink, score + self.sink_bias, score)
        return score if self.logit_clip is None else score.clamp(-self.logit_clip, self.logit_clip)


def as_options(score_mod: ScoreMod | None, mask_mod: MaskMod | None) -> dict[str, Any] | None:
    """The equivalent options of `amago.kernels.attention`; None if there are none."""
    options: dict[str, Any] = {}
    if isinstance(mask_mod, SlidingWindow):
        options = {"window": mask_mod.window, "sink": mask_mod.sink}
    elif mask_mod is not None:
        return None
    if isinstance(score_mod, ClippedSinks):
        if score_mod.sink_bias != 0.0:
            if options.setdefault("sink", score_mod.sink) != score_mod.sink:
                return None
            options["sink_bias"] = score_mod.sink_bias
        options["logit_clip"] = score_mod.logit_clip
    elif score_mod is not None:
        return None
    return options


class _IndexByTensors(TorchFunctionMode):
    """Makes `table[h]` work under vmap, where plain indexing would convert the index to an int."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            table, index = args
            parts = index if isinstance(index, tuple) else (index,)
            if all(isinstance(part, Tensor | int) and not isinstance(part, bool) for part in parts):
                indices = [torch.as_tensor(part, device=table.device) for part in parts]
                return torch.ops.aten.index.Tensor(table, indices)
        return func(*args, **(kwargs or {}))


def _for_all(name: str, mod: Callable[..., Tensor], axes: Any, *arguments: Tensor) -> Tensor:
    """`mod` for all positions, by vmap.

    Raises:
        ValueError: if the function cannot be vectorised, or has another signature.
    """
    scores = (0,) * (len(arguments) - 4)
    mapped = mod
    for dims in reversed(axes):
        mapped = torch.vmap(mapped, in_dims=scores + dims)
    try:
        with _IndexByTensors():
            return mapped(*arguments)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        signature = "(score, b, h, q_idx, kv_idx)" if scores else "(b, h, q_idx, kv_idx)"
        raise ValueError(
            f"{name} must take {signature} as tensors of one element and use tensor operations only, "
            f"torch.where instead of `if`; evaluating {mod} for all positions at once failed: {error}"
        ) from error


def _indices(shape: torch.Size, device: torch.device) -> list[Tensor]:
    """Row, head, query and key indices for scores (B, H, Lq, Lk)."""
    return [torch.arange(size, device=device) for size in shape]


def _checked_scores(changed: Tensor, scores: Tensor) -> Tensor:
    """The result of a score function in the dtype of its input."""
    if not changed.is_floating_point():
        raise ValueError(f"score_mod must return the changed score, got {changed.dtype}")
    return changed.to(scores.dtype)


def _checked_mask(seen: Tensor) -> Tensor:
    """The result of a mask function, with size 1 on axes that it does not depend on."""
    if seen.dtype != torch.bool:
        raise ValueError(
            f"mask_mod must return bool (whether the query attends to the key), got {seen.dtype}"
        )
    for axis, stride in enumerate(seen.stride()):
        if stride == 0:
            seen = seen.narrow(axis, 0, 1)
    return seen


def change_scores(score_mod: ScoreMod, scores: Tensor) -> Tensor:
    """A whole sequence's scores (B, H, Lq, Lk) after the score function; same shape and dtype."""
    changed = _for_all("score_mod", score_mod, _SEQUENCE, scores, *_indices(scores.shape, scores.device))
    return _checked_scores(changed, scores)


def mask_of(mask_mod: MaskMod, shape: torch.Size, device: torch.device) -> Tensor:
    """The mask of a whole sequence: bool, broadcastable to `shape` (B, H, Lq, Lk).

    Axes that the function does not depend on have size 1, so a mask of positions is (1, 1, Lq, Lk).
    """
    return _checked_mask(_for_all("mask_mod", mask_mod, _SEQUENCE, *_indices(shape, device)))


def change_step_scores(score_mod: ScoreMod, scores: Tensor, now: Tensor, slots: Tensor) -> Tensor:
    """One step's scores (B, H, W) after the score function, for positions `now` (B,) and `slots` (B, W)."""
    rows, heads = (torch.arange(size, device=scores.device) for size in scores.shape[:2])
    changed = _for_all("score_mod", score_mod, _STEP, scores, rows, heads, now, slots)
    return _checked_scores(changed, scores)


def step_mask_of(mask_mod: MaskMod, n_heads: int, now: Tensor, slots: Tensor) -> Tensor:
    """The mask of one query per row over the slots: bool, broadcastable to (B, H, W)."""
    rows, heads = (torch.arange(size, device=now.device) for size in (now.shape[0], n_heads))
    return _checked_mask(_for_all("mask_mod", mask_mod, _STEP, rows, heads, now, slots))


def depends_on(mask_mod: MaskMod, axis: int, size: int, device: torch.device) -> bool:
    """Whether a mask function depends on its row (axis 0) or head (axis 1), of which there are `size`."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    arguments = [torch.arange(size, device=device) if argument == axis else index for argument in range(4)]
    in_dims = tuple(0 if argument == axis else None for argument in range(4))
    try:
        with _IndexByTensors():
            torch.vmap(mask_mod, in_dims=in_dims, out_dims=None)(*arguments)
    except ValueError:  # vmap cannot return a result that varies along the axis without an axis for it
        return True
    return False
