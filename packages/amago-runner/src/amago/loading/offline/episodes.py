"""Splits arrays of observations, actions and rewards into trajectories.

Row t holds an observation, the action taken there, and the reward that followed. A trajectory of T
transitions needs T + 1 observations. The final observation of an episode is

- the last of its `next_observations`, if these are given;
- the last observation, if there is one more than actions (a single episode, as Minari stores it);
- otherwise, for an episode that terminated, its last observation repeated: its value is never used. An
  episode that was truncated, or ends with the data, loses its last transition, and that observation becomes
  the final one.

N = rows, T = transitions of an episode, A = width of the action representation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.actions import make_action_codec
from amago.envs.observations import DEFAULT_KEY, ObservationMapper
from amago.hindsight import FrozenTraj

Array = npt.NDArray[Any]

_ACTION_TOLERANCE = 1e-3  # for files in half precision, and bounds that were rounded
_TERMINALS = ("terminals", "terminations")
_TIMEOUTS = ("timeouts", "truncations")


def episodes_from_arrays(
    arrays: Mapping[str, Any],
    action_space: gym.Space[Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
) -> Iterator[FrozenTraj]:
    """Splits arrays into one trajectory per episode, ending where `terminals` or `timeouts` is true or the
    data ends.

    `rl2s` are the rewards and actions of the previous step, zeros first. Only `terminals` are stored as `dones`.

    Args:
        arrays: arrays, or objects that can be sliced, by name: `observations` (N, ...), an array or a mapping
            of arrays; `actions` (N, ...), `rewards` (N,), and at least one of `terminals` (N,), also called
            `terminations`, and `timeouts` (N,), also called `truncations`. Optionally `next_observations`, as
            `observations`. `observations` may have N + 1 rows if there is one episode. Other names are
            ignored.
        action_space: the environment's action space; None if `actions` (N, A) are one-hot or in [-1, 1].
        observation_space: converts observations like `AMAGOEnv` does (one-hot for Discrete, flat keys); None keeps
            arrays as they are and joins the keys of mappings with "/".

    Yields:
        One trajectory per episode that has a transition.

    Raises:
        ValueError: naming the array, if something is missing or shapes do not fit.
    """
    rows = _Rows(arrays)
    start = 0
    for stop in rows.ends:
        obs, transitions = rows.episode_observations(start, stop)
        if transitions:
            end = start + transitions
            if observation_space is not None:
                obs = ObservationMapper(observation_space, transitions + 1)(rows.nested(obs))
            actions = represent_actions(rows.actions[start:end], action_space)
            rewards = rows.rewards[start:end, None]
            rl2s = np.zeros((transitions + 1, 1 + actions.shape[1]), np.float32)
            rl2s[1:] = np.concatenate([rewards, actions], axis=1)
            yield FrozenTraj(
                obs=obs,
                rl2s=rl2s,
                time_idxs=np.arange(transitions + 1)[:, None],
                rews=rewards,
                dones=rows.terminals[start:end, None],
                actions=actions,
            )
        start = stop


class _Rows:
    """Checked arrays. Flags and rewards are in memory, the others are read in slices."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.rewards = _vector("rewards", _required(arrays, "rewards"), np.float32)
        count = len(self.rewards)
        if count == 0:
            raise ValueError("rewards is empty: there is no transition")
        terminals, timeouts = _either(arrays, _TERMINALS), _either(arrays, _TIMEOUTS)
        if terminals is None and timeouts is None:
            raise ValueError(
                "there are neither terminals nor timeouts, so the ends of episodes are unknown; "
                f"the names are {sorted(arrays)}"
            )
        self.terminals = np.zeros(count, np.bool_)
        cut_off = np.zeros(count, np.bool_)
        if terminals is not None:
            self.terminals = _vector("terminals", terminals, np.bool_)
        if timeouts is not None:
            cut_off = _vector("timeouts", timeouts, np.bool_)
        self.actions = _required(arrays, "actions")
        self._tree = _required(arrays, "observations")
        self._obs = _leaves("observations", self._tree)
        following = arrays.get("next_observations")
        self._next_obs = None if following is None else _leaves("next_observations", following)
        for key, array in self._obs.items():
            _check_numbers(f"observations {key!r}", array)
        for name, array in (
            ("terminals", self.terminals),
            ("timeouts", cut_off),
            ("actions", self.actions),
        ):
            _check_rows(name, array, count)
        for key, array in (self._next_obs or {}).items():
            _check_rows(f"next_observations {key!r}", array, count)
        if self._next_obs is not None and self._next_obs.keys() != self._obs.keys():
            raise ValueError(
                f"observations have the keys {sorted(self._obs)}, next_observations {sorted(self._next_obs)}"
            )
        self.ends = (np.flatnonzero(self.terminals | cut_off) + 1).tolist()
        if not self.ends or self.ends[-1] != count:
            self.ends.append(count)
        self._has_final = all(len(array) == count + 1 for array in self._obs.values())
        if self._has_final and len(self.ends) > 1:
            raise ValueError(
                f"observations have {count + 1} rows and rewards {count}, as if there were one episode, but an "
                f"episode ends at row {self.ends[0] - 1}: give one mapping per episode, or next_observations"
            )
        if not self._has_final:
            for key, array in self._obs.items():
                _check_rows(f"observations {key!r}", array, count)

    def episode_observations(self, start: int, stop: int) -> tuple[dict[str, Array], int]:
        """T + 1 observations of the episode in rows [start, stop) by key, and T."""
        if self._has_final:
            return {
                key: np.asarray(array[start : stop + 1]) for key, array in self._obs.items()
            }, stop - start
        own = {key: np.asarray(array[start:stop]) for key, array in self._obs.items()}
        if self._next_obs is not None:
            return {key: self._with_next(key, own[key], start, stop) for key in own}, stop - start
        if not self.terminals[stop - 1]:
            return own, stop - start - 1
        return {key: np.concatenate([array, array[-1:]]) for key, array in own.items()}, stop - start

    def _with_next(self, key: str, own: Array, start: int, stop: int) -> Array:
        assert self._next_obs is not None
        following = np.asarray(self._next_obs[key][start:stop])
        if following.shape != own.shape:
            raise ValueError(
                f"each of observations {key!r} has shape {own.shape[1:]}, but of next_observations "
                f"{following.shape[1:]}"
            )
        differs = own[1:] != following[:-1]
        if own.dtype.kind == "f":
            differs &= ~(np.isnan(own[1:]) & np.isnan(following[:-1]))
        if differs.any():
            row = start + int(np.nonzero(differs)[0][0])
            raise ValueError(
                f"next_observations {key!r} at row {row} is not the observation of row {row + 1}, although no "
                "episode ends there: mark its end in terminals or timeouts"
            )
        return np.concatenate([own, following[-1:]])

    def nested(self, leaves: Mapping[str, Array]) -> Any:
        """The leaves in the nested form of the observations."""
        return _rebuild(self._tree, iter(leaves.values()))


