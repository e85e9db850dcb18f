"""Sequences of timesteps: `Trajectory` grows step by step, `FrozenTraj` holds a finished one in arrays.

Shapes: T = transitions, T + 1 timesteps, A = width of the action representation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amago.hindsight.timestep import Array, Timestep

OBS_KEY_PREFIX = "_OBS_KEY_"
FIELD_DTYPES: dict[str, type[np.generic]] = {
    "rl2s": np.float32,
    "time_idxs": np.int64,
    "rews": np.float32,
    "dones": np.bool_,
    "actions": np.float32,
}


@dataclass(slots=True, eq=False)
class FrozenTraj:
    """T consecutive transitions of one episode, in arrays.

    Args:
        obs: observation by key, each (T + 1, *shape).
        rl2s: (T + 1, 1 + A) float32: previous reward, then previous action.
        time_idxs: (T + 1, 1) int64: steps since the episode's start.
        rews: (T, 1) float32.
        dones: (T, 1) bool: the environment terminated after this transition (truncation is False).
        actions: (T, A) float32: the executed actions.

    Raises:
        ValueError: if shapes are inconsistent, or a dtype is of another kind (float, integer, bool).
    """

    obs: dict[str, Array]
    rl2s: Array
    time_idxs: Array
    rews: Array
    dones: Array
    actions: Array

    def __post_init__(self) -> None:
        self.obs = {str(key): np.asarray(value) for key, value in self.obs.items()}
        for name, dtype in FIELD_DTYPES.items():
            setattr(self, name, _as_dtype(name, getattr(self, name), dtype))
        self.validate()

    @classmethod
    def unchecked(
        cls,
        *,
        obs: dict[str, Array],
        rl2s: Array,
        time_idxs: Array,
        rews: Array,
        dones: Array,
        actions: Array,
    ) -> "FrozenTraj":
        """Creates a trajectory without checks, which take longer than slicing a short episode."""
        frozen = cls.__new__(cls)
        frozen.obs, frozen.rl2s, frozen.time_idxs = obs, rl2s, time_idxs
        frozen.rews, frozen.dones, frozen.actions = rews, dones, actions
        return frozen

    def __len__(self) -> int:
        """T, the number of transitions."""
        return int(self.rews.shape[0])

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        own = (
            self.rl2s.nbytes
            + self.time_idxs.nbytes
            + self.rews.nbytes
            + self.dones.nbytes
            + self.actions.nbytes
        )
        return own + sum(array.nbytes for array in self.obs.values())

    def validate(self) -> None:
        """Raises ValueError, naming the array, if shapes are inconsistent. Call it after editing in place."""
        for name in FIELD_DTYPES:
            array = getattr(self, name)
            if array.ndim != 2:
                raise ValueError(f"{name} has shape {array.shape}; it needs two axes, (time, width)")
        length = len(self)
        for name, rows in (
            ("dones", length),
            ("actions", length),
            ("rl2s", length + 1),
            ("time_idxs", length + 1),
        ):
            _check_rows(name, getattr(self, name), rows, length)
        for key, array in self.obs.items():
            if array.ndim == 0:
                raise ValueError(f"observation {key!r} has no time axis")
            _check_rows(f"observation {key!r}", array, length + 1, length)
        for name in ("rews", "dones", "time_idxs"):
            if getattr(self, name).shape[1] != 1:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}; its second axis must be 1")
        if self.rl2s.shape[1] != 1 + self.actions.shape[1]:
            raise ValueError(
                f"rl2s has width {self.rl2s.shape[1]}, but actions of width {self.actions.shape[1]} "
                f"need {1 + self.actions.shape[1]} (the reward, then the action)"
            )

    def to_dict(self) -> dict[str, Array]:
        """The arrays under the names of a trajectory file: `_OBS_KEY_<key>`, rl2s, time_idxs, rews, ..."""
        named = {OBS_KEY_PREFIX + key: array for key, array in self.obs.items()}
        for name in FIELD_DTYPES:
            named[name] = getattr(self, name)
        return named

    @classmethod
    def from_dict(cls, arrays: Mapping[str, Array]) -> "FrozenTraj":
        """The inverse of `to_dict`; raises ValueError if an array is missing or unknown."""
        fields: dict[str, Array] = {}
        obs: dict[str, Array] = {}
        for name, array in arrays.items():
            if name.startswith(OBS_KEY_PREFIX):
                obs[name[len(OBS_KEY_PREFIX) :]] = array
            elif name in FIELD_DTYPES:
                fields[name] = array
            else:
                raise ValueError(
                    f"a trajectory has no array {name!r}; observations begin with {OBS_KEY_PREFIX!r}"
                )
        missing = [name for name in FIELD_DTYPES if name not in fields]
        if missing or not obs:
            raise ValueError(
                f"the trajectory lacks {', '.join(missing) or 'observations'}; it holds {sorted(arrays)}"
            )
        return cls(obs=obs, **fields)


def _as_dtype(name: str, value: Array, dtype: type[np.generic]) -> Array:
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise ValueError(f"{name} has dtype {array.dtype}; it must be {np.dtype(dtype)}")
    return array.astype(dtype)


def _check_rows(name: str, array: Array, rows: int, length: int) -> None:
    if array.shape[0] != rows:
        raise ValueError(f"{name} has {array.shape[0]} rows; {length} transitions (rows of rews) need {rows}")


class Trajectory:
    """Consecutive timesteps of one environment, in memory.

    Args:
        timesteps: initial timesteps, in order, each with `batched_envs=1`.
    """

    def __init__(self, timesteps: Iterable[Timestep] | None = None) -> None:
        self.timesteps: list[Timestep] = []
        for timestep in timesteps or ():
            self.add_timestep(timestep)

    def __len__(self) -> int:
        """Number of timesteps, one more than transitions."""
        return len(self.timesteps)

    def __getitem__(self, index: int) -> Timestep:
        return self.timesteps[index]

    def add_timestep(self, timestep: Timestep) -> None:
        """Appends one timestep; raises ValueError if it is a batch (see `split_batched_timestep`)."""
        if timestep.batched_envs != 1:
            raise ValueError(
                f"the timestep has batched_envs={timestep.batched_envs}; a trajectory belongs to one environment: "
                "take one of split_batched_timestep(timestep)"
            )
        self.timesteps.append(timestep)

    @property
    def total_return(self) -> float:
        """Sum of rewards; the sums of an episode's segments add up to its return."""
        return float(sum(float(timestep.reward[0]) for timestep in self.timesteps[1:]))

    def as_input_sequence(self) -> tuple[dict[str, Array], Array, Array]:
        """`(obs, rl2s (T + 1, 1 + A), time_idxs (T + 1, 1))` of all timesteps; raises ValueError if empty."""
        if not self.timesteps:
            raise ValueError("the trajectory is empty; add its first timestep before asking for its sequence")
        inputs = [timestep.as_input() for timestep in self.timesteps]
        obs = {key: np.concatenate([seq_obs[key] for seq_obs, _, _ in inputs]) for key in inputs[0][0]}
        rl2s = np.concatenate([seq_rl2s for _, seq_rl2s, _ in inputs])
        return obs, rl2s, np.concatenate([seq_times for _, _, seq_times in inputs])

    def freeze(self) -> FrozenTraj:
        """The trajectory in arrays that share no memory with the timesteps; raises ValueError if empty."""
        obs, rl2s, time_idxs = self.as_input_sequence()
        terminals = np.array([timestep.terminal[0] for timestep in self.timesteps[1:]], dtype=np.bool_)
        return FrozenTraj(
            obs=obs,
            rl2s=rl2s,
            time_idxs=time_idxs,
            rews=rl2s[1:, :1].copy(),
            dones=terminals.reshape(-1, 1),
            actions=rl2s[1:, 1:].copy(),
        )

    def save_to_disk(self, path: str | Path, save_as: str) -> None:
        """Writes the trajectory to a file, atomically.

        Args:
            path: the file; its suffix is set by `save_as`.
            save_as: "npz", "npz-compressed" or "traj".
        """
        from amago.hindsight.filenames import env_name_of
        from amago.hindsight.trajectory_files import save_trajectory

        save_trajectory(self.freeze(), Path(path), save_as, env_name_of(Path(path)))
