"""Training with a loader worker that hangs, and with a stray file in the buffer."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amago.hindsight import FrozenTraj, save_trajectory
from amago.loading import BatchLoader

pytestmark = pytest.mark.source_only


def test_a_worker_that_stops_answering_ends_training_with_a_message(
    make_dataset: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    dataset = make_dataset(items=400)
    fill(dataset.fifo_folder, 4)
    loader = BatchLoader(
        dataset, batch_size=4, batches_per_epoch=100, workers=2, device="cpu", seed=0, worker_timeout=2.0
    )
    batches = loader.epoch(0)
    next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    assert workers[0].pid is not None
    os.kill(workers[0].pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="delivered no batch for 2 s") as raised:
        for _ in batches:
            pass
    assert "dloader_workers=0" in str(raised.value)
    loader.close()
    for worker in workers:
        worker.join(timeout=10)
        assert not worker.is_alive()
    assert len(list(loader.epoch(1))) == 100
    loader.close()


def test_a_worker_that_is_stopped_between_epochs_does_not_outlive_the_loader(
    make_dataset: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    dataset = make_dataset(items=8)
    fill(dataset.fifo_folder, 4)
    loader = BatchLoader(dataset, batch_size=4, batches_per_epoch=2, workers=2, device="cpu", seed=0)
    list(loader.epoch(0))
    workers = multiprocessing.active_children()
    assert workers[0].pid is not None
    os.kill(workers[0].pid, signal.SIGSTOP)
    loader.close()
    for worker in workers:
        worker.join(timeout=10)
        assert not worker.is_alive()


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_out_of_range_is_named(make_dataset: Callable[..., Any], timeout: float) -> None:
    with pytest.raises(ValueError, match="worker_timeout must be above 0"):
        BatchLoader(
            make_dataset(),
            batch_size=1,
            batches_per_epoch=1,
            workers=1,
            device="cpu",
            seed=0,
            worker_timeout=timeout,
        )


@pytest.mark.filterwarnings("ignore:moved .*env_00000100")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("unix_time", [1, 3_000_000_000], ids=["oldest", "newest"])
def test_a_stray_file_is_quarantined_and_training_goes_on(
    make_experiment: Callable[..., Any],
    make_traj: Callable[..., FrozenTraj],
    workers: int,
    unix_time: int,
) -> None:
    experiment = make_experiment(epochs=3, dloader_workers=workers, train_batches_per_epoch=30)
    folder: Path = experiment.dataset.fifo_folder
    stray = save_trajectory(make_traj(20), folder / f"env_00000100_{unix_time}", "npz", "env")
    experiment.start()
    experiment.learn()
    experiment.close()
    assert [path.name for path in experiment.dataset.index.quarantine_folder.iterdir()] == [stray.name]
    assert len(experiment.dataset.index.files) < 64
    assert experiment.counters.gradient_steps == 3 * experiment.train_batches_per_epoch
    assert experiment.counters.skipped_updates == 0
