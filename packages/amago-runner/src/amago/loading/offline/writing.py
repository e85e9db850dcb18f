"""Trajectories written as plain arrays, for programs that know rows of observations, actions and rewards.

N = rows, one for each transition; A = width of the action representation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amago.envs.observations import DEFAULT_KEY
from amago.hindsight import FrozenTraj
from amago.loading.offline.episodes import ENV_NAMES, RL2S, TIME_IDXS
from amago.loading.offline.sources import HDF5_SUFFIXES, SUFFIXES, import_h5py
from amago.loading.offline.store import EpisodeStore

Array = npt.NDArray[Any]


def save_arrays(path: Path, episodes: Iterable[tuple[str, FrozenTraj]]) -> tuple[int, int]:
    """Writes (environment's name, trajectory) of all `episodes` into one file, which appears whole.

    The arrays are those that `episodes_from_arrays` takes, next observations included, so that nothing is lost;
    actions stay one-hot or scaled to [-1, 1]. A trajectory whose last transition did not terminate ends with a
    timeout.

    Args:
        path: of the .npz, .h5 or .hdf5.

    Returns:
        The numbers of trajectories and of transitions.

    Raises:
        ValueError: if there are none, they differ in their arrays, the ending is another, or arrays cannot express
            one: done before its end, `rl2s` that are not the reward and action before, times that jump, names of
            observations that are no names in a file.
        ImportError: if an HDF5 file needs h5py.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end with {', '.join(SUFFIXES)}")
    names: list[str] = []

    def named() -> Iterable[FrozenTraj]:
        for name, episode in episodes:
            _check_expressible(episode, len(names))
            names.append(name)
            yield episode

    store = EpisodeStore.in_memory(named())
    _check_keys(sorted(store.slice(0, 0, 0).obs), path)
    arrays = _rows_of(store)
    arrays[ENV_NAMES] = np.array([name.encode() for name in names])
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("xb") as file:
            if path.suffix in HDF5_SUFFIXES:
                with import_h5py().File(file, "w") as hdf5:
                    for name, array in arrays.items():
                        hdf5[name] = array
            else:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return len(store), int(store.lengths.sum())


def _check_expressible(episode: FrozenTraj, number: int) -> None:
    """Raises ValueError for what would come back as something else."""
    problem = ""
    if episode.dones[:-1].any():
        problem = f"done at transition {int(episode.dones.argmax())} of {len(episode)}, before its end"
    elif (np.diff(episode.time_idxs[:, 0]) != 1).any():
        problem = "not of consecutive steps: its time_idxs jump"
    elif not np.array_equal(
        episode.rl2s[1:], np.concatenate([episode.rews, episode.actions], axis=1), equal_nan=True
    ):
        problem = "with rl2s that are not the reward and the action before each step"
    if problem:
        raise ValueError(
            f"trajectory {number} is {problem}, which plain arrays cannot express: convert to npz or traj files"
        )


def _check_keys(keys: list[str], path: Path) -> None:
    """Raises ValueError for names of observations that would come back as others, or not at all."""
    is_hdf5 = path.suffix in HDF5_SUFFIXES
    for key in keys:
        if not key or (is_hdf5 and any(part in ("", ".", "..") for part in key.split("/"))):
            raise ValueError(
                f"{path.suffix} files have no place for the observation {key!r}: rename it, or convert to "
                "traj files"
            )
        inside = next((other for other in keys if other.startswith(f"{key}/")), None)
        if is_hdf5 and inside is not None:
            raise ValueError(
                f"the observations {key!r} and {inside!r} cannot both be in an HDF5 file, where the first would "
                "be array and group: use .npz"
            )


def _rows_of(store: EpisodeStore) -> dict[str, Array]:
    episodes = [store.slice(i, 0, int(store.lengths[i])) for i in range(len(store))]
    rows: dict[str, Array] = {}
    for key in episodes[0].obs:
        place = "" if list(episodes[0].obs) == [DEFAULT_KEY] else f"/{key}"
        rows[f"observations{place}"] = np.concatenate([episode.obs[key][:-1] for episode in episodes])
        rows[f"next_observations{place}"] = np.concatenate([episode.obs[key][1:] for episode in episodes])
    rows["actions"] = np.concatenate([episode.actions for episode in episodes])
    rows["rewards"] = np.concatenate([episode.rews[:, 0] for episode in episodes])
    rows["terminals"] = np.concatenate([episode.dones[:, 0] for episode in episodes])
    timeouts = np.zeros(len(rows["rewards"]), np.bool_)
    timeouts[store.transitions_up_to - 1] = True
    rows["timeouts"] = timeouts & ~rows["terminals"]
    rows[TIME_IDXS] = np.concatenate([episode.time_idxs[:-1, 0] for episode in episodes])
    rows[RL2S] = np.concatenate([episode.rl2s[:-1] for episode in episodes])
    return rows
