"""Several datasets as one, each drawn from with a weight of its own.

A member that becomes ready late, like a replay buffer beside an offline dataset, can be phased in, so that its
first few trajectories are not drawn over and over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from amago.loading.dataset import ExperimentSettings, RLDataset
from amago.loading.sample import RLData
from amago.loading.windows import Window


class HasEpoch(Protocol):
    """An experiment that knows which epoch it is in."""

    @property
    def epoch(self) -> int:
        """Epochs since the start of the run."""
        ...


class MixtureOfDatasets(RLDataset):
    """Draws every sample from one of several datasets, chosen by weight among those that are ready.

    With `smooth_sudden_starts` = S, a member with weight w that became ready in epoch e₀ has in epoch e the
    weight clip(w₀ + (w - w₀)(e - e₀ + 1) / S) between w₀ and w. Members that are not ready weigh nothing. The
    weights are normalised in the end.

    Args:
        datasets: the members, at least one.
        sampling_weights: w of each member, at least 0, not all 0.
        initial_sampling_weights: w₀ of each member. Left out, it is w for members that are ready at the start
            and 0 for the others.
        smooth_sudden_starts: S in epochs, at least 1; None gives every ready member its w at once.
        dset_name: name for logs.

    Raises:
        ValueError: if the lists differ in length or a number is out of range.
        TypeError: for what is no dataset or no number.
    """

    def __init__(
        self,
        datasets: Sequence[RLDataset],
        sampling_weights: Sequence[float],
        initial_sampling_weights: Sequence[float] | None = None,
        smooth_sudden_starts: int | None = None,
        dset_name: str | None = None,
    ) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets must hold at least one dataset, not none")
        for dataset in self.datasets:
            if not isinstance(dataset, RLDataset):
                raise TypeError(f"datasets must be RLDatasets, not {dataset!r}")
        super().__init__(dset_name)
        self.sampling_weights = self._checked("sampling_weights", sampling_weights)
        self.initial_sampling_weights = (
            None
            if initial_sampling_weights is None
            else self._checked("initial_sampling_weights", initial_sampling_weights)
        )
        if smooth_sudden_starts is not None and smooth_sudden_starts < 1:
            raise ValueError(
                f"smooth_sudden_starts must be None or at least 1 epoch, not {smooth_sudden_starts!r}"
            )
        self.smooth_sudden_starts = smooth_sudden_starts
        self.member_names = _distinct([dataset.dset_name for dataset in self.datasets])
        self._ready_at_start: list[bool] | None = None
        self._ready_since: list[int | None] = [None] * len(self.datasets)
        self._probabilities = np.zeros(len(self.datasets))

    def _checked(self, name: str, given: Sequence[float]) -> list[float]:
        weights = [weight.item() if hasattr(weight, "item") else weight for weight in given]
        if len(weights) != len(self.datasets):
            raise ValueError(
                f"{name} must hold {len(self.datasets)} weights, one per dataset, not {len(weights)}"
            )
        if any(not isinstance(weight, Real) for weight in weights):
            raise TypeError(f"{name} must be numbers, not {weights}")
        if any(not (math.isfinite(weight) and weight >= 0) for weight in weights):
            raise ValueError(f"{name} must be finite and at least 0, not {weights}")
        if not math.isfinite(sum(weights)):
            raise ValueError(f"{name} must have a finite sum, not {weights}")
        if name == "sampling_weights" and not any(weights):
            raise ValueError(f"{name} must not all be 0")
        return [float(weight) for weight in weights]

    def configure(
        self, items_per_epoch: int, max_seq_len: int, padded_sampling: str, has_edit_rights: bool
    ) -> None:
        """Configures the mixture and all members alike."""
        super().configure(items_per_epoch, max_seq_len, padded_sampling, has_edit_rights)
        for dataset in self.datasets:
            dataset.configure(items_per_epoch, max_seq_len, padded_sampling, has_edit_rights)
        self._start()

    def configure_from_experiment(self, experiment: ExperimentSettings) -> None:
        """Lets the mixture and every member take what they need from the experiment."""
        super().configure_from_experiment(experiment)
        for dataset in self.datasets:
            dataset.configure_from_experiment(experiment)
        self._start()

    def seed_sampling(self, seed: int | None, rank: int = 0) -> None:
        """Fixes the draws of the mixture and of its members."""
        super().seed_sampling(seed, rank)
        for dataset in self.datasets:
            dataset.seed_sampling(seed, rank)

    def set_epoch(self, epoch: int) -> None:
        """Moves the mixture and its members on to the draws of `epoch`."""
        super().set_epoch(epoch)
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    @property
    def save_new_trajs_to(self) -> Path | None:
        """The folder of the first member that keeps new trajectories, or None."""
        return next((d.save_new_trajs_to for d in self.datasets if d.save_new_trajs_to is not None), None)

    def note_written(self, path: Path) -> None:
        """Tells the members, of which the file's folder concerns one."""
        for dataset in self.datasets:
            dataset.note_written(path)

    @property
    def ready_for_training(self) -> bool:
        """Whether there is a member to draw from: one that is ready and not weighted 0 for good."""
        return any(
            d.ready_for_training for d, w in zip(self.datasets, self.sampling_weights, strict=True) if w > 0
        )

    def update_dset_weights(self, epoch: int) -> dict[str, float]:
        """Brings the weights to `epoch`; returns each member's weight before and after normalising, by name."""
        if self._ready_at_start is None:
            self._start()
        weights = [self._weight(member, epoch) for member in range(len(self.datasets))]
        total = sum(weights)
        self._probabilities = np.array(weights) / total if total > 0 else np.zeros(len(weights))
        metrics: dict[str, float] = {}
        for name, weight, probability in zip(self.member_names, weights, self._probabilities, strict=True):
            metrics[f"{name} Current Sample Weight"] = weight
            metrics[f"{name} Normalized Sample Weight"] = float(probability)
        return metrics

    def on_end_of_collection(self, experiment: HasEpoch) -> dict[str, float]:
        """Lets every member finish the collection, then updates the weights."""
        metrics: dict[str, float] = {}
        for name, dataset in zip(self.member_names, self.datasets, strict=True):
            metrics |= {
                f"{name} {key}": value for key, value in dataset.on_end_of_collection(experiment).items()
            }
        return metrics | self.update_dset_weights(experiment.epoch)

    def delete(self) -> None:
        """Deletes what the members hold."""
        for dataset in self.datasets:
            dataset.delete()

    def get_description(self) -> str:
        """The members and their weights."""
        members = zip(self.datasets, self.sampling_weights, strict=True)
        return f"{self.dset_name} of " + "; ".join(f"{w:g} x [{d.get_description()}]" for d, w in members)

    def sample_random_trajectory(self) -> RLData:
        """Draws a member, and a trajectory from it."""
        return self._random_member().sample_random_trajectory()

    def sample_random_slice(self) -> RLData:
        """Draws a member, and a window from it."""
        return self._random_member().sample_random_slice()

    def sample_window(self) -> Window:
        """Draws a member, and a window from it that need not be read yet."""
        if type(self).sample_random_slice is not MixtureOfDatasets.sample_random_slice:
            return super().sample_window()
        return self._random_member().sample_window()

    @contextmanager
    def mixing_explained(self) -> Iterator[None]:
        """A context in which members that hold several kinds of files tell of them."""
        with ExitStack() as members:
            for dataset in self.datasets:
                members.enter_context(dataset.mixing_explained())
            yield

    def worker_state(self) -> Any:
        """The chances of the members and what these have to tell."""
        return self._probabilities, [dataset.worker_state() for dataset in self.datasets]

    def load_worker_state(self, state: Any) -> None:
        """Takes over what `worker_state` returned in the main process."""
        self._probabilities, members = state
        for dataset, member_state in zip(self.datasets, members, strict=True):
            dataset.load_worker_state(member_state)

    def start_worker(self, workers: int) -> None:
        """Tells the members that they work beside `workers - 1` other copies."""
        for dataset in self.datasets:
            dataset.start_worker(workers * len(self.datasets))

    @property
    def workers_can_persist(self) -> bool:
        """Whether all members' copies may live on."""
        return super().workers_can_persist and all(dataset.workers_can_persist for dataset in self.datasets)

    def state_dict(self) -> dict[str, Any]:
        """Since when the members are ready, and the members' own state."""
        return {
            "ready_at_start": self._ready_at_start,
            "ready_since": self._ready_since,
            "probabilities": self._probabilities.tolist(),
            "members": [dataset.state_dict() for dataset in self.datasets],
        }

    def load_state_dict(self, state: dict[str, Any], *, move_later_files_aside: bool = False) -> None:
        """Goes back to a checkpoint, members included.

        Raises:
            ValueError: if the checkpoint's mixture had another number of members.
        """
        if len(state["members"]) != len(self.datasets):
            raise ValueError(
                f"the checkpoint's mixture has {len(state['members'])} members and this one {len(self.datasets)}; "
                "resume with the datasets the run was started with"
            )
        self._ready_at_start = state["ready_at_start"]
        self._ready_since = list(state["ready_since"])
        self._probabilities = np.array(state["probabilities"], dtype=np.float64)
        for dataset, member_state in zip(self.datasets, state["members"], strict=True):
            dataset.load_state_dict(member_state, move_later_files_aside=move_later_files_aside)

    def _start(self) -> None:
        """Notes who is ready at the start, so that drawing works before the first collection has ended."""
        self._ready_at_start = [dataset.ready_for_training for dataset in self.datasets]
        self.update_dset_weights(self.epoch)

    def _weight(self, member: int, epoch: int) -> float:
        if not self.datasets[member].ready_for_training:
            return 0.0
        since = self._ready_since[member]
        if since is None:
            since = self._ready_since[member] = epoch
        final = self.sampling_weights[member]
        if self.smooth_sudden_starts is None:
            return final
        if self.initial_sampling_weights is not None:
            first = self.initial_sampling_weights[member]
        else:
            assert self._ready_at_start is not None
            first = final if self._ready_at_start[member] else 0.0
        progress = (epoch - since + 1) / self.smooth_sudden_starts
        return first + (final - first) * min(max(progress, 0.0), 1.0)

    def _random_member(self) -> RLDataset:
        if not self._probabilities.any():
            self.update_dset_weights(self.epoch)
        if not self._probabilities.any():
            raise RuntimeError(f"no member of {self.dset_name} is ready; wait until ready_for_training")
        up_to = np.cumsum(self._probabilities)
        dataset = self.datasets[int(np.searchsorted(up_to, self.rng.random() * up_to[-1], side="right"))]
        dataset.rng = self.rng
        return dataset


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, those that occur again numbered from 2 on."""
    seen: dict[str, int] = {}
    distinct: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct
