"""Spaces as JSON and back, so that a saved policy knows its environment's spaces without the environment.

A space is written as `{kind: contents}`. Texts of minigrid become a `WordSpace`, which needs no minigrid.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.tokens import tokenizer_for
from amago.hindsight import Array

Space = gym.spaces.Space[Any]


class WordSpace(gym.spaces.Space[str]):
    """Texts that policies see as the tokens of their words; rebuilt from a minigrid MissionSpace.

    Args:
        vocabulary: the words, in the order of their tokens.
        length: maximum number of words.
    """

    def __init__(self, vocabulary: list[str], length: int) -> None:
        super().__init__(dtype=str)
        self.vocabulary = vocabulary
        self.length = length


def space_as_json(space: Space) -> dict[str, Any]:
    """A space as JSON.

    Raises:
        TypeError: for a space that policies can neither observe nor act in (Sequence, Graph, ...).
    """
    if isinstance(space, gym.spaces.Dict):
        return {"dict": [[key, space_as_json(child)] for key, child in space.spaces.items()]}
    if isinstance(space, gym.spaces.Tuple):
        return {"tuple": [space_as_json(child) for child in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"box": {"shape": list(space.shape), "dtype": str(space.dtype), **bounds}}
    if isinstance(space, gym.spaces.Discrete):
        return {"discrete": {"n": int(space.n), "start": int(space.start)}}
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"multidiscrete": {**sizes, "dtype": str(space.dtype)}}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"multibinary": {"n": space.n if isinstance(space.n, int) else list(space.shape)}}
    if isinstance(space, gym.spaces.Text):
        return {
            "text": {"max_length": int(space.max_length), "charset": "".join(sorted(space.character_set))}
        }
    tokenizer = tokenizer_for(space)
    if tokenizer is None:
        raise TypeError(f"the space {space!r} cannot be written as JSON")
    return {"words": {"vocabulary": list(tokenizer.vocabulary), "length": tokenizer.length}}


def space_from_json(content: dict[str, Any]) -> Space:
    """Inverse of `space_as_json`.

    Raises:
        ValueError: for anything that it does not write.
    """
    try:
        ((kind, inner),) = content.items()
        return _READERS[kind](inner)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise ValueError(f"{str(content)[:200]} describes no space: {error}") from error


def _read_box(content: dict[str, Any]) -> Space:
    shape, dtype = tuple(content["shape"]), np.dtype(content["dtype"])
    low, high = (_array(content[name], shape, dtype) for name in ("low", "high"))
    return gym.spaces.Box(low, high, shape, dtype.type)


_READERS: dict[str, Callable[[Any], Space]] = {
    # An OrderedDict keeps the order of the keys in every release of gymnasium.
    "dict": lambda items: gym.spaces.Dict(OrderedDict((key, space_from_json(child)) for key, child in items)),
    "tuple": lambda children: gym.spaces.Tuple([space_from_json(child) for child in children]),
    "box": _read_box,
    "discrete": lambda content: gym.spaces.Discrete(content["n"], start=content["start"]),
    "multidiscrete": lambda content: gym.spaces.MultiDiscrete(
        content["nvec"], dtype=np.dtype(content["dtype"]).type, start=content["start"]
    ),
    "multibinary": lambda content: gym.spaces.MultiBinary(content["n"]),
    "text": lambda content: gym.spaces.Text(content["max_length"], charset=content["charset"]),
    "words": lambda content: WordSpace(content["vocabulary"], content["length"]),
}


def _numbers(bounds: Array) -> Any:
    """Bounds as one number if all are equal, else as nested lists; infinite ones as strings, for JSON."""
    numbers = bounds.reshape(-1).tolist()
    values = np.array([x if math.isfinite(x) else str(x) for x in numbers], object)
    return values[0] if (bounds == numbers[0]).all() else values.reshape(bounds.shape).tolist()


def _array(values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The inverse of `_numbers`."""
    numbers: Array = np.array(values, object)
    if dtype.kind == "f":
        numbers = numbers.astype(np.float64)  # reads "inf"
    filled: Array = np.broadcast_to(numbers.astype(dtype), shape).copy()
    return filled
