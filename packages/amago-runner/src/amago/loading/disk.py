"""The replay buffer: a folder of trajectory files that any number of processes write to and draw from.

`buffer/fifo` takes new data and loses its oldest files once it holds too many; `buffer/protected` is drawn
from in the same way and never deleted. Files that turn out to be no trajectories move to `buffer/quarantine`.
There is no index and no lock: the listing of the folder is the buffer.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gin
import numpy as np
from numpy.typing import NDArray

from amago.hindsight import CorruptTrajectoryError, FrozenTraj, NoOpRelabeler, Relabeler, load_trajectory
from amago.loading.checkpointed_files import CheckpointedFiles
from amago.loading.dataset import RLDataset
from amago.loading.files import TrajFile, TrajFolder
from amago.loading.reader import TrajReader
from amago.loading.sample import RLData
from amago.utils import AmagoWarning, amago_warning

T = TypeVar("T")

DRAWS_BETWEEN_LOOKS = 1024
"""Draws after which a process looks for new files, for learners whose data is collected by others."""

SAMPLE_BY = ("files", "timesteps")


def get_path_to_trajs(dset_root: str | Path, dset_name: str, fifo: bool) -> Path:
    """The folder of a buffer's trajectory files: `{dset_root}/{dset_name}/buffer/{fifo or protected}`."""
    return Path(dset_root).expanduser() / dset_name / "buffer" / ("fifo" if fifo else "protected")


def load_traj_from_disk(path: str | Path) -> FrozenTraj:
    """Reads a trajectory file of either format.

    Raises:
        CorruptTrajectoryError: a ValueError, if the file is torn or no trajectory.
        FileNotFoundError: if there is no such file.
    """
    return load_trajectory(Path(path))


