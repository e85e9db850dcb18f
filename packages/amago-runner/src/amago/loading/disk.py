"""The replay buffer: a folder of trajectory files that any number of processes write to and draw from.

`buffer/fifo` takes new data and loses its oldest files once it holds too many; `buffer/protected` is drawn
from in the same way and never deleted. Files that turn out to be no trajectories move to `buffer/quarantine`.
There is no index and no lock: the listing of the folder is the buffer.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gin
import numpy as np
from numpy.typing import ArrayLike

from amago.hindsight import CorruptTrajectoryError, FrozenTraj, Relabeler, load_trajectory
from amago.loading.buffer_files import BufferFiles, News
from amago.loading.checkpointed_files import CheckpointedFiles
from amago.loading.dataset import RLDataset
from amago.loading.drawing import FileDrawer, Weigh
from amago.loading.files import TrajFile, TrajFolder
from amago.loading.quarantine import Quarantine
from amago.loading.reader import TrajReader, Usual
from amago.loading.relabelling import checked_relabeler, relabelled, sees_whole_trajectories
from amago.loading.sample import RLData
from amago.loading.windows import Window, WindowLostError, read_window
from amago.utils import amago_warning

SAMPLE_BY = ("files", "timesteps")


def get_path_to_trajs(dset_root: str | Path, dset_name: str, fifo: bool) -> Path:
    """The folder of a buffer's trajectory files: `{dset_root}/{dset_name}/buffer/{fifo or protected}`."""
    return Path(dset_root).expanduser() / dset_name / "buffer" / ("fifo" if fifo else "protected")


