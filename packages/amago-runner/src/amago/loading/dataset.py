"""RLDataset, the interface of training data, and DoNothingDataset.

Item i of a dataset is not a stored item but a random sample: sample i of epoch e has its own random stream,
keyed by (seed, rank, e, i). The samples of an epoch therefore do not depend on the number of loader workers.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

import gin
import numpy as np
from torch.utils.data import Dataset

from amago.envs.arguments import Name, check_arguments
from amago.envs.seeding import stream_seed
from amago.loading.rl_data import RLData, check_padded_sampling


class ExperimentSettings(Protocol):
    """Settings that datasets read from the experiment."""

    batch_size: int
    train_batches_per_epoch: int
    max_seq_len: int
    has_dset_edit_rights: bool

    @property
    def padded_sampling(self) -> str: ...


class RLDataset(Dataset[RLData], ABC):
    """A source of training trajectories.

    Subclasses implement `sample_random_trajectory` with random numbers from `self.rng`, the stream of the current
    sample. Loader workers persist between epochs and work on copies of the dataset: state that affects samples and
    changes during training is returned by `worker_state` and taken over in `load_worker_state`.

    Args:
        dset_name: name for logs; None uses the class's name.
    """

    @check_arguments
    def __init__(self, dset_name: Name | None = None) -> None:
        self.dset_name = dset_name or type(self).__name__
        self.items_per_epoch: int | None = None
        self.max_seq_len: int | None = None
        self.padded_sampling = "none"
        self.has_edit_rights: bool | None = None
        self.rng = np.random.Generator(np.random.PCG64())
        self.epoch = 0
        self.seed_sampling(None)

    def configure(
        self, items_per_epoch: int, max_seq_len: int, padded_sampling: str, has_edit_rights: bool
    ) -> None:
        """Applies the experiment's settings; must be called before the first sample.

        Args:
            items_per_epoch: samples per epoch in this process, at least 1.
            max_seq_len: maximum number of transitions in a sample, at least 1.
            padded_sampling: "none", "both", "left" or "right", see `amago.loading.rl_data.window_bounds`.
            has_edit_rights: whether this process may delete and move stored data.

        Raises:
            ValueError: if a value is out of range.
        """
        for name, value in (("items_per_epoch", items_per_epoch), ("max_seq_len", max_seq_len)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        self.items_per_epoch = int(items_per_epoch)
        self.max_seq_len = int(max_seq_len)
        self.padded_sampling = check_padded_sampling(padded_sampling)
        self.has_edit_rights = bool(has_edit_rights)

    def configure_from_experiment(self, experiment: ExperimentSettings) -> None:
        """`configure` with the experiment's settings: batch_size * train_batches_per_epoch items per epoch."""
        self.configure(
            items_per_epoch=experiment.batch_size * experiment.train_batches_per_epoch,
            max_seq_len=experiment.max_seq_len,
            padded_sampling=experiment.padded_sampling,
            has_edit_rights=experiment.has_dset_edit_rights,
        )

    def set_env_spaces(self, observation_space: Any, rl2_space: Any) -> None:
        """Hook: called by `Experiment.start` with the spaces of one actor, against which files can be checked."""
        return

    def stored_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Row shape of every array of the stored trajectories, by name; None if there are none or it is not known.

        A mixture compares those of its members.
        """
        return None

    def check_configured(self) -> None:
        """Raises RuntimeError if `configure` has not been called."""
        if self.items_per_epoch is None or self.max_seq_len is None:
            raise RuntimeError(
                f"{self.dset_name} is not configured: "
                "call configure(...) or configure_from_experiment(experiment) first"
            )

    def seed_sampling(self, seed: int | None, rank: int = 0) -> None:
        """Sets the seed of all samples of all epochs (None uses fresh entropy) and the rank of this process.

        Data-parallel processes draw different samples.
        """
        self._root = b"%d" % stream_seed(seed, "loader", rank)

    def set_epoch(self, epoch: int) -> None:
        """Moves on to the samples of `epoch`; datasets refresh their view of stored data here."""
        self.epoch = epoch

    @property
    def save_new_trajs_to(self) -> Path | None:
        """Folder to which collected trajectories are written; None drops them."""
        return None

    @property
    def ready_for_training(self) -> bool:
        """Whether samples can be drawn now; read in every epoch."""
        return True

    @property
    def is_overfull(self) -> bool:
        """Whether so much data waits to be deleted that a process which only collects should wait too."""
        return False

    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        """Called once per epoch, between collection and learning; returns metrics to log by name.

        A class that changes what it samples here also defines `worker_state`; without it, loader workers are
        started anew in every epoch.
        """
        return {}

    def delete(self) -> None:
        """Deletes stored data, if the dataset has any."""
        return

    def get_description(self) -> str:
        """One line that describes the dataset."""
        return self.dset_name

    @abstractmethod
    def sample_random_trajectory(self) -> RLData:
        """Samples a whole trajectory with `self.rng`."""

    def sample_random_slice(self) -> RLData:
        """Samples a random window of a random trajectory.

        Override it in datasets that can read a window without the rest of the trajectory.
        """
        self.check_configured()
        assert self.max_seq_len is not None
        return self.sample_random_trajectory().random_slice(self.max_seq_len, self.padded_sampling, self.rng)

    def __bool__(self) -> bool:
        """True, also before `configure`, when the number of samples is not known."""
        return True

    def __len__(self) -> int:
        """Samples per epoch."""
        self.check_configured()
        assert self.items_per_epoch is not None
        return self.items_per_epoch

    def __getitem__(self, i: int) -> RLData:
        """Sample `i` of the current epoch; the same in every process and every time."""
        if not 0 <= i < len(self):
            raise IndexError(f"an epoch of {self.dset_name} has {len(self)} samples; the index is {i}")
        self._begin_sample(i)
        return self.sample_random_slice()

    def _begin_sample(self, i: int) -> None:
        """Sets `rng` to the beginning of the stream of sample `i`."""
        name = b"%d,%d,0" % (self.epoch, i)
        digest = hashlib.blake2b(name, key=self._root, digest_size=32).digest()
        # Setting the state takes a tenth of the time of a new generator.
        self.rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {
                "state": int.from_bytes(digest[:16], "little"),
                "inc": int.from_bytes(digest[16:], "little") | 1,
            },
            "has_uint32": 0,
            "uinteger": 0,
        }

    def worker_state(self) -> Any:
        """State that loader workers need at the beginning of an epoch; must be small and picklable."""
        return None

    def load_worker_state(self, state: Any) -> None:
        """Takes over `worker_state` of the main process."""
        return

    @property
    def workers_can_persist(self) -> bool:
        """Whether loader workers may keep their copies of the dataset between epochs.

        False for a class that overrides `on_end_of_collection`, and so may change state, without `worker_state`.
        """
        for cls in type(self).__mro__:
            if "worker_state" in vars(cls):
                return True
            if "on_end_of_collection" in vars(cls):
                return False
        return True

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, of JSON types."""
        return {}

    def load_state_dict(self, state: dict[str, Any], *, later_files_of: Collection[str] = ()) -> None:
        """Restores the state of a checkpoint; see `DiskTrajDataset.load_state_dict` for the files.

        It is called in all processes; without edit rights it must not change files.
        """
        return


@gin.configurable(module="amago.loading")
class DoNothingDataset(RLDataset):
    """An empty dataset, for experiments that only evaluate."""

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
        """One line that describes the dataset."""
        return "no dataset: nothing is saved and nothing is learned"

    def sample_random_trajectory(self) -> RLData:
        """Raises RuntimeError: there is nothing to sample."""
        raise RuntimeError(
            "DoNothingDataset holds no trajectories; give the experiment another dataset to train on"
        )
