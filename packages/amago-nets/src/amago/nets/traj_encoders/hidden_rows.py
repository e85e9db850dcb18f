"""Hidden states divided among groups of rows, and put together again, for any trajectory encoder.

Which axis of a tensor holds the rows is not told but seen, from two hidden states of the same age that are of
different numbers of rows:

    axes = hidden_row_axes(step(rows=1), step(rows=2))
    first, rest = split_hidden_state(hidden_state, axes, [4, 8])
    hidden_state = join_hidden_states([first, rest], axes)

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from amago.nets.traj_encoders.hidden_state import map_hidden_state

RowAxes = list[int | None]
"""The axis of the rows in each tensor, in the order of `map_hidden_state`; None for one that all rows share."""


def _tensors(hidden_state: Any) -> list[Tensor]:
    """All tensors of a hidden state, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_hidden_state(note, hidden_state)
    return found


def _with_tensors(hidden_state: Any, tensors: Sequence[Tensor]) -> Any:
    """The same hidden state of other tensors."""
    following = iter(tensors)
    return map_hidden_state(lambda _: next(following), hidden_state)


def hidden_row_axes(one: Any, other: Any) -> RowAxes:
    """Which axis of each tensor of a hidden state holds the rows.

    Args:
        one, other: hidden states of the same encoder after equally many steps, of different numbers of rows.

    Raises:
        TypeError: if they hold something that is neither a tensor nor a container of tensors.
        ValueError: if they are not put together alike, or differ along more than one axis of a tensor.
    """
    ones, others = _tensors(one), _tensors(other)
    if len(ones) != len(others) or any(a.dim() != b.dim() for a, b in zip(ones, others, strict=True)):
        raise ValueError(
            "the hidden states are not made of the same tensors: their number depends on the rows"
        )
    axes: RowAxes = []
    for a, b in zip(ones, others, strict=True):
        differing = [axis for axis in range(a.dim()) if a.shape[axis] != b.shape[axis]]
        if len(differing) > 1:
            raise ValueError(
                f"tensors of the hidden states have the shapes {tuple(a.shape)} and {tuple(b.shape)}: rows must "
                "lie along one axis"
            )
        axes.append(differing[0] if differing else None)
    return axes


def split_hidden_state(hidden_state: Any, axes: RowAxes, sizes: Sequence[int]) -> list[Any]:
    """Hidden states of groups of consecutive rows, in memory of their own.

    Args:
        hidden_state: of B rows; None, of an encoder that begins without one, is None for all groups.
        axes: from `hidden_row_axes`.
        sizes: rows of each group, B together.

    Raises:
        TypeError: if it holds something that is neither a tensor nor a container of tensors.
        ValueError: if its tensors are not those that `axes` tell of, or have another number of rows.
    """
    if hidden_state is None:
        return [None] * len(sizes)
    tensors = _tensors(hidden_state)
    _check(tensors, axes)
    parts: list[list[Tensor]] = []
    for tensor, axis in zip(tensors, axes, strict=True):
        if axis is None:
            parts.append([tensor] * len(sizes))
        elif tensor.shape[axis] == sum(sizes):
            parts.append(list(tensor.split(list(sizes), dim=axis)))
        else:
            raise ValueError(
                f"a tensor of the hidden state has the shape {tuple(tensor.shape)}, expected {sum(sizes)} rows "
                f"along axis {axis}"
            )
    return [
        _with_tensors(hidden_state, [p[i].clone(memory_format=torch.contiguous_format) for p in parts])
        for i in range(len(sizes))
    ]


def join_hidden_states(hidden_states: Sequence[Any], axes: RowAxes) -> Any:
    """The hidden state of all rows of several groups, in memory of its own; undoes `split_hidden_state`.

    Plain numbers in it, and tensors that all rows share, are those of the first group.

    Args:
        hidden_states: of the groups, in order and after equally many steps.
        axes: from `hidden_row_axes`.

    Raises:
        TypeError: if they hold something that is neither a tensor nor a container of tensors.
        ValueError: if their tensors are not those that `axes` tell of.
    """
    if all(hidden_state is None for hidden_state in hidden_states):
        return None
    groups = [_tensors(hidden_state) for hidden_state in hidden_states]
    for tensors in groups:
        _check(tensors, axes)
    joined = [
        group[0].clone() if axis is None else torch.cat(group, dim=axis)
        for group, axis in zip(zip(*groups, strict=True), axes, strict=True)
    ]
    return _with_tensors(hidden_states[0], joined)


def _check(tensors: Sequence[Tensor], axes: RowAxes) -> None:
    enough = len(tensors) == len(axes)
    if not enough or any(axis is not None and axis >= t.dim() for t, axis in zip(tensors, axes, strict=True)):
        raise ValueError(
            f"the hidden state has tensors of the shapes {[tuple(t.shape) for t in tensors]}, expected "
            f"{len(axes)} with their rows along the axes {axes}"
        )
