"""OfflineDataset: training on data that others collected, kept in a few long arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import numpy as np

from amago.hindsight import FrozenTraj, Relabeler
from amago.loading.dataset import RLDataset
from amago.loading.offline.episodes import episodes_from_arrays
from amago.loading.offline.sources import episodes_from_file, episodes_from_minari, file_of, load_minari
from amago.loading.offline.store import EpisodeStore, content_of, read_header
from amago.loading.relabelling import checked_relabeler, relabelled, sees_whole_trajectories
from amago.loading.sample import RLData, window_bounds

SAMPLE_BY = ("episodes", "timesteps")
_REMEDY = "remove it, and it is made anew, or give another folder"


@gin.configurable(module="amago.loading")
class OfflineDataset(RLDataset):
    """Draws from a fixed set of episodes; nothing is added and nothing is deleted.

    Args:
        source: a path, as `episodes_from_file` takes it; a mapping of arrays, as `episodes_from_arrays`; a
            `minari.MinariDataset`; or an iterable of `FrozenTraj`. Those functions say how rows become episodes,
            and which observation is the last of each.
        action_space: of the environment, whose actions are turned into one-hots or scaled to [-1, 1]; None if
            they are that already. A Minari dataset brings its own.
        observation_space: makes of observations what `AMAGOEnv` makes of them; None takes the arrays as they are.
        store: folder into which the data is converted once, and which is mapped from then on, now and in later
            runs; None keeps the data in memory. Whether it holds the source is seen from size and time of a file
            that has not changed since; anything else is read through.
        dset_name: name for logs; that of the file or Minari dataset if left out.
        relabeler: edits each drawn episode before it is sliced, see `amago.hindsight.Relabeler`.
        sample_by: "episodes" gives every episode the same chance, "timesteps" every transition.

    Raises:
        ValueError: naming the array or episode that does not fit, or if `store` holds something else.
        FileNotFoundError: if there is no such file.
        ImportError: if the source needs h5py or minari; the message says how to install it.
    """

    def __init__(
        self,
        source: Any,
        action_space: gym.Space[Any] | None = None,
        observation_space: gym.Space[Any] | None = None,
        *,
        store: str | Path | None = None,
        dset_name: str | None = None,
        relabeler: Relabeler | None = None,
        sample_by: str = "episodes",
    ) -> None:
        super().__init__(dset_name or _name_of(source))
        if sample_by not in SAMPLE_BY:
            raise ValueError(f"sample_by must be one of {', '.join(SAMPLE_BY)}, not {sample_by!r}")
        self.sample_by = sample_by
        self.relabeler = checked_relabeler(relabeler)
        episodes = _episodes_of(source, action_space, observation_space)
        if store is None:
            self.episodes = EpisodeStore.in_memory(episodes)
            return
        folder = Path(store).expanduser()
        origin, stamp = _origin_of(source, action_space, observation_space), _stamp_of(source)
        if not folder.exists():
            self.episodes = EpisodeStore.convert(episodes, folder, origin, stamp)
            return
        header = read_header(folder)
        if header["origin"] != origin:
            raise ValueError(
                f"store is {folder}, which was made from {header['origin']}, and not from {origin}: {_REMEDY}"
            )
        if (stamp is None or header["stamp"] != stamp) and header["content"] != content_of(episodes):
            raise ValueError(f"store is {folder}, which was made from {origin} with other content: {_REMEDY}")
        self.episodes = EpisodeStore.open(folder)

    @classmethod
    def from_minari(cls, dataset_id: str, *, download: bool = False, **arguments: Any) -> OfflineDataset:
        """The dataset of that id, as `minari.load_dataset` finds it.

        Args:
            dataset_id: for example "D4RL/pointmaze/umaze-v2".
            download: fetch it if this machine does not have it.
            arguments: the other arguments of `OfflineDataset`.
        """
        return cls(load_minari(dataset_id, download=download), **arguments)

    def get_description(self) -> str:
        """How much there is."""
        where = "in memory" if self.episodes.folder is None else f"in {self.episodes.folder}"
        transitions = int(self.episodes.lengths.sum())
        return f"{self.dset_name}: {len(self.episodes):,} episodes of {transitions:,} transitions {where}"

    def sample_random_trajectory(self) -> RLData:
        """A whole episode, relabelled, its arrays the caller's own."""
        traj = self.episodes.whole(self._draw())
        return RLData.from_trajectory(relabelled(traj, self.relabeler))

    def sample_random_slice(self) -> RLData:
        """A window of a random episode; only its rows are read, unless a relabeler wants to see all of it."""
        customised = type(self).sample_random_trajectory is not OfflineDataset.sample_random_trajectory
        if customised or sees_whole_trajectories(self.relabeler):
            return super().sample_random_slice()
        self.check_configured()
        assert self.max_seq_len is not None
        number = self._draw()
        length = int(self.episodes.lengths[number])
        start, stop = window_bounds(length, self.max_seq_len, self.padded_sampling, self.rng)
        return RLData.window(self.episodes.slice(number, start, stop), 0, stop - start)

    def _draw(self) -> int:
        if self.sample_by == "episodes":
            return int(self.rng.integers(len(self.episodes)))
        up_to = self.episodes.transitions_up_to
        return int(np.searchsorted(up_to, self.rng.integers(up_to[-1]), side="right"))


def _episodes_of(source: Any, *spaces: gym.Space[Any] | None) -> Iterator[FrozenTraj]:
    if isinstance(source, str | Path):
        return episodes_from_file(source, *spaces)
    if isinstance(source, Mapping):
        return episodes_from_arrays(source, *spaces)
    if any(space is not None for space in spaces):
        raise ValueError(
            "action_space and observation_space are for files and arrays; a Minari dataset has its own, and "
            "trajectories are made already"
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


def _origin_of(source: Any, *spaces: gym.Space[Any] | None) -> str:
    """What people call the source; not what changes nothing, as where it lies."""
    origin = Path(source).name if isinstance(source, str | Path) else _name_of(source)
    origin = origin or type(source).__name__
    given = [repr(space) for space in spaces if space is not None]
    return " with ".join([origin, *given])


def _stamp_of(source: Any) -> list[int] | None:
    """Size and time of the last change of the file that the data comes from; None if there is no file."""
    path = file_of(source)
    if path is None or not path.is_file():
        return None
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]
