"""OfflineDataset: training on data that others collected, converted into a replay buffer."""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import gin
import gymnasium as gym
import numpy as np

from amago.envs.arguments import Name, check_arguments
from amago.hindsight import FrozenTraj, trajectory_filename, write_trajectory
from amago.loading.offline.array_files import (
    check_same_arrays,
    episodes_from_file,
    episodes_from_minari,
    load_minari,
)
from amago.loading.offline.episodes import episodes_from_arrays
from amago.loading.replay_buffer import DiskTrajDataset

SAMPLE_BY: dict[str, Literal["files", "timesteps"]] = {"episodes": "files", "timesteps": "timesteps"}
_SOURCE_FILE = "source.txt"
# Time in the names of converted files: fixed, so that equal data gives equal files.
_CONVERTED_TIME = 0


@gin.configurable(module="amago.loading")
class OfflineDataset(DiskTrajDataset):
    """A fixed set of episodes: no episodes are added or deleted.

    The source is converted once into trajectory files in `{store}/buffer/protected`. The folder is an ordinary
    dataset folder: `DiskTrajDataset` can use it too, and add new trajectories.

    Args:
        source: a path, as for `episodes_from_file`; a mapping of arrays, as for `episodes_from_arrays`; a
            `minari.MinariDataset`; or an iterable of `FrozenTraj`.
        action_space: action space of the environment, by which actions are converted to one-hot or to [-1,
            1]; None if they are already. A Minari dataset has its own.
        observation_space: converts observations like `AMAGOEnv` does; None keeps the arrays as they are.
        store: folder of the converted files, which is reused if it was made from the same source. None uses a
            temporary folder that is removed when the process exits.
        dset_name: name for logs; None uses the name of the file or Minari dataset.
        relabeler: edits each sampled episode before it is sliced, see `amago.hindsight.Relabeler`.
        sample_by: "episodes" gives every episode the same probability, "timesteps" every transition.

    Raises:
        ValueError: if an array or episode does not fit, or `store` was made from another source.
        FileNotFoundError: if the file does not exist.
        ImportError: if the source needs h5py or minari; the message says how to install it.
    """

    @check_arguments
    def __init__(
        self,
        source: Any,
        action_space: gym.Space[Any] | None = None,
        observation_space: gym.Space[Any] | None = None,
        *,
        store: str | Path | None = None,
        dset_name: Name | None = None,
        relabeler: Callable[[FrozenTraj], FrozenTraj] | None = None,
        sample_by: Literal["episodes", "timesteps"] = "episodes",
    ) -> None:
        name = dset_name or _name_of(source) or type(self).__name__
        episodes: Iterable[FrozenTraj] = _episodes_of(source, action_space, observation_space)
        if not isinstance(source, str | Path) and not hasattr(source, "iterate_episodes"):
            episodes = list(episodes)
        if store is None:
            temporary = tempfile.mkdtemp(prefix="amago-offline-")
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            folder = Path(temporary) / "data"
        else:
            folder = Path(store).expanduser()
        description = _describe(source, episodes, action_space, observation_space)
        if not folder.exists():
            _convert(episodes, folder, name, description)
        _check_source(folder, description)
        super().__init__(
            folder.parent, folder.name, math.inf, relabeler=relabeler, sample_by=SAMPLE_BY[sample_by]
        )
        self.dset_name = name

    @classmethod
    def from_minari(cls, dataset_id: str, *, download: bool = False, **arguments: Any) -> OfflineDataset:
        """The Minari dataset with this id, see `minari.load_dataset`.

        Args:
            dataset_id: for example "D4RL/pointmaze/umaze-v2".
            download: download the dataset if it is not on this machine.
            arguments: the other arguments of `OfflineDataset`.
        """
        return cls(load_minari(dataset_id, download=download), **arguments)

    @property
    def save_new_trajs_to(self) -> None:
        """None: collected trajectories are dropped."""
        return

    def delete(self, delete_protected: bool = False) -> None:
        """Deletes the converted files only with `delete_protected`."""
        if delete_protected:
            super().delete(delete_protected=True)

    def get_description(self) -> str:
        """Path and number of episodes."""
        self.index.refresh()
        return f"{self.dset_name}: {len(self.index.files):,} episodes in {self.protected_folder}"


def _convert(episodes: Iterable[FrozenTraj], folder: Path, env_name: str, description: str) -> None:
    """Writes the episodes as a new dataset folder, which appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    protected = unfinished / "buffer" / "protected"
    protected.mkdir(parents=True)
    try:
        first: FrozenTraj | None = None
        for number, episode in enumerate(episodes):
            first = first or episode
            check_same_arrays(first, episode, number)
            stem = trajectory_filename(env_name, number >> 20, number, _CONVERTED_TIME)
            write_trajectory(episode, str(protected), stem, "npz", env_name)
        if first is None:
            raise ValueError("there is no episode with a transition in the data")
        (unfinished / _SOURCE_FILE).write_text(description)
        os.rename(unfinished, folder)
    except OSError:
        if not (folder / _SOURCE_FILE).exists():  # otherwise another process has converted it in the meantime
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_source(folder: Path, description: str) -> None:
    try:
        found = (folder / _SOURCE_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(
            f"store is {folder}, which is not a converted dataset: give another folder"
        ) from error
    if found != description:
        raise ValueError(
            f"store is {folder}, which was made from {found}, and not from {description}: remove it to "
            "convert the source again, or give another folder"
        )


def _describe(source: Any, episodes: Iterable[FrozenTraj], *spaces: gym.Space[Any] | None) -> str:
    """Identifies the source, a file by size and time and a list of episodes by content, and its spaces."""
    described = _name_of(source) or type(source).__name__
    if isinstance(source, str | Path) and Path(source).expanduser().is_file():
        status = Path(source).expanduser().stat()
        described = f"{Path(source).name} ({status.st_size} bytes, modified at {status.st_mtime_ns} ns)"
    elif isinstance(episodes, list):
        digest = hashlib.blake2b(digest_size=16)
        for episode in episodes:
            for name, array in episode.to_dict().items():
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        described = f"{described} ({digest.hexdigest()})"
    return " with ".join([described, *(repr(space) for space in spaces if space is not None)])


def _episodes_of(source: Any, *spaces: gym.Space[Any] | None) -> Iterator[FrozenTraj]:
    if isinstance(source, str | Path):
        return episodes_from_file(source, *spaces)
    if isinstance(source, Mapping):
        return episodes_from_arrays(source, *spaces)
    if any(space is not None for space in spaces):
        raise ValueError(
            "action_space and observation_space apply to files and arrays; a Minari dataset has its own spaces, "
            "and trajectories are converted already"
        )
    if hasattr(source, "iterate_episodes"):
        return episodes_from_minari(source)
    if isinstance(source, Iterable):
        return _checked(source)
    raise TypeError(
        f"source is {source!r}, must be a path, a mapping of arrays, a Minari dataset or an iterable of FrozenTraj"
    )


def _checked(source: Iterable[Any]) -> Iterator[FrozenTraj]:
    for episode in source:
        if not isinstance(episode, FrozenTraj):
            raise TypeError(f"source holds {episode!r}, must hold amago.hindsight.FrozenTraj")
        yield episode


def _name_of(source: Any) -> str | None:
    if isinstance(source, str | Path):
        return Path(source).stem
    return getattr(getattr(source, "spec", None), "dataset_id", None)
