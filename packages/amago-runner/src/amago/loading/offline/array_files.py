"""Files of plain arrays: reads episodes from .npz, HDF5 and Minari datasets, and writes .npz and HDF5.

h5py and minari are imported when a file needs them. N = rows, one per transition.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.observations import DEFAULT_KEY
from amago.hindsight import FrozenTraj, atomic_file
from amago.loading.offline.episodes import episodes_from_arrays

HDF5_SUFFIXES = (".h5", ".hdf5")
ARRAY_SUFFIXES = (".npz", *HDF5_SUFFIXES)
# Within the folder of a Minari dataset
_MINARI_FILE = Path("data") / "main_data.hdf5"
_FLAGS = ("terminals", "terminations", "timeouts", "truncations")
_USED = frozenset({"observations", "next_observations", "actions", "rewards", *_FLAGS})


def episodes_from_file(
    path: str | Path,
    action_space: gym.Space[Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
) -> Iterator[FrozenTraj]:
    """Reads the episodes of a file of plain arrays.

    Args:
        path: an .npz with the arrays of `episodes_from_arrays` (a mapping of observations has members named
            "observations/KEY"); a .h5 or .hdf5 with datasets of these names (a mapping is a group), or with one
            group of them per episode ("episode_0", ...), as Minari writes; or the folder of a Minari dataset.
        action_space, observation_space: as in `episodes_from_arrays`.

    Raises:
        ValueError: if the file has another type, or its arrays do not fit together.
        FileNotFoundError: if it does not exist.
        ImportError: if an HDF5 file needs h5py; the message says how to install it.
    """
    path = _data_file(Path(path).expanduser())
    if path.suffix not in ARRAY_SUFFIXES:
        raise ValueError(f"{path} is not a file of arrays, whose suffixes are {', '.join(ARRAY_SUFFIXES)}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    read = _npz_episodes if path.suffix == ".npz" else _hdf5_episodes
    try:
        yield from read(path, action_space, observation_space)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from error


def _data_file(path: Path) -> Path:
    """The data file in the folder of a Minari dataset; any other path unchanged."""
    return path / _MINARI_FILE if (path / _MINARI_FILE).exists() else path


def is_file_of_arrays(path: Path) -> bool:
    """Whether `path` is a file of arrays or a Minari dataset, as opposed to trajectory files."""
    if path.suffix in HDF5_SUFFIXES or (path / _MINARI_FILE).exists():
        return True
    if path.suffix != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "rl2s.npy" not in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False  # a damaged trajectory file, described by its own reader


def action_shape(path: Path) -> tuple[int, ...]:
    """Shape of one action in a file of arrays; raises ValueError if there are no actions."""
    path = _data_file(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return _action_shape(archive)
    with import_h5py().File(path, "r") as file:
        groups = _episode_groups(file)
        return _action_shape(file[groups[0]] if groups else file)


def _action_shape(arrays: Mapping[str, Any]) -> tuple[int, ...]:
    if "actions" not in arrays:
        raise ValueError(f"there is no array 'actions'; the names are {sorted(arrays)}")
    return tuple(arrays["actions"].shape[1:])


def episodes_from_minari(dataset: Any, *, download: bool = False) -> Iterator[FrozenTraj]:
    """Reads the episodes of a Minari dataset, converted by its own spaces.

    Args:
        dataset: a `minari.MinariDataset`, or its id, for example "D4RL/pointmaze/umaze-v2".
        download: download the dataset if it is not on this machine.

    Raises:
        ImportError: if an id is given and minari is not installed.
        ValueError, TypeError: if trajectories cannot hold the episodes or spaces.
    """
    if isinstance(dataset, str):
        dataset = load_minari(dataset, download=download)
    for episode in dataset.iterate_episodes():
        arrays = {
            "observations": episode.observations,
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminations": episode.terminations,
            "truncations": episode.truncations,
        }
        yield from episodes_from_arrays(arrays, dataset.action_space, dataset.observation_space)


def _npz_episodes(path: Path, *spaces: gym.Space[Any] | None) -> Iterator[FrozenTraj]:
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = {}
        for name in archive.files:
            first, slash, key = name.partition("/")
            if first not in _USED:
                continue
            if slash and first.endswith("observations"):
                if first in archive.files:
                    raise ValueError(f"{first} is both an array and a mapping with the key {key!r}: keep one")
                arrays.setdefault(first, {})[key] = archive[name]
            else:
                arrays[name] = archive[name]
    yield from episodes_from_arrays(arrays, *spaces)


def _hdf5_episodes(path: Path, *spaces: gym.Space[Any] | None) -> Iterator[FrozenTraj]:
    with import_h5py().File(path, "r") as file:
        for group in [file[name] for name in _episode_groups(file)] or [file]:
            arrays = {name: _tree_of(group[name]) for name in group if name in _USED}
            yield from episodes_from_arrays(arrays, *spaces)


def _episode_groups(file: Any) -> list[str]:
    """Names of the groups "episode_0", "episode_1", ... in numerical order."""
    names = [name for name in file if name.startswith("episode_") and name[8:].isdigit()]
    return sorted(names, key=lambda name: int(name[8:]))


def _tree_of(node: Any) -> Any:
    """Groups as dicts; datasets unchanged, so that they are read in slices."""
    if not isinstance(node, Mapping):
        return node
    names = list(node)
    if names and all(name.startswith("_index_") for name in names):  # a tuple, as Minari writes it
        return tuple(_tree_of(node[name]) for name in sorted(names, key=lambda name: int(name[7:])))
    return {name: _tree_of(node[name]) for name in names}


def import_h5py() -> Any:
    """Imports h5py; raises ImportError with the install command."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py, which is not installed: pip install h5py") from error
    return h5py