def _required(arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        raise ValueError(f"there is no array {name!r}; the names are {sorted(arrays)}")
    return arrays[name]


def _either(arrays: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((arrays[name] for name in names if name in arrays), None)


def _vector(name: str, value: Any, dtype: type[np.generic]) -> Array:
    array = np.asarray(value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; it needs one number per row"
        )
    if dtype is np.bool_ and (neither := (array != 0) & (array != 1)).any():
        row = int(np.flatnonzero(neither)[0])
        raise ValueError(f"{name}[{row}] is {array[row]}; it needs 0 or 1, whether an episode ends there")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype is np.float32 and (beyond := np.isfinite(array) & ~np.isfinite(cast)).any():
        row = int(np.flatnonzero(beyond)[0])
        raise ValueError(f"{name}[{row}] is {array[row]:g}, which is beyond float32")
    return cast


def _check_numbers(name: str, array: Any) -> None:
    """Raises ValueError for arrays that trajectory files cannot hold."""
    if array.ndim == 0:
        raise ValueError(f"{name} is a single value; it needs one per row")
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} has dtype {array.dtype}; trajectories hold plain numbers")


def _check_rows(name: str, array: Any, count: int) -> None:
    if array.ndim == 0 or len(array) != count:
        raise ValueError(f"{name} has shape {tuple(array.shape)}, but rewards has {count} rows")


def _leaves(name: str, tree: Any) -> dict[str, Any]:
    """Arrays by key; keys of nested mappings are joined with "/", positions in tuples are "0", "1", ..."""
    found = dict(_walk(tree, ()))
    if not found:
        raise ValueError(f"{name} holds no array")
    return {"/".join(path) or DEFAULT_KEY: array for path, array in found.items()}


def _children(tree: Any) -> list[tuple[str, Any]] | None:
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, tuple):
        return [(str(i), part) for i, part in enumerate(tree)]
    return None


