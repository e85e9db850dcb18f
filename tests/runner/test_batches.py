"""BatchLoader: batches from this process or from loader workers."""

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from amago.agent.batch import Batch
from amago.loading import BatchLoader, DiskTrajDataset, MixtureOfDatasets, RLData, RLDataset


def load(dataset: RLDataset, workers: int, **options: Any) -> BatchLoader:
    settings = {"batch_size": 4, "batches_per_epoch": 6, "device": "cpu", "seed": 1} | options
    return BatchLoader(dataset, workers=workers, **settings)


def contents(batches: Iterator[Batch]) -> list[list[float]]:
    return [batch.obs["observation"].flatten().tolist() for batch in batches]


@pytest.fixture
def buffer(make_dataset, fill) -> DiskTrajDataset:
    dataset = make_dataset(items=24)
    fill(dataset.fifo_folder, 10, transitions=[3, 5, 8, 13, 21, 3, 5, 8, 13, 21])
    return dataset


def test_the_batches_do_not_depend_on_the_number_of_workers(buffer) -> None:
    by_workers = []
    for workers in (0, 1, 2):
        loader = load(buffer, workers)
        by_workers.append([contents(loader.epoch(epoch)) for epoch in (0, 1)])
        loader.close()
    assert by_workers[0] == by_workers[1] == by_workers[2]
    assert by_workers[0][0] != by_workers[0][1]
    assert len(by_workers[0][0]) == 6


def test_batches_arrive_complete(buffer) -> None:
    loader = load(buffer, 1)
    for batch in loader.epoch(0):
        assert batch.batch_size == 4
        assert batch.length <= 4
        assert batch.lengths is not None
        assert batch.flat_idxs is not None
        assert batch.flat_idxs.tolist() == batch.transition_mask.flatten().nonzero().flatten().tolist()
    loader.close()


def test_an_abandoned_epoch_does_not_change_the_next(buffer) -> None:
    whole = load(buffer, 0)
    expected = contents(whole.epoch(3))
    for workers in (0, 2):
        loader = load(buffer, workers)
        next(loader.epoch(2))
        assert contents(loader.epoch(3)) == expected
        loader.close()


def test_workers_see_files_that_came_between_epochs(buffer, fill) -> None:
    loader = load(buffer, 1)
    list(loader.epoch(0))
    buffer.delete()
    fill(buffer.fifo_folder, 3, first=50)
    seen = {batch.obs["observation"][0, 0, 0].item() for batch in loader.epoch(1)}
    loader.close()
    assert seen <= {50.0, 51.0, 52.0}


