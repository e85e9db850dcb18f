"""MixtureOfDatasets: samples from several datasets by weight.

The weight of a dataset that becomes ready late, like a replay buffer next to an offline dataset, can be
annealed, so that its first few trajectories are not sampled over and over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, MinLen

from amago.envs.arguments import Name, NonNegative, check_arguments
from amago.hindsight.trajectory import OBS_KEY_PREFIX
from amago.loading.dataset import ExperimentSettings, RLDataset
from amago.loading.replay_buffer import env_shapes
from amago.loading.rl_data import RLData


class MixtureOfDatasets(RLDataset):
    """Takes every sample from one of several datasets, chosen by weight among those that are ready.

    With `smooth_sudden_starts` = S, the weight w of a dataset that became ready in epoch e₀ is annealed: in
    epoch e it is w₀ + (w - w₀)(e - e₀ + 1) / S, clipped between w₀ and w. Datasets that are not ready have
    weight 0. The weights are normalised to sum to 1.

    Args:
        datasets: the members, at least one.
        sampling_weights: w of each member, at least 0, not all 0.
        initial_sampling_weights: w₀ of each member. None means w for members that are ready at the start and 0 for
            the others.
        smooth_sudden_starts: S in epochs, at least 1; None gives every ready member its full weight at once.
        dset_name: name for logs.

    Raises:
        ValueError: if the lists differ in length or a number is out of range.
        TypeError: if a member is not an RLDataset.
    """

    @check_arguments
    def __init__(
        self,
        datasets: Annotated[Sequence[RLDataset], MinLen(1)],
        sampling_weights: Sequence[NonNegative],
        initial_sampling_weights: Sequence[NonNegative] | None = None,
        smooth_sudden_starts: Annotated[int, Ge(1)] | None = None,
        dset_name: Name | None = None,
    ) -> None:
        self.datasets = list(datasets)
        super().__init__(dset_name)
        self.sampling_weights = self._checked("sampling_weights", sampling_weights)
        self.initial_sampling_weights = (
            None
            if initial_sampling_weights is None
            else self._checked("initial_sampling_weights", initial_sampling_weights)
        )
        self.smooth_sudden_starts = smooth_sudden_starts
        self.member_names = _distinct([dataset.dset_name for dataset in self.datasets])
        self._ready_at_start: list[bool] | None = None
        self._ready_since: list[int | None] = [None] * len(self.datasets)
        self._probabilities = np.zeros(len(self.datasets))

    def _checked(self, name: str, given: Sequence[float]) -> list[float]:
        weights = np.asarray(given, np.float64)
        if weights.shape != (len(self.datasets),):
            raise ValueError(f"{name} must hold {len(self.datasets)} weights, one per dataset, not {given}")
        if name == "sampling_weights" and not weights.any():
            raise ValueError(f"{name} must not all be 0")
        return [float(weight) for weight in weights]

    def configure(
        self, items_per_epoch: int, max_seq_len: int, padded_sampling: str, has_edit_rights: bool
    ) -> None:
        """Configures the mixture and all members with the same settings."""
        super().configure(items_per_epoch, max_seq_len, padded_sampling, has_edit_rights)
        for dataset in self.datasets:
            dataset.configure(items_per_epoch, max_seq_len, padded_sampling, has_edit_rights)
        self._start()

    def configure_from_experiment(self, experiment: ExperimentSettings) -> None:
        """Configures the mixture and every member from the experiment."""
        super().configure_from_experiment(experiment)
        for dataset in self.datasets:
            dataset.configure_from_experiment(experiment)
        self._start()

    def set_env_spaces(self, observation_space: Any, rl2_space: Any) -> None:
        """Tells every member the spaces of the environments.

        Raises:
            ValueError: members hold other observations or actions than each other, or than the environments whose
                trajectories one of them receives.
        """
        shapes = {}
        new_trajs = env_shapes(observation_space, rl2_space)
        for name, dataset in zip(self.member_names, self.datasets, strict=True):
            dataset.set_env_spaces(observation_space, rl2_space)
            stored = dataset.stored_shapes()
            if stored is not None:
                shapes[name] = {
                    key: stored[key] for key in stored if key == "rl2s" or key.startswith(OBS_KEY_PREFIX)
                }
            elif dataset.save_new_trajs_to is not None:
                shapes[name] = new_trajs
        for name, member in shapes.items():
            first = next(iter(shapes))
            for key in sorted({*member, *shapes[first]}):
                ours, theirs = member.get(key), shapes[first].get(key)
                if ours != theirs:
                    raise ValueError(
                        f"the datasets of {self.dset_name} differ, so no batch can hold both: {key} has the shape "
                        f"{theirs or 'missing'} in {first} and {ours or 'missing'} in {name}. Convert one of them"
                    )

    def seed_sampling(self, seed: int | None, rank: int = 0) -> None:
        """Sets the seed and rank of the mixture and its members."""
        super().seed_sampling(seed, rank)
        for dataset in self.datasets:
            dataset.seed_sampling(seed, rank)

    def set_epoch(self, epoch: int) -> None:
        """Moves the mixture and its members on to the samples of `epoch`."""
        super().set_epoch(epoch)
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    @property
    def save_new_trajs_to(self) -> Path | None:
        """The folder of the first member that keeps new trajectories, or None."""
        return next((d.save_new_trajs_to for d in self.datasets if d.save_new_trajs_to is not None), None)

    @property
    def ready_for_training(self) -> bool:
        """Whether any member with a positive weight is ready."""
        return any(
            d.ready_for_training for d, w in zip(self.datasets, self.sampling_weights, strict=True) if w > 0
        )

    @property
    def is_overfull(self) -> bool:
        """Whether any member is."""
        return any(dataset.is_overfull for dataset in self.datasets)

    def update_dset_weights(self, epoch: int) -> dict[str, float]:
        """Computes the weights of `epoch`; returns each member's, before and after normalisation."""
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

    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        """Calls `on_end_of_collection` of every member, then updates the weights."""
        metrics: dict[str, float] = {}
        for name, dataset in zip(self.member_names, self.datasets, strict=True):
            metrics |= {
                f"{name} {key}": value for key, value in dataset.on_end_of_collection(experiment).items()
            }
        return metrics | self.update_dset_weights(experiment.epoch)

    def delete(self) -> None:
        """Deletes the data of all members."""
        for dataset in self.datasets:
            dataset.delete()

    def get_description(self) -> str:
        """The members and their weights."""
        members = zip(self.datasets, self.sampling_weights, strict=True)
        return f"{self.dset_name} of " + "; ".join(f"{w:g} x [{d.get_description()}]" for d, w in members)

    def sample_random_trajectory(self) -> RLData:
        """Samples a member, and a trajectory from it."""
        return self._random_member().sample_random_trajectory()

    def sample_random_slice(self) -> RLData:
        """Samples a member, and a window from it."""
        return self._random_member().sample_random_slice()

    def worker_state(self) -> Any:
        """Sampling probabilities and state of the members."""
        return self._probabilities, [dataset.worker_state() for dataset in self.datasets]

    def load_worker_state(self, state: Any) -> None:
        """Takes over `worker_state` of the main process."""
        self._probabilities, members = state
        for dataset, member_state in zip(self.datasets, members, strict=True):
            dataset.load_worker_state(member_state)

    @property
    def workers_can_persist(self) -> bool:
        """Whether this holds for the mixture and all members."""
        return super().workers_can_persist and all(dataset.workers_can_persist for dataset in self.datasets)

    def state_dict(self) -> dict[str, Any]:
        """Epochs since which members are ready, probabilities, and state of the members."""
        return {
            "ready_at_start": self._ready_at_start,
            "ready_since": self._ready_since,
            "probabilities": self._probabilities.tolist(),
            "members": [dataset.state_dict() for dataset in self.datasets],
        }

    def load_state_dict(self, state: dict[str, Any], *, later_files_of: Collection[str] = ()) -> None:
        """Restores the mixture and its members from a checkpoint.

        Raises:
            ValueError: if the checkpoint has another number of members.
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
            dataset.load_state_dict(member_state, later_files_of=later_files_of)

    def _start(self) -> None:
        """Records which members are ready at the start, so that sampling works before the first collection."""
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
    """The names, with repeated ones numbered from 2 on."""
    seen: dict[str, int] = {}
    distinct: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct
