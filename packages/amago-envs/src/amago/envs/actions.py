"""Actions in three forms: the policy's, the recorded representation, and the environment's.

| environment's space | policy's space, its actions      | representation (float32)      | environment receives   |
|---------------------|----------------------------------|-------------------------------|------------------------|
| Discrete(n, start)  | Discrete(n): (E, 1) or (E,) int  | one-hot, A = n                | Python int, from start |
| MultiDiscrete       | MultiDiscrete, flat: (E, K) int  | one-hots in a row, A = sum(n) | array in its shape     |
| MultiBinary         | MultiBinary, flat: (E, A) 0 or 1 | zeros and ones                | int8, in its shape     |
| Box, bounded        | Box(-1, 1): (E, A) float         | the policy's values           | scaled to its bounds   |

E = environments behind one AMAGOEnv, A = width of the representation. A batched environment receives arrays with
the leading axis E, an unbatched one (E = 1) without it.

These functions run in every step on arrays of a few numbers, where numpy's cost is per call: hence
`np.count_nonzero` in place of `.any()` and `.all()`, which take ten times as long.

The wrappers at the end are for plain gymnasium environments that are used without AMAGOEnv.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.gymnasium_compat import ForwardingWrapper
from amago.hindsight import Array

Space = gym.spaces.Space[Any]


class ActionCodec(ABC):
    """Checks policy actions and converts them into the other two forms.

    `to_env` and `represent` take the result of `check`.

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
        """The action in a canonical form; raises ValueError or TypeError if it is not in `policy_space`."""

    @abstractmethod
    def to_env(self, checked: Any) -> Any:
        """The action for the environment's `step`."""

    @abstractmethod
    def represent(self, checked: Any) -> npt.NDArray[np.float32]:
        """The representation that is recorded and fed back to the policy: (E, A) float32, newly allocated."""

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
                f"action {array.tolist()} has fractions; {self.policy_space} takes whole numbers"
            )
        return array.astype(np.int64)

    def _out_of_range(self, checked: Any) -> ValueError:
        shown = checked.tolist() if isinstance(checked, np.ndarray) else checked
        return ValueError(f"action {shown} is outside the policy's action space {self.policy_space}")


class DiscreteCodec(ActionCodec):
    """One of n actions. The canonical form is an int for one environment, an int64 array (E,) for several."""

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
            # bool is a subclass of int, but as an index it would be a mask.
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
            raise ValueError(
                f"action {item!r} is not a whole number; {self.policy_space} takes whole numbers"
            )
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
    """K choices at once, the k-th out of n_k. The canonical form is an int64 array (E, K)."""

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
    """A bits. The canonical form is an int8 array (E, A) of zeros and ones."""

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
    """A numbers in [-1, 1], scaled to the bounds of the environment. The canonical form is float32 (E, A).

    Raises:
        ValueError: if a bound of the space is infinite or beyond float32.
    """

    def __init__(self, space: gym.spaces.Box, batched_envs: int) -> None:
        super().__init__(batched_envs)
        low = np.asarray(space.low, dtype=np.float64).reshape(-1)
        high = np.asarray(space.high, dtype=np.float64).reshape(-1)
        # Many environments use the largest float32 for "unbounded".
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
        # Written so that NaN fails as well.
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


class _CodecWrapper(ForwardingWrapper, gym.ActionWrapper):
    """Takes actions of the codec's policy space.

    Args:
        env: an unbatched environment.

    Raises:
        TypeError: if its action space is of another type than the wrapper's.
        ValueError: for an unbounded Box.
    """

    space_type: ClassVar[type[gym.spaces.Space[Any]]]

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not isinstance(env.action_space, self.space_type):
            raise TypeError(
                f"{type(self).__name__} is for {self.space_type.__name__} action spaces, and the environment's is "
                f"{env.action_space}"
            )
        super().__init__(env)
        self._codec = make_action_codec(env.action_space, batched_envs=1)
        self.action_space = self._codec.policy_space

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the environment; arguments are those of its own `reset`."""
        return self.env.reset(*args, **kwargs)

    def action(self, action: Any) -> Any:
        """The environment's form of a policy action; ValueError if it is outside of `action_space`."""
        return self._codec.to_env(self._codec.check(action))


class DiscreteActionWrapper(_CodecWrapper):
    """Discrete actions counted from 0, as a number or an array of one, for an environment with any `start`."""

    space_type = gym.spaces.Discrete


class ContinuousActionWrapper(_CodecWrapper):
    """A flat vector in [-1, 1], scaled to the bounds and the shape of the environment's Box."""

    space_type = gym.spaces.Box


class MultiBinaryActionWrapper(_CodecWrapper):
    """A flat vector of zeros and ones of any dtype, for an environment that takes int8 bits."""

    space_type = gym.spaces.MultiBinary