class ProcessIds(RLDataset):
    """Every reward is the id of the sampling process; `level` changes in the main process."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 0

    def sample_random_trajectory(self) -> RLData:
        return RLData(
            {"observation": np.full((2, 1), self.level)},
            np.full((1, 1), os.getpid()),
            np.zeros((1, 1)),
            np.zeros((1, 1)),
            np.zeros((2, 1)),
        )


class WithWorkerState(ProcessIds):
    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        self.level += 1
        return {}

    def worker_state(self) -> int:
        return self.level

    def load_worker_state(self, state: int) -> None:
        self.level = state


class WithoutWorkerState(ProcessIds):
    def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
        self.level += 1
        return {}


def drawers(batches: Iterator[Batch]) -> set[float]:
    return {batch.rews[0, 0, 0].item() for batch in batches}


def assert_one_worker_draws_all(epochs: list[set[float]]) -> None:
    assert len(set.union(*epochs)) == 1


def test_workers_persist_from_epoch_to_epoch() -> None:
    dataset = ProcessIds()
    dataset.configure(24, 4, "none", False)
    loader = load(dataset, 1)
    assert_one_worker_draws_all([drawers(loader.epoch(epoch)) for epoch in range(3)])
    loader.close()
    with pytest.raises(AssertionError):  # the fault: a loader is made for every epoch
        assert_one_worker_draws_all(
            [
                {
                    data.rews[0, 0]
                    for data in DataLoader(dataset, batch_size=None, num_workers=1, collate_fn=lambda x: x)
                }
                for _ in range(2)
            ]
        )


@pytest.mark.parametrize("dataset_type", [WithWorkerState, WithoutWorkerState])
def test_changes_in_the_main_process_reach_workers(dataset_type: type[ProcessIds]) -> None:
    dataset = dataset_type()
    dataset.configure(24, 4, "none", False)
    loader = load(dataset, 1)
    levels = []
    for epoch in range(3):
        dataset.on_end_of_collection(None)
        levels.append({batch.obs["observation"][0, 0, 0].item() for batch in loader.epoch(epoch)})
    loader.close()
    assert levels == [{1}, {2}, {3}]


def test_workers_restart_only_for_datasets_that_change_without_worker_state(tmp_path) -> None:
    class Customised(DiskTrajDataset):
        def on_end_of_collection(self, experiment: Any) -> dict[str, float]:
            return super().on_end_of_collection(experiment)

    assert ProcessIds().workers_can_persist
    assert WithWorkerState().workers_can_persist
    assert not WithoutWorkerState().workers_can_persist
    assert DiskTrajDataset(tmp_path, "a", 1).workers_can_persist
    assert not Customised(tmp_path, "a", 1).workers_can_persist
    assert not MixtureOfDatasets([ProcessIds(), WithoutWorkerState()], [1, 1]).workers_can_persist


def test_new_weights_of_a_mixture_reach_persistent_workers(buffer, tmp_path, fill) -> None:
    online = DiskTrajDataset(tmp_path, "online", 10)
    mixture = MixtureOfDatasets([buffer, online], [0.0, 1.0], initial_sampling_weights=[1.0, 0.0])
    mixture.smooth_sudden_starts = 1
    mixture.configure(24, 4, "none", True)
    with pytest.raises(RuntimeError, match="ready"):
        list(load(mixture, 0).epoch(0))
    fill(online.fifo_folder, 2, first=70)
    mixture.update_dset_weights(0)
    loader = load(mixture, 1)
    assert {batch.obs["observation"][0, 0, 0].item() for batch in loader.epoch(0)} <= {70.0, 71.0}
    loader.close()


def test_closing_leaves_no_process_behind(buffer) -> None:
    before = set(multiprocessing.active_children())
    loader = load(buffer, 2)
    next(loader.epoch(0))
    assert set(multiprocessing.active_children()) > before
    loader.close()
    assert set(multiprocessing.active_children()) == before


def test_an_error_in_a_worker_arrives_with_its_own_message() -> None:
    class Broken(RLDataset):
        def sample_random_trajectory(self) -> RLData:
            raise KeyError("the missing piece")

    dataset = Broken()
    dataset.configure(24, 4, "none", False)
    loader = load(dataset, 1)
    with pytest.raises(KeyError, match="the missing piece"):
        next(loader.epoch(0))
    loader.close()
    assert not multiprocessing.active_children()


def test_without_a_seed_two_loaders_differ(buffer) -> None:
    first = contents(load(buffer, 0, seed=None).epoch(0))
    second = contents(load(buffer, 0, seed=None).epoch(0))
    assert first != second


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("batches_per_epoch", 0), ("workers", -1), ("batches_per_epoch", 7)],
)
def test_arguments_out_of_range_are_named(buffer, name, value) -> None:
    with pytest.raises(ValueError, match=r"must be|items per"):
        load(buffer, **{"workers": 0, name: value})


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_to_the_device_they_are_asked_for(buffer, workers) -> None:
    loader = load(buffer, workers, device="cuda")
    reference = load(buffer, 0)
    for there, here in zip(loader.epoch(0), reference.epoch(0), strict=True):
        assert there.rl2s.is_cuda
        torch.testing.assert_close(there.rl2s.cpu(), here.rl2s)
    loader.close()