def _walk(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = _children(tree)
    if children is None:
        yield path, tree if hasattr(tree, "ndim") else np.asarray(tree)
        return
    for key, part in children:
        yield from _walk(part, (*path, key))


def _rebuild(tree: Any, leaves: Iterator[Array]) -> Any:
    children = _children(tree)
    if children is None:
        return next(leaves)
    parts = [(key, _rebuild(part, leaves)) for key, part in children]
    return tuple(part for _, part in parts) if isinstance(tree, tuple) else dict(parts)


def represent_actions(actions: Array, space: gym.Space[Any] | None) -> npt.NDArray[np.float32]:
    """Converts actions to (T, A) float32: one-hot (Discrete, MultiDiscrete), 0/1 (MultiBinary), in [-1, 1] (Box).

    Args:
        actions: (T, ...) as passed to an environment with the action space `space`.
        space: None if `actions` (T, A) are in this representation already.

    Raises:
        ValueError: if actions do not fit the space, or, without one, are not numbers in [-1, 1].
        TypeError: if the space is not supported.
    """
    actions = np.asarray(actions)
    if actions.dtype.kind not in "fiub":
        raise ValueError(f"actions have dtype {actions.dtype}; they must be numbers")
    if actions.dtype.kind == "f" and not np.isfinite(actions).all():
        row = int(np.flatnonzero(~np.isfinite(actions.reshape(len(actions), -1)).all(1))[0])
        raise ValueError(f"actions[{row}] of the episode is {actions[row].tolist()}, which is not finite")
    if space is None:
        return _already_represented(actions)
    codec = make_action_codec(space, len(actions))
    if isinstance(space, gym.spaces.Box):
        return _scaled(actions, space)
    start = getattr(space, "start", 0)
    shape = (1,) if isinstance(space, gym.spaces.Discrete) else space.shape
    assert shape is not None
    if actions.ndim == 1 and shape == (1,):
        actions = actions[:, None]
    if actions.shape[1:] != shape:
        raise _other_shape(actions, shape, space)
    choices = (actions - np.asarray(start)).reshape(len(actions), -1)
    try:
        return codec.represent(codec.check(choices))
    except ValueError as error:
        raise ValueError(f"actions do not fit the action space {space}: {error}") from error


def _already_represented(actions: Array) -> npt.NDArray[np.float32]:
    if actions.dtype.kind != "f" or actions.ndim != 2:
        raise ValueError(
            f"actions have dtype {actions.dtype} and shape {actions.shape}, so they are an environment's own "
            "actions: give its action_space, for example gymnasium.spaces.Discrete(4) (amago-run convert: "
            "--actions discrete:4)"
        )
    if (np.abs(actions) > 1.0).any():
        raise ValueError(
            f"actions range from {actions.min():g} to {actions.max():g}, beyond [-1, 1]: give the environment's "
            "action_space, whose bounds they are scaled by (amago-run convert: --actions box:LOW:HIGH)"
        )
    return actions.astype(np.float32)


def _scaled(actions: Array, space: gym.spaces.Box) -> npt.NDArray[np.float32]:
    if actions.ndim == 1 and space.shape in ((), (1,)):
        actions = actions.reshape(-1, *space.shape)
    if actions.shape[1:] != space.shape:
        raise _other_shape(actions, space.shape, space)
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    flat = actions.reshape(len(actions), -1).astype(np.float64)
    middle, half_range = (high + low) / 2.0, (high - low) / 2.0
    scaled = np.divide(flat - middle, half_range, out=np.zeros_like(flat), where=half_range > 0)
    beyond = (np.abs(scaled) > 1.0 + _ACTION_TOLERANCE).any(axis=1)
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise ValueError(
            f"actions[{row}] of the episode is {flat[row].tolist()}, outside of the action space {space}: "
            "give the space of the environment that the data comes from"
        )
    return np.clip(scaled, -1.0, 1.0).astype(np.float32)


def _other_shape(actions: Array, shape: tuple[int, ...], space: gym.Space[Any]) -> ValueError:
    return ValueError(f"each action has shape {actions.shape[1:]}, but those of {space} have shape {shape}")
