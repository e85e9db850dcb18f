"""Hidden states divided among groups of rows, and put together again, for any trajectory encoder.

Which axis of a tensor holds the rows is not told but seen, from hidden states of the same age of different numbers
of rows:

    axes = hidden_row_axes({rows: step(rows) for rows in (1, 2, 4, 8)})
    first, rest = split_hidden_state(hidden_state, axes, [4, 8])
    hidden_state = join_hidden_states([first, rest], axes)

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from amago.nets.traj_encoders.hidden_state import hidden_state_dict, map_hidden_state

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


def hidden_row_axes(states: Mapping[int, Any]) -> RowAxes:
    """Which axis of each tensor of a hidden state holds the rows.

    Args:
        states: by number of rows, hidden states of the same encoder after equally many steps; at least two, and
            best of all numbers that there will be.

    Raises:
        TypeError: if they hold something that is neither a tensor nor a container of tensors.
        ValueError: if the rows do not lie along one axis of each tensor that depends on their number, or if
            something else does: which tensors there are, or a plain number.
    """
    if len(states) < 2:
        raise ValueError(f"states are of {sorted(states)} rows, must be of at least two numbers of rows")
    tensors = {rows: _tensors(state) for rows, state in states.items()}
    if len({tuple(tensor.dim() for tensor in found) for found in tensors.values()}) > 1:
        raise ValueError("the hidden states are not made of the same tensors: which ones depends on the rows")
    if len({tuple(_plain_numbers(state)) for state in states.values()}) > 1:
        raise ValueError(
            "the hidden states hold plain numbers that depend on the rows: keep them in a tensor"
        )
    shapes_of_each = zip(*([tensor.shape for tensor in found] for found in tensors.values()), strict=True)
    return [_row_axis(dict(zip(tensors, shapes, strict=True))) for shapes in shapes_of_each]


def _row_axis(shapes: Mapping[int, torch.Size]) -> int | None:
    """The axis along which a tensor that has these shapes, by number of rows, holds the rows."""
    sizes = list(zip(*shapes.values(), strict=True))
    differing = [axis for axis, along in enumerate(sizes) if len(set(along)) > 1]
    if not differing:
        return None
    if len(differing) > 1 or sizes[differing[0]] != tuple(shapes):
        raise ValueError(
            f"a tensor of the hidden state has the shapes {[tuple(shape) for shape in shapes.values()]} for "
            f"{list(shapes)} rows: they must lie along one axis, as long as there are rows"
        )
    return differing[0]


def _plain_numbers(hidden_state: Any) -> list[tuple[str, float]]:
    """Everything that is no tensor, by name."""
    return [
        (name, tensor.item())
        for name, tensor in hidden_state_dict(hidden_state).items()
        if name.endswith(("=bool", "=int", "=float"))
    ]


def split_hidden_state(hidden_state: Any, axes: RowAxes, sizes: Sequence[int]) -> list[Any]:
    """Hidden states of groups of consecutive rows, in memory of their own.

    Args:
        hidden_state: of B rows; one without tensors, of an encoder that begins with none, is that of all groups.
        axes: from `hidden_row_axes`.
        sizes: rows of each group, B together.

    Raises:
        TypeError: if it holds something that is neither a tensor nor a container of tensors.
        ValueError: if its tensors are not those that `axes` tell of, or have another number of rows.
    """
    tensors = _tensors(hidden_state)
    if not tensors:
        return [_with_tensors(hidden_state, []) for _ in sizes]
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
    groups = [_tensors(hidden_state) for hidden_state in hidden_states]
    if not any(groups):
        return _with_tensors(hidden_states[0], [])
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
