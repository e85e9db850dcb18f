"""Rows of observations, actions and rewards, split into trajectories.

A row t holds the observation that was acted on, the action, and the reward that followed. A trajectory of T
transitions needs T + 1 observations, so which one comes after the last action of an episode must be settled:

- `next_observations` are given: the last of them is the episode's final observation.
- There is one observation more than actions (one episode, as Minari keeps them): the last one is it.
- Neither: an episode that terminated keeps its last transition, and its last observation stands in for the final
  one, whose value is never used as nothing follows. An episode that was cut off by time, or by the end of the
  data, loses its last transition, whose observation becomes the final one.

N = rows, T = transitions of an episode, A = width of the action representation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.observations import DEFAULT_KEY, ObservationMapper
from amago.hindsight import FrozenTraj
from amago.loading.offline.actions import represent_actions

Array = npt.NDArray[Any]

# What `amago-run convert` adds, so that pieces of episodes come back as they were
TIME_IDXS, RL2S, ENV_NAMES = "amago/time_idxs", "amago/rl2s", "amago/env_names"
_TERMINALS = ("terminals", "terminations")
_TIMEOUTS = ("timeouts", "truncations")


def episodes_from_arrays(
    arrays: Mapping[str, Any],
    action_space: gym.Space[Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
) -> Iterator[FrozenTraj]:
    """Splits rows into trajectories, each ending where `terminals` or `timeouts` is true, or with the data.

    `rl2s` are the rewards and actions of the step before, zeros first. Only `terminals` are stored as `dones`.

    Args:
        arrays: anything that can be sliced, by name: `observations` (N, ...), an array or a mapping of arrays;
            `actions` (N, ...), `rewards` (N,), and at least one of `terminals` (N,), also called `terminations`,
            and `timeouts` (N,), also called `truncations`. Optionally `next_observations`, as `observations`.
            `observations` may have N + 1 rows if there is one episode. Other names are passed over.
        action_space: of the environment; None if `actions` (N, A) are one-hot or scaled to [-1, 1] already.
        observation_space: turns observations into what `AMAGOEnv` makes of them (one-hot where they are Discrete,
            flat keys); None takes arrays as they are and joins the keys of mappings with "/".

    Yields:
        One trajectory per episode; none for an episode of which no transition is left.

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
            time_idxs = np.arange(transitions + 1)
            if rows.time_idxs is not None and rows.rl2s is not None:
                time_idxs += int(rows.time_idxs[start])
                rl2s[0] = rows.rl2s[start]
            yield FrozenTraj(
                obs=obs,
                rl2s=rl2s,
                time_idxs=time_idxs[:, None],
                rews=rewards,
                dones=rows.terminals[start:end, None],
                actions=actions,
            )
        start = stop


class _Rows:
    """The checked arrays; flags and rewards in memory, the rest read when it is sliced."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.rewards = _vector("rewards", _required(arrays, "rewards"), np.float32)
        count = len(self.rewards)
        if count == 0:
            raise ValueError("rewards is empty: there is no transition")
        terminals, timeouts = _either(arrays, _TERMINALS), _either(arrays, _TIMEOUTS)
        if terminals is None and timeouts is None:
            raise ValueError(
                "there are neither terminals nor timeouts, so it is not known where episodes end; "
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
        self.time_idxs, self.rl2s = arrays.get(TIME_IDXS), arrays.get(RL2S)
        for key, array in self._obs.items():
            _check_numbers(f"observations {key!r}", array)
        for name, array in (
            ("terminals", self.terminals),
            ("timeouts", cut_off),
            ("actions", self.actions),
            (TIME_IDXS, self.time_idxs),
            (RL2S, self.rl2s),
        ):
            if array is not None:
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
        """The leaves in the form that the observations were given in."""
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
    """Raises ValueError for what trajectory files do not hold."""
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
