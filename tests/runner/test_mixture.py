"""Several datasets as one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from amago.loading import DiskTrajDataset, DoNothingDataset, MixtureOfDatasets, RLData, RLDataset

pytestmark = pytest.mark.source_only


class Constant(RLDataset):
    """Yields a trajectory whose rewards are all `value`."""

    def __init__(self, value: float, ready: bool = True) -> None:
        super().__init__(f"constant {value:g}")
        self.value, self.ready = value, ready

    @property
    def ready_for_training(self) -> bool:
        return self.ready

    def sample_random_trajectory(self) -> RLData:
        return RLData(
            {"observation": np.zeros((3, 1))},
            np.full((2, 1), self.value),
            np.zeros((2, 1)),
            np.zeros((2, 1)),
            np.zeros((3, 1)),
        )


@dataclass
class Settings:
    """What datasets read from an experiment."""

    epoch: int = 0
    batch_size: int = 10
    train_batches_per_epoch: int = 400
    max_seq_len: int = 4
    padded_sampling: str = "none"
    has_dset_edit_rights: bool = True


def shares(mixture: MixtureOfDatasets) -> dict[float, float]:
    counts = Counter(float(mixture[i].rews[0, 0]) for i in range(len(mixture)))
    return {value: count / len(mixture) for value, count in counts.items()}


def test_members_are_drawn_by_normalised_weight() -> None:
    mixture = MixtureOfDatasets([Constant(1), Constant(2)], [3.0, 1.0])
    mixture.configure_from_experiment(Settings())
    mixture.seed_sampling(0)
    assert shares(mixture) == pytest.approx({1.0: 0.75, 2.0: 0.25}, abs=0.03)


def test_a_member_that_is_not_ready_is_not_drawn() -> None:
    late = Constant(2, ready=False)
    mixture = MixtureOfDatasets([Constant(1), late], [1.0, 1.0])
    settings = Settings()
    mixture.configure_from_experiment(settings)
    mixture.seed_sampling(0)
    assert shares(mixture) == {1.0: 1.0}
    late.ready = True
    mixture.on_end_of_collection(settings)
    assert shares(mixture) == pytest.approx({1.0: 0.5, 2.0: 0.5}, abs=0.04)


def test_it_is_ready_when_any_member_is() -> None:
    first, second = Constant(1, ready=False), Constant(2, ready=False)
    mixture = MixtureOfDatasets([first, second], [1.0, 1.0])
    assert not mixture.ready_for_training
    second.ready = True
    assert mixture.ready_for_training


def test_a_late_member_is_phased_in_over_the_epochs_asked_for() -> None:
    late = Constant(2, ready=False)
    mixture = MixtureOfDatasets([Constant(1), late], [1.0, 1.0], smooth_sudden_starts=4)
    settings = Settings()
    mixture.configure_from_experiment(settings)
    seen = []
    for epoch in range(8):
        settings.epoch = epoch
        late.ready = epoch >= 2
        seen.append(mixture.on_end_of_collection(settings)["constant 2 Current Sample Weight"])
    assert seen == [0, 0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_members_ready_at_the_start_have_their_weight_at_once() -> None:
    mixture = MixtureOfDatasets([Constant(1), Constant(2)], [1.0, 3.0], smooth_sudden_starts=10)
    mixture.configure_from_experiment(Settings())
    metrics = mixture.update_dset_weights(0)
    assert metrics["constant 2 Current Sample Weight"] == 3.0
    assert metrics["constant 2 Normalized Sample Weight"] == 0.75


def test_initial_weights_move_to_the_final_ones_in_either_direction() -> None:
    mixture = MixtureOfDatasets(
        [Constant(1), Constant(2)], [1.0, 2.0], initial_sampling_weights=[3.0, 0.0], smooth_sudden_starts=2
    )
    mixture.configure_from_experiment(Settings())
    by_epoch = [mixture.update_dset_weights(epoch) for epoch in range(3)]
    assert [m["constant 1 Current Sample Weight"] for m in by_epoch] == [2.0, 1.0, 1.0]
    assert [m["constant 2 Current Sample Weight"] for m in by_epoch] == [1.0, 2.0, 2.0]


def test_new_trajectories_go_to_the_first_member_that_keeps_them(tmp_path) -> None:
    disk = DiskTrajDataset(tmp_path, "online", 10)
    mixture = MixtureOfDatasets([DoNothingDataset(), disk], [1.0, 1.0])
    assert mixture.save_new_trajs_to == disk.save_new_trajs_to
    assert MixtureOfDatasets([DoNothingDataset()], [1.0]).save_new_trajs_to is None


def test_metrics_of_members_with_the_same_name_are_numbered() -> None:
    mixture = MixtureOfDatasets([Constant(1), Constant(1)], [1.0, 3.0])
    metrics = mixture.update_dset_weights(0)
    assert metrics["constant 1 Normalized Sample Weight"] == 0.25
    assert metrics["constant 1 (2) Normalized Sample Weight"] == 0.75


def test_annealing_goes_on_after_a_resume() -> None:
    def build() -> tuple[MixtureOfDatasets, Constant]:
        late = Constant(2, ready=False)
        mixture = MixtureOfDatasets([Constant(1), late], [1.0, 1.0], smooth_sudden_starts=4)
        mixture.configure_from_experiment(Settings())
        return mixture, late

    first, late = build()
    late.ready = True
    first.update_dset_weights(3)
    state = first.state_dict()
    second, late = build()
    late.ready = True
    second.load_state_dict(state)
    assert second.update_dset_weights(5) == first.update_dset_weights(5)
    assert second.update_dset_weights(5)["constant 2 Current Sample Weight"] == 0.75


@pytest.mark.parametrize(
    "weights",
    [torch.tensor([0.5, 0.5]), np.array([0.5, 0.5], np.float32), [np.float32(0.5), np.float64(0.5)]],
    ids=["tensor", "array", "list"],
)
def test_weights_may_be_tensors_and_arrays(weights: Sequence[float]) -> None:
    mixture = MixtureOfDatasets([Constant(1), Constant(2)], weights, weights)
    assert mixture.sampling_weights == mixture.initial_sampling_weights == [0.5, 0.5]
    assert {type(weight) for weight in mixture.sampling_weights} == {float}


def test_sampling_a_mixture_without_a_ready_member_raises() -> None:
    mixture = MixtureOfDatasets([Constant(1, ready=False)], [1.0])
    mixture.configure_from_experiment(Settings())
    with pytest.raises(RuntimeError, match="ready"):
        mixture[0]


@pytest.mark.parametrize(
    ("datasets", "weights", "error", "message"),
    [
        ([], [], ValueError, "datasets must be not empty"),
        ([Constant(1), "buffer"], [1, 1], TypeError, "datasets must .* of type RLDataset, got .*'buffer'"),
        ([Constant(1), Constant(2)], [1.0], ValueError, "one per dataset"),
        ([Constant(1)], [-1.0], ValueError, "at least 0"),
        ([Constant(1)], [float("nan")], ValueError, "sampling_weights must .* at least 0"),
        ([Constant(1)], [0.0], ValueError, "not all be 0"),
    ],
)
def test_invalid_datasets_and_weights_are_refused(datasets, weights, error, message) -> None:
    with pytest.raises(error, match=message):
        MixtureOfDatasets(datasets, weights)


def test_annealing_over_less_than_one_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="smooth_sudden_starts"):
        MixtureOfDatasets([Constant(1)], [1.0], smooth_sudden_starts=0)
