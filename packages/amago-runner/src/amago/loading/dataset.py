"""What a dataset is to the training loop, and the dataset of those who do not train.

A dataset is read by index, but an index names a draw and not a stored item: sample i of epoch e is drawn with
a random stream of its own, keyed by (seed, rank, e, i). So the samples of an epoch do not depend on how many
loader workers share the drawing, nor on the order in which they finish.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import gin
import numpy as np
from torch.utils.data import Dataset

from amago.envs.seeding import stream_seed
from amago.loading.collate import pad_into
from amago.loading.packing import Allocate, PackedBatch
from amago.loading.sample import RLData, check_padded_sampling
from amago.loading.windows import MemoryWindow, Window, WindowLostError


class ExperimentSettings(Protocol):
    """What datasets read from the experiment that uses them."""

    batch_size: int
    train_batches_per_epoch: int
    max_seq_len: int
    padded_sampling: str
    has_dset_edit_rights: bool


class RLDataset(Dataset[RLData], ABC):
    """A source of training trajectories; subclasses say how one is drawn.

    The one method to write is `sample_random_trajectory`. Its random numbers come from `self.rng`, which
    stands ready for the sample being drawn. A dataset that keeps state which its draws depend on and which
    changes during training returns it from `worker_state` and takes it in `load_worker_state`: loader workers
    live on from epoch to epoch and work on copies of the dataset.

    Args:
        dset_name: name for logs; the class's name if left out.
    """

    def __init__(self, dset_name: str | None = None) -> None:
        self.dset_name = dset_name or type(self).__name__
        self.items_per_epoch: int | None = None
        self.max_seq_len: int | None = None
        self.padded_sampling = "none"
        self.has_edit_rights: bool | None = None
        self._stream = np.random.Generator(np.random.PCG64())
        self.rng: np.random.Generator = self._stream
        self.epoch = 0
        self.seed_sampling(None)

    def configure(
        self, items_per_epoch: int, max_seq_len: int, padded_sampling: str, has_edit_rights: bool
    ) -> None:
        """Sets what the experiment decides; to be called before the first sample.

        Args:
            items_per_epoch: samples in an epoch of this process, at least 1.
            max_seq_len: transitions in a sample at most, at least 1.
            padded_sampling: "none", "both", "left" or "right", see `amago.loading.sample.window_bounds`.
            has_edit_rights: whether this process may delete and move stored data.

        Raises:
            ValueError: for a value outside these ranges.
        """
        for name, value in (("items_per_epoch", items_per_epoch), ("max_seq_len", max_seq_len)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        self.items_per_epoch = int(items_per_epoch)
        self.max_seq_len = int(max_seq_len)
        self.padded_sampling = check_padded_sampling(padded_sampling)
        self.has_edit_rights = bool(has_edit_rights)

    def configure_from_experiment(self, experiment: ExperimentSettings) -> None:
        """`configure` with the experiment's settings: batch_size * train_batches_per_epoch items an epoch."""
        self.configure(
            items_per_epoch=experiment.batch_size * experiment.train_batches_per_epoch,
            max_seq_len=experiment.max_seq_len,
            padded_sampling=experiment.padded_sampling,
            has_edit_rights=experiment.has_dset_edit_rights,
        )

    def check_configured(self) -> None:
        """Raises RuntimeError if `configure` has not been called."""
        if self.items_per_epoch is None or self.max_seq_len is None:
            raise RuntimeError(
                f"{self.dset_name} is not configured: "
                "call configure(...) or configure_from_experiment(experiment) first"
            )

    @property
    def seed(self) -> int | None:
        """The seed that fixes every draw of every epoch; None stands for fresh entropy."""
        return self._seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self.seed_sampling(seed, self.rank)

    def seed_sampling(self, seed: int | None, rank: int = 0) -> None:
        """Sets `seed` and, where several processes train in parallel, the `rank` that tells their draws apart."""
        self._seed, self.rank = seed, rank
        self._root = b"%d" % stream_seed(seed, "loader", rank)

    def set_epoch(self, epoch: int) -> None:
        """Moves on to the draws of `epoch`; also the moment at which stored data is looked at anew."""
        self.epoch = epoch

    @property
    def save_new_trajs_to(self) -> Path | None:
        """Folder into which collected trajectories are written, or None if they are not to be kept."""
        return None

    def note_written(self, path: Path) -> None:
        """Called by the thread that writes trajectories, with each file that it has put into the folder."""
        return

    @property
    def ready_for_training(self) -> bool:
        """Whether samples can be drawn; asked again in every epoch, so it must not remember an old answer."""
        return True

    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        """Called once an epoch, between collecting and learning; returns metrics to log by name."""
        return {}

    def delete(self) -> None:
        """Removes stored data, where there is any to remove."""
        return

    def get_description(self) -> str:
        """One line about the dataset for people who start a run."""
        return self.dset_name

    @abstractmethod
    def sample_random_trajectory(self) -> RLData:
        """Draws a whole trajectory with `self.rng`."""

    def sample_random_slice(self) -> RLData:
        """Draws a training sample: a window of a random trajectory.

        Datasets that can read a window without the rest override this.
        """
        self.check_configured()
        assert self.max_seq_len is not None
        return self.sample_random_trajectory().random_slice(self.max_seq_len, self.padded_sampling, self.rng)

    def sample_window(self) -> Window:
        """Draws a training sample that need not be read yet: `sample_random_slice`, unless overridden."""
        return MemoryWindow.of(self.sample_random_slice())

    def draw_batch(self, first: int, batch_size: int, allocate: Allocate) -> PackedBatch:
        """Draws samples `first` to `first + batch_size` of the current epoch into memory that `allocate` makes."""
        with self.mixing_explained():
            if type(self).__getitem__ is not RLDataset.__getitem__:
                return pad_into(
                    [MemoryWindow.of(self[i]) for i in range(first, first + batch_size)], allocate
                )
            windows = []
            for i in range(first, first + batch_size):
                self._begin_sample(i)
                windows.append(self.sample_window())
            again = 0
            while True:
                try:
                    return pad_into(windows, allocate)
                except WindowLostError as lost:
                    again += 1
                    self._begin_sample(first + lost.row, again)
                    windows[lost.row] = lost.redraw()

    def mixing_explained(self) -> AbstractContextManager[None]:
        """A context in which errors of windows that fit no common batch are told with their files, if known."""
        return nullcontext()

    def __len__(self) -> int:
        """Samples in an epoch."""
        self.check_configured()
        assert self.items_per_epoch is not None
        return self.items_per_epoch

    def __getitem__(self, i: int) -> RLData:
        """Draws sample `i` of the current epoch; the same one whenever and wherever it is asked for."""
        if not 0 <= i < len(self):
            raise IndexError(f"an epoch of {self.dset_name} has {len(self)} samples, there is no sample {i}")
        self._begin_sample(i)
        return self.sample_random_slice()

    def _begin_sample(self, i: int, again: int = 0) -> None:
        """Sets `rng` to the start of the stream of sample `i`, or of its replacements from 1 on."""
        name = b"%d,%d,%d" % (self.epoch, i, again)
        digest = hashlib.blake2b(name, key=self._root, digest_size=32).digest()
        # A generator with another state costs a tenth of another generator.
        self._stream.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {
                "state": int.from_bytes(digest[:16], "little"),
                "inc": int.from_bytes(digest[16:], "little") | 1,
            },
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.rng = self._stream

    def worker_state(self) -> Any:
        """What the copies in loader workers must know about this dataset before an epoch; small and picklable."""
        return None

    def load_worker_state(self, state: Any) -> None:
        """Takes what `worker_state` returned in the main process."""
        return

    def start_worker(self, workers: int) -> None:
        """Called once in each loader worker, on its own copy; `workers` copies share the machine's memory."""
        return

    @property
    def workers_can_persist(self) -> bool:
        """Whether loader workers may keep their copies from epoch to epoch.

        Not so for a class that does something at the end of collection but says nothing through `worker_state`.
        """
        lineage = type(self).__mro__

        def depth(name: str) -> int:
            return next(i for i, cls in enumerate(lineage) if name in vars(cls))

        return depth("worker_state") <= depth("on_end_of_collection")

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the dataset, as JSON-able values."""
        return {}

    def load_state_dict(self, state: dict[str, Any], *, move_later_files_aside: bool = False) -> None:
        """Goes back to a checkpoint's state; see `DiskTrajDataset.load_state_dict` for the files."""
        return


@gin.configurable(module="amago.loading")
class DoNothingDataset(RLDataset):
    """Keeps nothing and yields nothing: for evaluation, and wherever an experiment must not train."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def save_new_trajs_to(self) -> None:
        """None: collected trajectories are dropped."""
        return

    @property
    def ready_for_training(self) -> bool:
        """Always False."""
        return False

    def get_description(self) -> str:
        """One line about the dataset."""
        return "no dataset: nothing is saved and nothing is learned"

    def sample_random_trajectory(self) -> RLData:
        """Raises RuntimeError: there is nothing to draw from."""
        raise RuntimeError(
            "DoNothingDataset holds no trajectories; give the experiment another dataset to train on"
        )
