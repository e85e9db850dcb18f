"""Observations: any observation space mapped to a flat dict of arrays, the form of policies and buffers.

Nested Dicts join their keys with "/", Tuples use "0", "1", ..., and anything else is called "observation".
Discrete and MultiDiscrete observations become one-hot float32; texts become tokens (`amago.envs.tokens`); arrays
keep their dtype.

E = environments behind one AMAGOEnv.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.tokens import Tokenizer, tokenizer_for
from amago.hindsight import Array

Space = gym.spaces.Space[Any]
DEFAULT_KEY = "observation"


class ObservationMapper:
    """Maps an environment's observations to `{key: (E, *shape) array}` that shares no memory with them.

    Args:
        space: the observation space of one environment.
        batched_envs: E; observations carry the leading axis E if it is more than 1.
        edits: the keys of the result, if they differ from those of `space`: None keeps the entry of `space`, a
            space adds or replaces one. Added entries are looked up in the observation, which must then be a dict
            (with the key "observation" for what `space` describes, unless that is a dict itself).

    Attributes:
        space: the flat Dict of Boxes of the result, without the axis E.

    Raises:
        TypeError: for a space without a fixed shape (Sequence, Graph, ...).
        ValueError: if two leaves of the space get the same key.
    """

    def __init__(
        self, space: Space, batched_envs: int, edits: Mapping[str, Space | None] | None = None
    ) -> None:
        named = _named_leaves(space)
        found = _edited(named, edits)
        if not found:
            raise ValueError(f"the observation space {space} is empty; it needs at least one array")
        self._leaves: list[tuple[str, tuple[Any, ...], Any]] = [
            (key, path, _make_leaf(key, leaf_space, batched_envs))
            for key, (path, leaf_space) in found.items()
        ]
        self.space = gym.spaces.Dict({key: leaf.box for key, _, leaf in self._leaves})
        self._adds_keys = _is_unnested(named) and all(path for path, _ in found.values())
        # Dict sorts its keys in some releases; files and shared memory need one order.
        self._leaves.sort(key=lambda leaf: list(self.space.spaces).index(leaf[0]))

    def __call__(self, observation: Any, skip_missing: bool = False) -> dict[str, Array]:
        """Maps one observation.

        Args:
            observation: in the form of the space.
            skip_missing: leave out what the observation lacks.

        Raises:
            ValueError: if an array has another shape than the space says, or values that its dtype cannot hold.
            KeyError, IndexError: if a leaf of the observation is missing.
        """
        arrays: dict[str, Array] = {}
        if skip_missing and self._adds_keys and not isinstance(observation, dict):
            observation = {DEFAULT_KEY: observation}
        for key, path, leaf in self._leaves:
            value = observation
            try:
                for step in path:
                    value = value[step]
            except (KeyError, IndexError):
                if skip_missing:
                    continue
                raise
            arrays[key] = leaf(value)
        return arrays

    def into(self, targets: Mapping[str, Array]) -> Callable[[Any], None]:
        """A function that maps an observation into `targets`, arrays (E, *shape) by key."""
        if len(self._leaves) == 1 and not self._leaves[0][1]:
            key, _, only_leaf = self._leaves[0]
            write_only: Callable[[Any], None] = only_leaf.into(targets[key])
            return write_only
        writers = [(path, leaf.into(targets[key])) for key, path, leaf in self._leaves]

        def write(observation: Any) -> None:
            for path, write_leaf in writers:
                value = observation
                for step in path:
                    value = value[step]
                write_leaf(value)

        return write


def _flatten(space: Space, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Space]]:
    if isinstance(space, gym.spaces.Dict):
        return [leaf for key, child in space.spaces.items() for leaf in _flatten(child, (*path, key))]
    if isinstance(space, gym.spaces.Tuple):
        return [leaf for index, child in enumerate(space.spaces) for leaf in _flatten(child, (*path, index))]
    return [(path, space)]


def _named_leaves(space: Space) -> dict[str, tuple[tuple[Any, ...], Space]]:
    """The path and the space of every leaf, by key."""
    leaves: dict[str, tuple[tuple[Any, ...], Space]] = {}
    for path, leaf_space in _flatten(space):
        key = "/".join(str(step) for step in path) or DEFAULT_KEY
        if key in leaves:
            raise ValueError(f"two leaves of the observation space get the key {key!r}; rename one: {space}")
        leaves[key] = (path, leaf_space)
    return leaves


def _edited(
    leaves: dict[str, tuple[tuple[Any, ...], Space]], edits: Mapping[str, Space | None] | None
) -> dict[str, tuple[tuple[Any, ...], Space]]:
    """The leaves that `edits` keep, replace or add, see `ObservationMapper`."""
    if edits is None:
        return leaves
    is_whole = _is_unnested(leaves) and set(edits) == {DEFAULT_KEY}
    becomes_dict = _is_unnested(leaves) and not is_whole
    edited: dict[str, tuple[tuple[Any, ...], Space]] = {}
    for key, space in edits.items():
        if space is None:
            path, own_space = leaves[key]
            edited[key] = ((key,) if becomes_dict else path, own_space)
        else:
            for path, leaf_space in _flatten(space, () if is_whole else (key,)):
                edited["/".join(map(str, path)) or DEFAULT_KEY] = (path, leaf_space)
    return edited


def _is_unnested(leaves: Mapping[str, tuple[tuple[Any, ...], Space]]) -> bool:
    """Whether the space is neither a Dict nor a Tuple: an added key makes its observations entries of dicts."""
    return DEFAULT_KEY in leaves and leaves[DEFAULT_KEY][0] == ()


class _Leaf:
    """One array of an observation, copied into the dtype of its space."""

    def __init__(self, key: str, box: gym.spaces.Box, batched_envs: int, shape: tuple[int, ...]) -> None:
        self.key = key
        self.box = box
        self._dtype = np.dtype(box.dtype)
        self._value_shape = shape if batched_envs == 1 else (batched_envs, *shape)
        self._shape = (batched_envs, *box.shape)

    def __call__(self, value: Any) -> Array:
        copied = np.empty(self._shape, dtype=self._dtype)
        self.into(copied)(value)
        return copied

    def into(self, target: Array) -> Callable[[Any], None]:
        """A function that copies a value into `target` (E, *shape)."""
        rows = target.reshape(self._value_shape)  # a view, as it only drops or adds axes of length 1
        shape, dtype = self._value_shape, self._dtype

        def write(value: Any) -> None:
            array = value if type(value) is np.ndarray else np.asarray(_unwrapped(value))
            if array.shape != shape:
                raise ValueError(
                    f"observation {self.key!r} has shape {array.shape}, and its space says {shape}; "
                    "correct the environment's observation_space or what it returns"
                )
            if array.dtype is not dtype and array.dtype != dtype:
                self._check_values(array)
            rows[...] = array

        return write

    def _check_values(self, array: Array) -> None:
        if (
            np.can_cast(array.dtype, self._dtype, casting="same_kind")
            and array.dtype.kind == self._dtype.kind == "f"
        ):
            return
        if not np.array_equal(array.astype(self._dtype), array):
            raise ValueError(
                f"observation {self.key!r} has dtype {array.dtype} and values that {self._dtype}, the dtype of "
                "its space, cannot hold; correct the environment's observation_space"
            )


def _unwrapped(value: Any) -> Any:
    """The value of a leaf; a subclass may return `{"observation": value}` for a space that is not a dict."""
    return value[DEFAULT_KEY] if type(value) is dict and DEFAULT_KEY in value else value


class _OneHotLeaf:
    """One or several discrete values as one-hots in a row, float32."""

    def __init__(self, key: str, sizes: Array, start: Array, batched_envs: int) -> None:
        self.key = key
        self._sizes = np.asarray(sizes, dtype=np.int64).reshape(-1)
        self._start = np.asarray(start, dtype=np.int64).reshape(-1)
        self.box = gym.spaces.Box(0.0, 1.0, (int(self._sizes.sum()),), np.float32)
        self._batched_envs = batched_envs
        self._offsets = np.concatenate(([0], np.cumsum(self._sizes)[:-1]))
        self._row_numbers = np.arange(batched_envs)[:, None]

    def __call__(self, value: Any) -> Array:
        array = np.asarray(_unwrapped(value))
        if array.size != self._batched_envs * self._sizes.size:
            raise ValueError(
                f"observation {self.key!r} has shape {array.shape}; its space holds {self._sizes.size} discrete "
                f"value(s) for each of {self._batched_envs} environment(s)"
            )
        values = array.reshape(self._batched_envs, -1).astype(np.int64) - self._start
        if (values < 0).any() or (values >= self._sizes).any():
            raise ValueError(f"observation {self.key!r} is {array.tolist()}, outside its discrete space")
        one_hots = np.zeros((self._batched_envs, *self.box.shape), dtype=np.float32)
        one_hots[self._row_numbers, values + self._offsets] = 1.0
        return one_hots

    def into(self, target: Array) -> Callable[[Any], None]:
        """A function that writes a value's one-hots into `target` (E, *shape)."""

        def write(value: Any) -> None:
            target[...] = self(value)

        return write