def load_traj_from_disk(path: str | Path) -> FrozenTraj:
    """Reads a trajectory file of either format.

    Raises:
        CorruptTrajectoryError, TrajectoryTooLargeError, OSError: as `amago.hindsight.load_trajectory`.
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
            chance is proportional to its length, for which every file's header is read once. For anything
            else override `sampling_weights`.
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
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, not {cache_bytes!r}")
        self.dset_root = Path(dset_root).expanduser()
        self.dset_max_size = dset_max_size
        self.dset_min_size = dset_min_size
        self.relabeler = checked_relabeler(relabeler)
        self.sample_by = sample_by
        self.cache_bytes = cache_bytes
        fifo, protected = (get_path_to_trajs(dset_root, dset_name, is_fifo) for is_fifo in (True, False))
        for folder in (fifo, protected):
            folder.mkdir(parents=True, exist_ok=True)
        self.fifo = TrajFolder(fifo)
        self.protected = TrajFolder(protected, any_name=True)
        self.quarantine = fifo.parent / "quarantine"
        self._checkpointed = CheckpointedFiles(fifo, fifo.parent / "on_hold", fifo.parent / "aside")
        kept = len(os.listdir(protected))
        if dset_min_size > dset_max_size + kept:
            amago_warning(
                f"dset_min_size is {dset_min_size}, but fifo holds at most {dset_max_size} files and protected "
                f"has {kept}: training never begins unless more are put there. Make it at most dset_max_size."
            )
        self._files = BufferFiles(self.fifo, self.protected)
        self._drawer = FileDrawer(self._files, TrajReader(cache_bytes), Quarantine(self.quarantine))

    def configure(
        self, items_per_epoch: int, max_seq_len: int, padded_sampling: str, has_edit_rights: bool
    ) -> None:
        """As `RLDataset.configure`; with the right to edit, what is no trajectory moves to the quarantine."""
        super().configure(items_per_epoch, max_seq_len, padded_sampling, has_edit_rights)
        self._drawer.may_move = bool(has_edit_rights)

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
        self._drawer.refresh(force=force)

    def note_written(self, path: Path) -> None:
        """Puts a file on the list that this process has written; may be called in any thread."""
        if Path(path).parent == self.fifo.path:
            self.fifo.note_written(Path(path).name)

    def set_epoch(self, epoch: int) -> None:
        """Moves on to the draws of `epoch`, from the files that are there now."""
        super().set_epoch(epoch)
        self.refresh()
        self._files.reweigh()

    def sampling_weights(self, files: Sequence[TrajFile]) -> ArrayLike | None:
        """The weight of each file in the draws to come; a hook, asked at every epoch and when files come or go.

        Override it to prefer new files (`file.unix_time`), to balance environments (`file.env_name`), or to
        prioritise. It is also called in loader workers, so what it depends on and changes goes through
        `worker_state`.

        Args:
            files: all that can be drawn, in the order of writers and sequence numbers.

        Returns:
            numbers of at least 0, one per file, of any sum; or None for equal chances.
        """
        if self.sample_by == "files":
            return None
        lengths = np.zeros(len(files))
        for i, file in enumerate(files):
            try:
                lengths[i] = self._drawer.reader.length(file.path)
            except (OSError, CorruptTrajectoryError) as error:
                self._drawer.pass_over(file, error)
        return lengths

    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        """Deletes the oldest files that `fifo` holds beyond `dset_max_size`, given the right to edit."""
        self.refresh()
        deleted = 0
        if self.has_edit_rights:
            self._checkpointed.checkpoint_written()
            excess = len(self.fifo.files) - self.dset_max_size
            if excess > 0:
                deleted = self._delete_oldest(math.ceil(excess))
        return {
            "Trajectory Files in FIFO": float(len(self.fifo.files)),
            "Trajectory Files in Protected": float(len(self.protected.files)),
            "Trajectory Files Deleted": float(deleted),
        }

    def _delete_oldest(self, count: int) -> int:
        oldest = self.fifo.oldest(count)
        names = [file.name for file in oldest]
        folders = self._checkpointed.delete(names)
        self._files.note_deleted(names)
        for file in oldest:
            self._drawer.reader.drop(file.path)
        for name in folders:
            self._drawer.reject(self.fifo.path / name, "it is a folder")
        return len(oldest) - len(folders)

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
        self._files.start_over()

    def sample_random_trajectory(self) -> RLData:
        """Draws a file and reads all of it, relabelled if there is a relabeler; the arrays may be written to."""
        read = self._drawer.reader.whole
        traj = self._drawer.draw(lambda file: read(file.path), self.rng, self._weigh())
        return RLData.from_trajectory(relabelled(traj, self.relabeler))

    def sample_random_slice(self) -> RLData:
        """Draws a window of a random file. Without a relabeler its arrays may be views and read-only."""
        if self._reads_whole_files():
            return super().sample_random_slice()
        window = self._random_window()
        while True:
            try:
                return read_window(window)
            except WindowLostError as lost:
                window = lost.redraw()

    def sample_window(self) -> Window:
        """Draws a window of a random file, which need not be read yet."""
        customised = type(self).sample_random_slice is not DiskTrajDataset.sample_random_slice
        through_slice = customised or self._reads_whole_files()
        return super().sample_window() if through_slice else self._random_window()

    def mixing_explained(self) -> AbstractContextManager[None]:
        """A context in which errors of windows that fit no common batch name the files."""
        return self._drawer.mixing_explained()

    def worker_state(self) -> tuple[tuple[News, ...] | None, Usual | None]:
        """What this process wrote and deleted, and what files usually hold; workers see the rest themselves."""
        self._files.take_written()
        return self._files.news(), self._drawer.usual()

    def load_worker_state(self, state: tuple[tuple[News, ...] | None, Usual | None]) -> None:
        """Takes over what the main process knows."""
        self._files.load_news(state[0])
        self._drawer.reader.tell_usual(state[1])

    def start_worker(self, workers: int) -> None:
        """Gives this worker its share of the memory, and of the files that may be put aside."""
        self._drawer.start_worker(workers, self.cache_bytes)

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
        self._files.start_over()

    def _reads_whole_files(self) -> bool:
        customised = type(self).sample_random_trajectory is not DiskTrajDataset.sample_random_trajectory
        return customised or sees_whole_trajectories(self.relabeler)

    def _random_window(self) -> Window:
        self.check_configured()
        assert self.max_seq_len is not None
        return self._drawer.window(self.max_seq_len, self.padded_sampling, self.rng, self._weigh())

    def _weigh(self) -> Weigh | None:
        """None where all files have the same chance."""
        inherits = type(self).sampling_weights is DiskTrajDataset.sampling_weights
        return None if self.sample_by == "files" and inherits else self.sampling_weights