def load_minari(dataset_id: str, *, download: bool = False) -> Any:
    """The `minari.MinariDataset` with this id, with or without "minari/" in front.

    Raises ImportError with the install command.
    """
    try:
        import minari
    except ImportError as error:
        raise ImportError(
            'Minari datasets need minari, which is not installed: pip install "minari[hdf5]"'
        ) from error
    return minari.load_dataset(dataset_id.removeprefix("minari/"), download=download)


def save_arrays(path: Path, episodes: Iterable[FrozenTraj]) -> tuple[int, int]:
    """Writes `episodes` as plain arrays to one file, atomically.

    The arrays are those of `episodes_from_arrays`, including next observations. Actions stay one-hot or scaled to
    [-1, 1]. A trajectory whose last transition did not terminate ends with a timeout. What else a trajectory file
    holds is left out: the time index and previous action with which an episode segment begins, and the names of
    environments.

    Args:
        path: the .npz, .h5 or .hdf5.

    Returns:
        number of trajectories, number of transitions.

    Raises:
        ValueError: if there is no episode, the suffix is unknown, or episodes have other arrays than the first.
        ImportError: if an HDF5 file needs h5py.
    """
    if path.suffix not in ARRAY_SUFFIXES:
        raise ValueError(f"{path} must end with {', '.join(ARRAY_SUFFIXES)}")
    trajs = list(episodes)
    if not trajs:
        raise ValueError("there is no episode with a transition in the data")
    for number, traj in enumerate(trajs):
        check_same_arrays(trajs[0], traj, number)
    arrays = _rows_of(trajs)
    with atomic_file(path) as file:
        if path.suffix in HDF5_SUFFIXES:
            with import_h5py().File(file, "w") as hdf5:
                for name, array in arrays.items():
                    hdf5[name] = array
        else:
            np.savez(file, **arrays)
    return len(trajs), sum(map(len, trajs))


def check_same_arrays(first: FrozenTraj, episode: FrozenTraj, number: int) -> None:
    """Raises ValueError unless `episode` has the array names, row shapes and dtypes of `first`."""
    expected, found = (
        {name: (str(array.dtype), array.shape[1:]) for name, array in traj.to_dict().items()}
        for traj in (first, episode)
    )
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"episode {number} has {name} with (dtype, shape) {found.get(name)}, the first one "
                f"{expected.get(name)}: episodes of one dataset must have the same arrays"
            )


def _rows_of(episodes: list[FrozenTraj]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key in episodes[0].obs:
        suffix = "" if list(episodes[0].obs) == [DEFAULT_KEY] else f"/{key}"
        rows[f"observations{suffix}"] = np.concatenate([episode.obs[key][:-1] for episode in episodes])
        rows[f"next_observations{suffix}"] = np.concatenate([episode.obs[key][1:] for episode in episodes])
    rows["actions"] = np.concatenate([episode.actions for episode in episodes])
    rows["rewards"] = np.concatenate([episode.rews[:, 0] for episode in episodes])
    rows["terminals"] = np.concatenate([episode.dones[:, 0] for episode in episodes])
    timeouts = np.zeros(len(rows["rewards"]), np.bool_)
    timeouts[np.cumsum([len(episode) for episode in episodes]) - 1] = True
    rows["timeouts"] = timeouts & ~rows["terminals"]
    return rows