class _TextLeaf:
    """Texts as tokens in a row, uint8 if the vocabulary allows, else int32."""

    def __init__(self, key: str, tokenizer: Tokenizer, batched_envs: int) -> None:
        self.key = key
        self._tokenizer = tokenizer
        self._batched_envs = batched_envs
        dtype: Any = np.uint8 if tokenizer.highest <= np.iinfo(np.uint8).max else np.int32
        self.box = gym.spaces.Box(0, tokenizer.highest, (tokenizer.length,), dtype)

    def __call__(self, value: Any) -> Array:
        value = _unwrapped(value)
        texts = [value] if self._batched_envs == 1 else list(value)
        if len(texts) != self._batched_envs:
            raise ValueError(
                f"observation {self.key!r} has {len(texts)} texts for {self._batched_envs} environments"
            )
        return np.array([self._tokenizer(text) for text in texts], dtype=self.box.dtype)

    def into(self, target: Array) -> Callable[[Any], None]:
        """A function that writes the tokens of a text, or of E texts, into `target` (E, K)."""

        def write(value: Any) -> None:
            target[...] = self(value)

        return write


def _make_leaf(key: str, space: Space, batched_envs: int) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return _OneHotLeaf(key, np.array([space.n]), np.array([space.start]), batched_envs)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _OneHotLeaf(key, space.nvec, space.start, batched_envs)
    if isinstance(space, gym.spaces.MultiBinary):
        return _Leaf(key, gym.spaces.Box(0, 1, space.shape, np.int8), batched_envs, tuple(space.shape))
    if isinstance(space, gym.spaces.Box):
        # A scalar becomes a one-element vector, because networks concatenate along the last axis.
        box = (
            space
            if space.shape
            else gym.spaces.Box(space.low.reshape(1), space.high.reshape(1), (1,), space.dtype)
        )
        return _Leaf(key, box, batched_envs, tuple(space.shape))
    tokenizer = tokenizer_for(space)
    if tokenizer is not None:
        return _TextLeaf(key, tokenizer, batched_envs)
    raise TypeError(
        f"observation {key!r} has the space {space}, which has no fixed shape: observation spaces may be Box, "
        "Discrete, MultiDiscrete, MultiBinary and Text, in any nesting of Dict and Tuple. An ObservationWrapper "
        "can convert others"
    )


