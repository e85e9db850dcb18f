"""Where offline data comes from: .npz archives, HDF5 files and Minari datasets.

h5py and minari are looked for when a file needs them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from amago.hindsight import FrozenTraj
from amago.loading.offline.episodes import ENV_NAMES, episodes_from_arrays

HDF5_SUFFIXES = (".h5", ".hdf5")
SUFFIXES = (".npz", *HDF5_SUFFIXES)
# Within the folder of a Minari dataset
_MINARI_FILE = Path("data") / "main_data.hdf5"
_FLAGS = ("terminals", "terminations", "timeouts", "truncations")
_USED = frozenset({"observations", "next_observations", "actions", "rewards", "amago", *_FLAGS})


def episodes_from_file(
    path: str | Path,
    action_space: gym.Space[Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
) -> Iterator[FrozenTraj]:
    """The episodes in a file of plain arrays.

    Args:
        path: an .npz with the arrays that `episodes_from_arrays` takes, where a mapping of observations has
            members named "observations/KEY"; a .h5 or .hdf5 with datasets of these names, where it is a group, or
            with one group of them per episode ("episode_0", ...), as Minari writes; or the folder of a Minari
            dataset.
        action_space, observation_space: as in `episodes_from_arrays`.

    Raises:
        ValueError: if the file is of another kind, or its arrays do not fit together.
        FileNotFoundError: if there is none.
        ImportError: if an HDF5 file needs h5py; the message says how to install it.
    """
    path = _data_file(Path(path).expanduser())
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is no file of arrays: their endings are {', '.join(SUFFIXES)}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    read = _npz_episodes if path.suffix == ".npz" else _hdf5_episodes
    try:
        yield from read(path, action_space, observation_space)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from error


def _data_file(path: Path) -> Path:
    """The file inside, of the folder of a Minari dataset; any other path itself."""
    return path / _MINARI_FILE if (path / _MINARI_FILE).exists() else path


def file_of(source: Any) -> Path | None:
    """The file with the data of a path or a `minari.MinariDataset`; None for other sources."""
    if isinstance(source, str | Path):
        return _data_file(Path(source).expanduser())
    folder = getattr(getattr(source, "storage", None), "data_path", None)
    return None if folder is None else Path(folder) / _MINARI_FILE.name


def is_file_of_arrays(path: Path) -> bool:
    """Whether a path is a file of arrays or a Minari dataset, and not a trajectory file or a folder of them."""
    if path.suffix in HDF5_SUFFIXES or (path / _MINARI_FILE).exists():
        return True
    if path.suffix != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "rl2s.npy" not in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False  # a torn trajectory file, which its own reader describes better


def actions_and_names(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], list[str]]:
    """Shape of one action, dtype of actions, and the environments' names, if any, in a file of arrays.

    Raises:
        ValueError: if there are no actions, or the names are none.
    """
    path = _data_file(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return _actions_and_names(archive, archive)
    with import_h5py().File(path, "r") as file:
        if "actions" in file:
            return _actions_and_names(file, file)
        members = (file.get(name) for name in file)  # None for a link that leads nowhere
        return _actions_and_names(file, next((m for m in members if isinstance(m, Mapping)), file))


def _actions_and_names(
    file: Mapping[str, Any], first: Mapping[str, Any]
) -> tuple[tuple[int, ...], np.dtype[Any], list[str]]:
    """The same of an open file, whose first episode may be a group of its own."""
    actions = first.get("actions")
    if actions is None or not hasattr(actions, "shape"):
        raise ValueError(f"there is no array 'actions'; the names are {sorted(first)}")
    names = np.asarray(file[ENV_NAMES]) if ENV_NAMES in file else np.zeros(0, "S1")
    if names.ndim != 1 or names.dtype.kind != "S":
        raise ValueError(
            f"{ENV_NAMES} has shape {names.shape} and dtype {names.dtype}; it needs bytes, one name per episode"
        )
    return actions.shape[1:], actions.dtype, [name.decode(errors="replace") for name in names.tolist()]


def episodes_from_minari(dataset: Any, *, download: bool = False) -> Iterator[FrozenTraj]:
    """The episodes of a Minari dataset, whose spaces are known.

    Args:
        dataset: a `minari.MinariDataset`, or the id of one, for example "D4RL/pointmaze/umaze-v2".
        download: fetch it if this machine does not have it.

    Raises:
        ImportError: if an id is given and minari is not installed.
        ValueError, TypeError: for episodes or spaces that trajectories cannot hold.
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
                    raise ValueError(f"{first} is there as an array and with the key {key!r}: keep one")
                arrays.setdefault(first, {})[key] = archive[name]
            else:
                arrays[name] = archive[name]
    yield from episodes_from_arrays(arrays, *spaces)


def _hdf5_episodes(path: Path, *spaces: gym.Space[Any] | None) -> Iterator[FrozenTraj]:
    with import_h5py().File(path, "r") as file:
        groups = [name for name in file if name.startswith("episode_") and name[8:].isdigit()]
        if not groups:
            yield from episodes_from_arrays(_arrays_of(file), *spaces)
        for name in sorted(groups, key=lambda name: int(name[8:])):
            yield from episodes_from_arrays(_arrays_of(file[name]), *spaces)


def _arrays_of(group: Any) -> dict[str, Any]:
    arrays = {name: _tree_of(group[name]) for name in group if name in _USED and name != "amago"}
    ours = group.get("amago")
    for name in ours if isinstance(ours, Mapping) else ():
        arrays[f"amago/{name}"] = ours[name]
    return arrays


def _tree_of(node: Any) -> Any:
    """Groups as dicts, datasets as they are, which reads them when they are sliced."""
    if not isinstance(node, Mapping):
        return node
    names = list(node)
    if names and all(name.startswith("_index_") for name in names):  # how Minari writes tuples
        return tuple(_tree_of(node[name]) for name in sorted(names, key=lambda name: int(name[7:])))
    return {name: _tree_of(node[name]) for name in names}


def import_h5py() -> Any:
    """The module; raises ImportError with the remedy if it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py, which is not installed: pip install h5py") from error
    return h5py


def load_minari(dataset_id: str, *, download: bool = False) -> Any:
    """The `minari.MinariDataset` of that id; raises ImportError with the remedy if minari is not installed."""
    try:
        import minari
    except ImportError as error:
        raise ImportError(
            'Minari datasets need minari, which is not installed: pip install "minari[hdf5]"'
        ) from error
    return minari.load_dataset(dataset_id, download=download)