@gin.configurable(module="amago.loading")
class DiskTrajDataset(RLDataset):
    """Draws from the trajectory files below `{dset_root}/{dset_name}/buffer`.

    Args:
        dset_root: folder of datasets; `~` stands for the home folder.
        dset_name: name of the dataset, and of its folder.
        dset_max_size: files that `fifo` may hold; the oldest are deleted beyond that. May be infinite.
        dset_min_size: files that fifo and protected must hold together before training begins, at least 1.
        relabeler: edits each drawn trajectory before it is sliced, see `amago.hindsight.Relabeler`. With one,
            files are read whole.
        sample_by: "files" gives every file the same chance, "timesteps" every transition: then a file's
            chance is proportional to its length, for which every file's header is read once.
        cache_bytes: memory for decoded trajectories, divided among the loader workers; 0 turns caching off.

    Raises:
        ValueError: for sizes out of range or an unknown `sample_by`.
    """

    def __init__(
        self,
        dset_root: str | Path,
        dset_name: str,
        dset_max_size: int | float,
        dset_min_size: int = 1,
        relabeler: Relabeler | None = None,
        *,
        sample_by: str = "files",
        cache_bytes: int = 512 << 20,
    ) -> None:
        super().__init__(dset_name)
        if math.isnan(dset_max_size) or dset_max_size < 1:
            raise ValueError(f"dset_max_size must be at least 1 file, not {dset_max_size!r}")
        if dset_min_size < 1:
            raise ValueError(f"dset_min_size must be at least 1 file, not {dset_min_size!r}")
        if sample_by not in SAMPLE_BY:
            raise ValueError(f"sample_by must be one of {', '.join(SAMPLE_BY)}, not {sample_by!r}")
        if relabeler is not None and (isinstance(relabeler, type) or not callable(relabeler)):
            raise TypeError(
                f"relabeler is {relabeler!r}, must be an instance of a Relabeler, or a function of a trajectory"
            )
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, not {cache_bytes!r}")
        self.dset_root = Path(dset_root).expanduser()
        self.dset_max_size = dset_max_size
        self.dset_min_size = dset_min_size
        self.relabeler = relabeler
        self.sample_by = sample_by
        self.cache_bytes = cache_bytes
        fifo, protected = (get_path_to_trajs(dset_root, dset_name, is_fifo) for is_fifo in (True, False))
        for folder in (fifo, protected):
            folder.mkdir(parents=True, exist_ok=True)
        self.fifo = TrajFolder(fifo)
        self.protected = TrajFolder(protected, any_name=True)
        self.quarantine = fifo.parent / "quarantine"
        self._checkpointed = CheckpointedFiles(fifo, fifo.parent / "on_hold", fifo.parent / "aside")
        self._reader = TrajReader(cache_bytes)
        kept = len(os.listdir(protected))
        if dset_min_size > dset_max_size + kept:
            amago_warning(
                f"dset_min_size is {dset_min_size}, but fifo holds at most {dset_max_size} files and protected "
                f"has {kept}: training never begins unless more are put into {protected}. Make "
                "dset_min_size at most dset_max_size."
            )
        self._files: list[TrajFile] = []
        self._transitions_up_to: NDArray[np.int64] | None = None
        self._draws_until_look = 0

    @property
    def save_new_trajs_to(self) -> Path:
        """The fifo folder."""
        return self.fifo.path

    @property
    def ready_for_training(self) -> bool:
        """Whether fifo and protected together hold `dset_min_size` files right now."""
        self.refresh()
        return len(self._files) >= self.dset_min_size

    def get_description(self) -> str:
        """Where the buffer is and how much it holds."""
        self.refresh()
        return (
            f"{self.dset_name}: {len(self.fifo.files)} trajectory files of at most {self.dset_max_size:g} in "
            f"{self.fifo.path}, {len(self.protected.files)} more in {self.protected.path}"
        )

    def refresh(self, *, force: bool = False) -> None:
        """Brings the list of files up to date; costs two calls to the file system where nothing changed."""
        self._draws_until_look = DRAWS_BETWEEN_LOOKS
        changed = False
        for folder in (self.protected, self.fifo):
            listing = folder.refresh(force=force)
            changed |= bool(listing.added or listing.removed)
            for file in listing.removed:
                self._reader.drop(file.path)
            for name in listing.foreign:
                self._reject(folder.path / name, "its name is not that of a trajectory file")
        if changed:
            self._relist()

    def set_epoch(self, epoch: int) -> None:
        """Moves on to the draws of `epoch`, from the files that are there now."""
        super().set_epoch(epoch)
        self.refresh()

    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        """Deletes the oldest files that `fifo` holds beyond `dset_max_size`, given the right to edit."""
        self.refresh(force=True)
        deleted = 0
        if self.has_edit_rights:
            self._checkpointed.checkpoint_written()
            excess = len(self.fifo.files) - self.dset_max_size
            if excess > 0:
                oldest = sorted(self.fifo.files.values(), key=lambda file: file.age_key)[: math.ceil(excess)]
                self._checkpointed.delete(file.name for file in oldest)
                deleted = len(oldest)
                self.refresh(force=True)
        return {
            "Trajectory Files in FIFO": float(len(self.fifo.files)),
            "Trajectory Files in Protected": float(len(self.protected.files)),
            "Trajectory Files Deleted": float(deleted),
        }

    def delete(self, delete_protected: bool = False) -> None:
        """Deletes all files of `fifo`, and those of `protected` only if told to.

        Raises:
            PermissionError: if the experiment has no edit rights.
        """
        if self.has_edit_rights is False:
            raise PermissionError(
                f"{self.dset_name} was configured without edit rights, so it deletes nothing"
            )
        folders = [self.fifo.path, self._checkpointed.hold, self._checkpointed.aside]
        for folder in [*folders, self.protected.path] if delete_protected else folders:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.fifo.path, self.protected.path):
            folder.mkdir(parents=True, exist_ok=True)
        self.refresh(force=True)

    def sample_random_trajectory(self) -> RLData:
        """Draws a file and reads all of it, relabelled if there is a relabeler; the arrays may be written to."""
        return self._draw(self._read_whole)

    def sample_random_slice(self) -> RLData:
        """Draws a window of a random file. Without a relabeler its arrays may be views and read-only."""
        customised = type(self).sample_random_trajectory is not DiskTrajDataset.sample_random_trajectory
        if customised or not (self.relabeler is None or type(self.relabeler) is NoOpRelabeler):
            return super().sample_random_slice()
        self.check_configured()
        return self._draw(self._read_window)

    def worker_state(self) -> None:
        """None: the copies in loader workers look at the folders themselves."""
        return

    def start_worker(self, workers: int) -> None:
        """Gives this worker its share of the memory for decoded trajectories."""
        self._reader = TrajReader(self.cache_bytes // workers)

    def state_dict(self) -> dict[str, Any]:
        """The files of `fifo`. Those stay on disk, deleted or not, until the next checkpoint is written."""
        self.refresh(force=True)
        return {"fifo": self._checkpointed.state_dict(self.fifo.files)}

    def load_state_dict(self, state: dict[str, Any], *, move_later_files_aside: bool = False) -> None:
        """Brings `fifo` back to what it held at the checkpoint, as far as files still exist.

        Does nothing without the right to edit.

        Args:
            state: what `state_dict` returned.
            move_later_files_aside: whether files written after the checkpoint move to `buffer/aside`, so that
                the run continues exactly as it would have. Not for buffers that other processes write to.
        """
        if self.has_edit_rights is False:
            return
        self.refresh(force=True)
        self._checkpointed.load_state_dict(
            state["fifo"], self.fifo.files, move_later_files_aside=move_later_files_aside
        )
        self.refresh(force=True)

    def _relist(self) -> None:
        by_writer = [
            sorted(f.files.values(), key=lambda x: x.sampling_key) for f in (self.protected, self.fifo)
        ]
        self._files = list(itertools.chain.from_iterable(by_writer))
        self._transitions_up_to = None

    def _draw(self, read: Callable[[TrajFile], T]) -> T:
        """Reads a random file; one that vanished or cannot be read is passed over, and another drawn."""
        self._draws_until_look -= 1
        if self._draws_until_look < 0:
            self.refresh()
        while True:
            file = self._random_file()
            try:
                return read(file)
            except (FileNotFoundError, CorruptTrajectoryError) as error:
                self._pass_over(file, error)

    def _random_file(self) -> TrajFile:
        if self.sample_by == "timesteps":
            self._measure_files()
        if not self._files:
            raise RuntimeError(
                f"there are no trajectory files in {self.fifo.path} or {self.protected.path}: "
                "collect some, or wait until ready_for_training"
            )
        if self._transitions_up_to is None:
            return self._files[int(self.rng.integers(len(self._files)))]
        drawn = self.rng.integers(self._transitions_up_to[-1])
        return self._files[int(np.searchsorted(self._transitions_up_to, drawn, side="right"))]

    def _measure_files(self) -> None:
        """Sums up the lengths of the files, for draws by timestep; reads those that are new."""
        while self._transitions_up_to is None and self._files:
            for file in self._files:
                try:
                    self._reader.length(file.path)
                except (FileNotFoundError, CorruptTrajectoryError) as error:
                    self._pass_over(file, error)
                    break
            else:
                self._transitions_up_to = np.cumsum([self._reader.length(file.path) for file in self._files])

    def _read_whole(self, file: TrajFile) -> RLData:
        traj = self._reader.whole(file.path)
        if self.relabeler is not None:
            traj = self.relabeler(traj)
            if traj is None:
                raise TypeError(
                    f"{type(self.relabeler).__name__}.relabel must return the trajectory, not None"
                )
        return RLData.from_trajectory(traj)

    def _read_window(self, file: TrajFile) -> RLData:
        assert self.max_seq_len is not None
        return self._reader.window(file.path, self.max_seq_len, self.padded_sampling, self.rng)

    def _pass_over(self, file: TrajFile, error: Exception) -> None:
        """Takes a file off the list that could not be read."""
        corrupt = isinstance(error, CorruptTrajectoryError)
        for folder in (self.fifo, self.protected):
            folder.forget(file, for_good=corrupt)
        self._reader.drop(file.path)
        if corrupt:
            self._reject(Path(file.path), str(error))
        self.refresh(force=True)
        self._relist()

    def _reject(self, path: Path, reason: str) -> None:
        """Warns about a file that is no trajectory, and moves it to quarantine if this process may."""
        if not self.has_edit_rights:
            warnings.warn(f"skipping {path}: {reason}", AmagoWarning, stacklevel=2)
            return
        self.quarantine.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(path, self.quarantine / path.name)
        except FileNotFoundError:
            return  # another process of this run has moved it, and warned
        warnings.warn(f"moved {path} to {self.quarantine}: {reason}", AmagoWarning, stacklevel=2)