def space_convert(gym_space: Any) -> Space:
    """A gymnasium space equal to one of the older gym library, or of any library with the same class names.

    A gymnasium space is returned unchanged. Only class names and attributes are used, so gym need not be
    installed.

    Raises:
        TypeError: for a space of another kind.
    """
    if isinstance(gym_space, gym.spaces.Space):
        return gym_space
    convert = _CONVERTERS.get(type(gym_space).__name__)
    if convert is None:
        raise TypeError(
            f"cannot convert {gym_space!r} of type {type(gym_space).__name__}; known: {[*_CONVERTERS]}"
        )
    return convert(gym_space)


def _members(container: Any) -> Any:
    return getattr(container, "spaces", container)


def _convert_dict(space: Any) -> Space:
    members: Mapping[str, Any] = _members(space)
    return gym.spaces.Dict({key: space_convert(child) for key, child in members.items()})


def _convert_tuple(space: Any) -> Space:
    members: Sequence[Any] = _members(space)
    return gym.spaces.Tuple([space_convert(child) for child in members])


_CONVERTERS: dict[str, Callable[[Any], Space]] = {
    "Box": lambda space: gym.spaces.Box(space.low, space.high, tuple(space.shape), space.dtype),
    "Discrete": lambda space: gym.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0))),
    "MultiDiscrete": lambda space: gym.spaces.MultiDiscrete(space.nvec, start=getattr(space, "start", None)),
    "MultiBinary": lambda space: gym.spaces.MultiBinary(space.n),
    "Dict": _convert_dict,
    "Tuple": _convert_tuple,
}


def extend_box_obs_space_by(space: gym.spaces.Box, by: int, low: float, high: float) -> gym.spaces.Box:
    """A vector Box with `by` more numbers at its end, each in [low, high], and the same dtype.

    Raises:
        ValueError: if the space is not a vector, or `by` is negative.
    """
    if len(space.shape) != 1:
        raise ValueError(f"space has shape {space.shape}; only a vector, of shape (n,), can be extended")
    if by < 0:
        raise ValueError(f"by is {by}; it counts the new numbers and must be at least 0")
    dtype: Any = space.dtype
    return gym.spaces.Box(
        low=np.concatenate((space.low, np.full(by, low, dtype=dtype))),
        high=np.concatenate((space.high, np.full(by, high, dtype=dtype))),
        dtype=dtype,
    )
