"""Actions, in the three forms they take: what the policy gives, what is recorded, what the environment takes.

| environment's space | policy's space, its actions      | representation (float32)      | environment receives   |
|---------------------|----------------------------------|-------------------------------|------------------------|
| Discrete(n, start)  | Discrete(n): (E, 1) or (E,) int  | one-hot, A = n                | Python int, from start |
| MultiDiscrete       | MultiDiscrete, flat: (E, K) int  | one-hots in a row, A = sum(n) | array in its shape     |
| MultiBinary         | MultiBinary, flat: (E, A) 0 or 1 | zeros and ones                | int8, in its shape     |
| Box, bounded        | Box(-1, 1): (E, A) float         | the policy's values           | scaled to its bounds   |

E = environments behind one AMAGOEnv, A = width of the representation. A batched environment receives arrays with
the leading axis E, an unbatched one (E = 1) without it.

This is on the path of every step, with arrays of a few numbers, where numpy's cost is per call: hence
`np.count_nonzero` in place of `.any()` and `.all()`, which take ten times as long there.
"""

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.hindsight.timestep import Array

Space = gym.spaces.Space[Any]


class ActionCodec(ABC):
    """Checks policy actions and turns them into the other two forms.

    `check` comes first; what it returns goes into `to_env` and `represent`.

    Attributes:
        policy_space: the space that the policy acts in.
        width: A.
    """

    policy_space: Space
    width: int

    def __init__(self, batched_envs: int) -> None:
        self.batched_envs = batched_envs

    @abstractmethod
    def check(self, action: Any) -> Any:
        """The action in a plain form; raises ValueError or TypeError that says what is wrong with it."""

    @abstractmethod
    def to_env(self, checked: Any) -> Any:
        """What the environment's `step` receives."""

    @abstractmethod
    def represent(self, checked: Any) -> npt.NDArray[np.float32]:
        """What is recorded and fed back to the policy: (E, A) float32, freshly allocated."""

    def _rows(self, action: Any, width: int) -> Array:
        array = np.asarray(action)
        if array.shape == (self.batched_envs, width) and array.dtype.kind in "fiub":
            return array
        if array.size != self.batched_envs * width or array.dtype.kind not in "fiub":
            raise ValueError(
                f"action has shape {array.shape}; {self.policy_space} takes shape "
                f"({self.batched_envs}, {width}), one row for each environment"
            )
        return array.reshape(self.batched_envs, width)

    def _whole_numbers(self, array: Array) -> npt.NDArray[np.int64]:
        if array.dtype.kind in "iub":
            return array.astype(np.int64, copy=False)
        if not np.array_equal(np.rint(array), array):
            raise ValueError(
                f"action {array.tolist()} is not made of whole numbers, which {self.policy_space} takes"
            )
        return array.astype(np.int64)

    def _out_of_range(self, checked: Any) -> ValueError:
        shown = checked.tolist() if isinstance(checked, np.ndarray) else checked
        return ValueError(f"action {shown} is outside of the policy's action space {self.policy_space}")


class DiscreteCodec(ActionCodec):
    """One of n actions. The plain form is a Python int for one environment and an int64 array (E,) for several."""

    def __init__(self, space: gym.spaces.Discrete, batched_envs: int) -> None:
        super().__init__(batched_envs)
        self.width = int(space.n)
        self.start = int(space.start)
        self.policy_space = gym.spaces.Discrete(self.width)
        self._row_numbers = np.arange(batched_envs)

    def check(self, action: Any) -> int | npt.NDArray[np.int64]:
        if self.batched_envs == 1:
            try:
                item = action.item()
            except (AttributeError, ValueError):
                item = self._rows(action, 1).item()
            # True and False are ints as well, but as an index they would mark all choices or none.
            index = int(item) if isinstance(item, int) else self._whole_number(item)
            if not 0 <= index < self.width:
                raise self._out_of_range(index)
            return index
        indices = self._whole_numbers(self._rows(action, 1)).reshape(-1)
        if indices.min() < 0 or indices.max() >= self.width:
            raise self._out_of_range(indices)
        return indices

    def _whole_number(self, item: Any) -> int:
        if not isinstance(item, float) or not item.is_integer():
            raise ValueError(f"action {item!r} is not a whole number, which {self.policy_space} takes")
        return int(item)

    def to_env(self, checked: Any) -> Any:
        return checked + self.start

    def represent(self, checked: Any) -> npt.NDArray[np.float32]:
        one_hot = np.zeros((self.batched_envs, self.width), dtype=np.float32)
        if self.batched_envs == 1:
            one_hot[0, checked] = 1.0
        else:
            one_hot[self._row_numbers, checked] = 1.0
        return one_hot


