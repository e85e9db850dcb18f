"""For `check_env`: mismatches of an observation and its space, copies and comparisons of nested values."""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from amago.hindsight import Array

Space = gym.spaces.Space[Any]


def space_mismatches(space: Space, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (subject, message) for each part of an observation that is not in its space."""
    subject = f"observation {path!r}" if path else "observation"
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping):
            yield subject, f"is a {type(value).__name__}: return a dictionary, as its space is a Dict"
            return
        for key in value.keys() - space.spaces.keys():
            yield (
                subject,
                f"has the key {key!r}, which its space lacks: add it to the space, or the agent does not see it",
            )
        for key, child in space.spaces.items():
            if key in value:
                yield from space_mismatches(child, value[key], f"{path}/{key}" if path else str(key))
            else:
                yield subject, f"lacks the key {key!r} of its space: return it in every observation"
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            yield (
                subject,
                f"is {describe_result(value)}: return a tuple of {len(space.spaces)}, as its space says",
            )
            return
        for index, (child, each) in enumerate(zip(space.spaces, value, strict=True)):
            yield from space_mismatches(child, each, f"{path}/{index}" if path else str(index))
    elif isinstance(space, gym.spaces.Box):
        yield from ((subject, message) for message in _box_mismatches(space, value))
    elif not space.contains(value):
        yield subject, f"is not in its space {space}: got {value!r}"


def _box_mismatches(box: gym.spaces.Box, value: Any) -> Iterator[str]:
    if not isinstance(value, (np.ndarray, np.generic)):
        yield f"is a {type(value).__name__}: return a numpy array of {box.dtype}"
    try:
        array = np.asarray(value)
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        yield f"holds no numbers: got {value!r}"
        return
    if array.shape != box.shape:
        yield f"has shape {array.shape}: its space says {box.shape}"
        return
    if array.dtype != box.dtype and isinstance(value, (np.ndarray, np.generic)):
        yield f"has dtype {array.dtype}: its space says {box.dtype}; convert one of them"
    if np.isnan(numbers).any():
        yield f"holds NaN: at {_first(np.isnan(numbers))}"
    elif np.isinf(numbers).any() and not (np.isinf(box.low).any() or np.isinf(box.high).any()):
        yield f"holds infinity: at {_first(np.isinf(numbers))}"
    outside = (numbers < box.low) | (numbers > box.high)
    if outside.any():
        where = _first(outside)
        low, high = box.low[where], box.high[where]
        found = f"{numbers[where]:.6g} at {where}, bounds [{low:.6g}, {high:.6g}]"
        yield f"is outside the bounds of its space: {found}"


def _first(mask: Array) -> tuple[int, ...]:
    """The index of the first true element."""
    return tuple(int(i) for i in np.argwhere(mask)[0]) if mask.shape else ()


def describe_result(value: Any) -> str:
    """What a method returned, for messages: "a dict", "4 results"."""
    return f"{len(value)} results" if isinstance(value, tuple) else f"a {type(value).__name__}"


def copy_nest(value: Any) -> Any:
    """A copy of a nest of arrays and numbers, with lists for tuples."""
    if isinstance(value, Mapping):
        return {key: copy_nest(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [copy_nest(each) for each in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def equal_nests(first: Any, second: Any) -> bool:
    """Whether two nests of arrays and numbers are equal; NaN equals NaN."""
    if isinstance(first, Mapping):
        return (
            isinstance(second, Mapping)
            and first.keys() == second.keys()
            and all(equal_nests(first[key], second[key]) for key in first)
        )
    if isinstance(first, (tuple, list)):
        return (
            isinstance(second, (tuple, list))
            and len(first) == len(second)
            and all(equal_nests(a, b) for a, b in zip(first, second, strict=True))
        )
    a, b = np.asarray(first), np.asarray(second)
    if a.dtype.kind in "fc":
        return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.array_equal(a, b))
