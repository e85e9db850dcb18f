"""DiskTrajDataset: a replay buffer of trajectory files that any number of processes may share.

`buffer/fifo` receives new files and loses the oldest once it holds too many. `buffer/protected` is sampled in
the same way and never deleted. Files that cannot be used move to `buffer/quarantine`.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import gin
import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike

from amago.envs.arguments import MAY_BE_INFINITE, Count, Name, check_arguments
from amago.hindsight import FrozenTraj, NoOpRelabeler, load_trajectory
from amago.hindsight.trajectory import OBS_KEY_PREFIX
from amago.loading.dataset import ExperimentSettings, RLDataset
from amago.loading.deferred_deletion import DeferredDeletion
from amago.loading.file_index import FileIndex, TrajFile
from amago.loading.file_sampler import FILE_ERRORS, FileSampler, Schema
from amago.loading.rl_data import RLData
from amago.utils import amago_warning


def get_path_to_trajs(dset_root: str | Path, dset_name: str, fifo: bool) -> Path:
    """Folder of trajectory files: `{dset_root}/{dset_name}/buffer/{fifo or protected}`."""
    return Path(dset_root).expanduser() / dset_name / "buffer" / ("fifo" if fifo else "protected")


def env_shapes(observation_space: Any, rl2_space: Any) -> dict[str, tuple[int, ...]]:
    """Row shapes of the arrays that environments with these spaces write, by name."""
    shapes = {OBS_KEY_PREFIX + key: space.shape for key, space in observation_space.items()}
    return {**shapes, "rl2s": rl2_space.shape}


def load_traj_from_disk(path: str | Path) -> FrozenTraj:
    """Reads a trajectory file of any format.

    Raises:
        CorruptTrajectoryError, OSError: as `amago.hindsight.load_trajectory`.
    """
    return load_trajectory(Path(path))


@gin.configurable(module="amago.loading")
class DiskTrajDataset(RLDataset):
    """Samples from the trajectory files in `{dset_root}/{dset_name}/buffer`.

    Args:
        dset_root: folder of datasets; `~` is expanded.
        dset_name: name of the dataset and of its folder.
        dset_max_size: maximum number of files in `fifo`; the oldest are deleted beyond it. May be infinite.
        dset_min_size: number of files in fifo and protected together from which training begins, at least 1.
        relabeler: edits each sampled trajectory before it is sliced, see `amago.hindsight.Relabeler`. Files are
            then read whole.
        sample_by: "files" gives every file the same probability, "timesteps" every transition: a file's
            probability is proportional to its length, so every header is read once. For other weights override
            `sampling_weights`.
        cache_bytes: memory for decoded trajectories, divided among the loader workers; 0 turns the cache off.

    Raises:
        ValueError: if a size is out of range or `sample_by` is unknown.
        TypeError: if `relabeler` is not callable.
    """

    @check_arguments
    def __init__(
        self,
        dset_root: str | Path,
        dset_name: Name,
        dset_max_size: Annotated[float, Ge(1), MAY_BE_INFINITE],
        dset_min_size: Annotated[int, Ge(1)] = 1,
        relabeler: Callable[[FrozenTraj], FrozenTraj] | None = None,
        *,
        sample_by: Literal["files", "timesteps"] = "files",
        cache_bytes: Count = 512 << 20,
    ) -> None:
        super().__init__(dset_name)
        self.dset_root = Path(dset_root).expanduser()
        self.dset_max_size = dset_max_size
        self.dset_min_size = dset_min_size
        self.relabeler = relabeler
        self.sample_by = sample_by
        self.cache_bytes = cache_bytes
        self.fifo_folder = get_path_to_trajs(dset_root, dset_name, fifo=True)
        self.protected_folder = get_path_to_trajs(dset_root, dset_name, fifo=False)
        for folder in (self.fifo_folder, self.protected_folder):
            folder.mkdir(parents=True, exist_ok=True)
        buffer = self.fifo_folder.parent
        self.index = FileIndex(buffer)
        self._sampler = FileSampler(self.index, self.sampling_weights, cache_bytes)
        self._deletion = DeferredDeletion(
            self.fifo_folder, buffer / "on_hold", buffer / "newer_than_checkpoint"
        )
        self.index.refresh()
        protected = len(self.index.protected)
        if dset_min_size > dset_max_size + protected:
            amago_warning(
                f"dset_min_size is {dset_min_size}, but fifo holds at most {dset_max_size} files and protected "
                f"{protected}, so training never begins. Set it to at most dset_max_size."
            )
        if self._samples_its_own:
            amago_warning(
                f"{type(self).__name__} overrides sample_random_trajectory: every sample reads a whole file, not "
                "only its window, which is slower for long trajectories; the samples are the same"
            )

    def configure(
        self, items_per_epoch: int, max_seq_len: int, padded_sampling: str, has_edit_rights: bool
    ) -> None:
        """As `RLDataset.configure`; with edit rights, unusable files are moved to the quarantine."""
        super().configure(items_per_epoch, max_seq_len, padded_sampling, has_edit_rights)
        self.index.may_move = bool(has_edit_rights)

    def configure_from_experiment(self, experiment: ExperimentSettings) -> None:
        """As `RLDataset.configure_from_experiment`; warns if the buffer can hold less than a batch."""
        super().configure_from_experiment(experiment)
        most = self.dset_max_size + len(self.index.protected)
        if most < experiment.batch_size:
            amago_warning(
                f"{self.dset_name} holds at most {most:g} trajectory files, fewer than batch_size="
                f"{experiment.batch_size}: every batch repeats files. Set dset_max_size to at least "
                f"{experiment.batch_size}, or more, or batch_size to less."
            )

    def set_env_spaces(self, observation_space: Any, rl2_space: Any) -> None:
        """Takes a file with the arrays of these spaces as the reference; files that differ are quarantined."""
        self._sampler.set_expected_shapes(env_shapes(observation_space, rl2_space))

    def stored_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Row shapes of the reference file."""
        return self._sampler.reference_shapes()

    @property
    def save_new_trajs_to(self) -> Path | None:
        """The fifo folder."""
        return self.fifo_folder

    @property
    def ready_for_training(self) -> bool:
        """Whether fifo and protected together hold `dset_min_size` files now."""
        self.index.refresh()
        return len(self.index.files) >= self.dset_min_size

    @property
    def is_overfull(self) -> bool:
        """Whether fifo holds more than twice `dset_max_size` files now."""
        self.index.refresh()
        return len(self.index.fifo) > 2 * self.dset_max_size

    def get_description(self) -> str:
        """Path and number of files."""
        self.index.refresh()
        return (
            f"{self.dset_name}: {len(self.index.fifo)} trajectory files of at most {self.dset_max_size:g} in "
            f"{self.fifo_folder}, {len(self.index.protected)} more in {self.protected_folder}"
        )

    def set_epoch(self, epoch: int) -> None:
        """Moves on to the samples of `epoch`, from the files that are in the buffer now."""
        super().set_epoch(epoch)
        self._sampler.refresh()

    def sampling_weights(self, files: Sequence[TrajFile]) -> ArrayLike | None:
        """Sampling weight of each file; a hook, called at every epoch and when files disappear.

        Override it to prefer new files (`file.unix_time`), to balance environments (`file.env_name`), or to
        prioritise. Loader workers call it too, so state that it depends on must go through `worker_state`.

        Args:
            files: all files, in the order of writers and sequence numbers.

        Returns:
            one weight per file, at least 0, of any sum; or None for equal weights.
        """
        if self.sample_by == "files":
            return None
        lengths = np.zeros(len(files))
        for i, file in enumerate(files):
            try:
                lengths[i] = self._sampler.length(file)
            except FILE_ERRORS as error:
                self._sampler.handle_unreadable(file, error)
        return lengths

    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        """Deletes the oldest files beyond `dset_max_size`, with edit rights; returns metrics of the buffer."""
        self.index.refresh()
        deleted = 0
        if self.has_edit_rights:
            self._deletion.checkpoint_written()
            excess = len(self.index.fifo) - self.dset_max_size
            if excess > 0:
                oldest = self.index.oldest(math.ceil(excess))
                self._deletion.delete(file.name for file in oldest)
                deleted = len(oldest)
                self.index.refresh()
        return {
            "Trajectory Files in FIFO": float(len(self.index.fifo)),
            "Trajectory Files in Protected": float(len(self.index.protected)),
            "Trajectory Files Deleted": float(deleted),
            "Size on Disk (MB)": sum(file.size for file in self.index.files) / 1e6,
        }

    def delete(self, delete_protected: bool = False) -> None:
        """Deletes all files of `fifo`, and with `delete_protected` those of `protected`.

        Raises:
            PermissionError: if the dataset was configured without edit rights.
        """
        if self.has_edit_rights is False:
            raise PermissionError(
                f"{self.dset_name} was configured without edit rights, so it deletes nothing"
            )
        folders = [self.fifo_folder, self._deletion.on_hold, self._deletion.newer_than_checkpoint]
        for folder in [*folders, self.protected_folder] if delete_protected else folders:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.fifo_folder, self.protected_folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.index.refresh()

    def sample_random_trajectory(self) -> RLData:
        """A random trajectory, relabelled, in writable arrays."""
        traj = self._sampler.draw(self._sampler.read_whole, self.rng)
        if self.relabeler is not None:
            if hasattr(self.relabeler, "rng"):
                self.relabeler.rng = self.rng
            traj = self.relabeler(traj)
            if traj is None:
                raise TypeError(
                    f"{type(self.relabeler).__name__}.relabel must return the trajectory, not None"
                )
        return RLData(traj)

    def sample_random_slice(self) -> RLData:
        """A random window of a random file. Without a relabeler its arrays may be read-only views."""
        if self._samples_its_own or not (self.relabeler is None or type(self.relabeler) is NoOpRelabeler):
            return super().sample_random_slice()
        self.check_configured()
        assert self.max_seq_len is not None
        length, padded_sampling, rng = self.max_seq_len, self.padded_sampling, self.rng
        return self._sampler.draw(
            lambda file: self._sampler.read_window(file, length, padded_sampling, rng), rng
        )

    @property
    def _samples_its_own(self) -> bool:
        return type(self).sample_random_trajectory is not DiskTrajDataset.sample_random_trajectory

    def worker_state(self) -> tuple[str, Schema] | None:
        """Path and schema of the file that all others must match."""
        return self._sampler.reference()

    def load_worker_state(self, state: tuple[str, Schema] | None) -> None:
        """Takes over `worker_state` of the main process."""
        self._sampler.set_reference(state)

    def state_dict(self) -> dict[str, Any]:
        """The files of `fifo`. They stay on disk, deleted or not, until the next checkpoint is written."""
        self.index.refresh()
        return {"fifo": self._deletion.state_dict(file.name for file in self.index.fifo)}

    def load_state_dict(self, state: dict[str, Any], *, later_files_of: Collection[str] = ()) -> None:
        """Restores the files that `fifo` held at the checkpoint, as far as they still exist.

        Does nothing without edit rights.

        Args:
            state: result of `state_dict`.
            later_files_of: writer ids (see `trajectory_filename`). Files that these writers wrote after the
                checkpoint are moved to `buffer/newer_than_checkpoint`, so that the resumed run is identical to one
                that was not interrupted. That folder holds those of the last resume only. Files of other writers
                stay.
        """
        if self.has_edit_rights is False:
            return
        self.index.refresh()
        self._deletion.load_state_dict(
            state["fifo"],
            [file.name for file in self.index.fifo],
            later_files_of=later_files_of,
        )
        self.index.refresh()