class MultiDiscreteCodec(ActionCodec):
    """K choices at once, the k-th out of n_k. The plain form is an int64 array (E, K)."""

    def __init__(self, space: gym.spaces.MultiDiscrete, batched_envs: int) -> None:
        super().__init__(batched_envs)
        self.sizes = np.asarray(space.nvec, dtype=np.int64).reshape(-1)
        self.start = np.asarray(space.start, dtype=np.int64).reshape(-1)
        self.width = int(self.sizes.sum())
        self.policy_space = gym.spaces.MultiDiscrete(self.sizes)
        self._env_shape = tuple(space.nvec.shape)
        self._env_dtype = space.dtype
        self._offsets = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        self._row_numbers = np.arange(batched_envs)[:, None]

    def check(self, action: Any) -> npt.NDArray[np.int64]:
        choices = self._whole_numbers(self._rows(action, len(self.sizes)))
        if np.count_nonzero((choices < 0) | (choices >= self.sizes)):
            raise self._out_of_range(choices)
        return choices

    def to_env(self, checked: Any) -> Any:
        return _with_env_shape(
            (checked + self.start).astype(self._env_dtype), self._env_shape, self.batched_envs
        )

    def represent(self, checked: Any) -> npt.NDArray[np.float32]:
        one_hots = np.zeros((self.batched_envs, self.width), dtype=np.float32)
        one_hots[self._row_numbers, checked + self._offsets] = 1.0
        return one_hots


class MultiBinaryCodec(ActionCodec):
    """A bits. The plain form is an int8 array (E, A) of zeros and ones."""

    def __init__(self, space: gym.spaces.MultiBinary, batched_envs: int) -> None:
        super().__init__(batched_envs)
        self._env_shape = tuple(space.shape)
        self.width = int(np.prod(self._env_shape))
        self.policy_space = gym.spaces.MultiBinary(self.width)

    def check(self, action: Any) -> npt.NDArray[np.int8]:
        bits = self._whole_numbers(self._rows(action, self.width))
        if np.count_nonzero(bits & ~1):
            raise self._out_of_range(bits)
        return bits.astype(np.int8)

    def to_env(self, checked: Any) -> Any:
        return _with_env_shape(checked.copy(), self._env_shape, self.batched_envs)

    def represent(self, checked: Any) -> npt.NDArray[np.float32]:
        bits: npt.NDArray[np.float32] = checked.astype(np.float32)
        return bits


class BoxCodec(ActionCodec):
    """A numbers in [-1, 1], scaled to the bounds of the environment. The plain form is float32 (E, A).

    Raises:
        ValueError: if a bound of the space is infinite, or so far from the other that float64 cannot scale to it.
    """

    def __init__(self, space: gym.spaces.Box, batched_envs: int) -> None:
        super().__init__(batched_envs)
        low = np.asarray(space.low, dtype=np.float64).reshape(-1)
        high = np.asarray(space.high, dtype=np.float64).reshape(-1)
        # The largest float32 stands for "no bound" in many environments.
        unbounded = ~(np.abs(low) < np.finfo(np.float32).max) | ~(np.abs(high) < np.finfo(np.float32).max)
        if unbounded.any():
            raise ValueError(
                f"the action space {space} is unbounded in {int(unbounded.sum())} of {low.size} dimensions, so "
                "actions in [-1, 1] cannot be scaled to it: give it finite bounds, e.g. with a "
                "gymnasium.ActionWrapper whose action_space is a bounded Box"
            )
        self.width = int(low.size)
        self.policy_space = gym.spaces.Box(-1.0, 1.0, (self.width,), np.float32)
        self._env_shape = tuple(space.shape)
        self._env_dtype = np.dtype(space.dtype)
        self._low, self._high = low, high
        self._half_range = high / 2.0 - low / 2.0
        self._scales_nothing = self._env_dtype == np.float32 and bool(
            (low == -1.0).all() and (high == 1.0).all()
        )

    def check(self, action: Any) -> npt.NDArray[np.float32]:
        array = self._rows(action, self.width)
        # Counted so that NaN fails as well.
        if np.count_nonzero(np.abs(array) <= 1.0) != array.size:
            raise self._out_of_range(array)
        return array.astype(np.float32, copy=False)

    def to_env(self, checked: Any) -> Any:
        if self._scales_nothing:
            scaled = checked.copy()
        else:
            scaled = np.add(checked, 1.0, dtype=np.float64)
            scaled *= self._half_range
            scaled += self._low
            if self._env_dtype.kind in "iu":
                np.rint(scaled, out=scaled)
            # Rounding can pass the upper bound by a unit in the last place; the lower one is met exactly.
            scaled = np.minimum(scaled, self._high).astype(self._env_dtype)
        return _with_env_shape(scaled, self._env_shape, self.batched_envs)

    def represent(self, checked: Any) -> npt.NDArray[np.float32]:
        copied: npt.NDArray[np.float32] = checked.copy()
        return copied


def _with_env_shape(rows: Array, shape: tuple[int, ...], batched_envs: int) -> Array:
    return rows.reshape(shape) if batched_envs == 1 else rows.reshape(batched_envs, *shape)


def make_action_codec(space: Space, batched_envs: int) -> ActionCodec:
    """The codec of an environment's action space.

    Raises:
        ValueError: for an unbounded Box.
        TypeError: for a space that policies cannot act in (Dict, Tuple, Text, ...).
    """
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteCodec(space, batched_envs)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiDiscreteCodec(space, batched_envs)
    if isinstance(space, gym.spaces.MultiBinary):
        return MultiBinaryCodec(space, batched_envs)
    if isinstance(space, gym.spaces.Box):
        return BoxCodec(space, batched_envs)
    raise TypeError(
        f"the action space {space} is not supported: it must be Discrete, MultiDiscrete, MultiBinary or a bounded "
        "Box. A gymnasium.ActionWrapper can flatten a Dict or Tuple into one of them"
    )
