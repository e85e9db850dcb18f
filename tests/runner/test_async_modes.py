"""A learner and a collector in processes of their own share a buffer and a run's folder and nothing else."""

from collections.abc import Callable

import pytest
import torch

from amago.cli_utils import switch_async_mode
from amago.experiment import Callback, Experiment
from amago.experiment.shared_run import write_policy_progress
from amago.loading import DiskTrajDataset
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]


class Enough(Exception):
    """Stops a process that would run on."""


class StopAfter(Callback):
    """Stops a run after some rounds, and notes in which epoch each of them was."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.epochs: list[int] = []

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        self.epochs.append(epoch)
        if len(self.epochs) % self.rounds == 0:
            raise Enough


class CollectWhileWaiting(Callback):
    """Runs a collector as soon as the learner finds the dataset is not ready after."""

    def __init__(self, collector: Experiment) -> None:
        self.collector = collector
        self.epochs_begun: list[int] = []

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        self.epochs_begun.append(epoch)

    def on_waiting_for_data(self, experiment: Experiment, seconds: float) -> None:
        collect(self.collector)


def collect(collector: Experiment) -> None:
    if not collector.started:
        collector.start()
    with pytest.raises(Enough):
        collector.learn()


@pytest.fixture
def collector(make_experiment: MakeExperiment) -> Experiment:
    experiment = make_experiment(callbacks=[StopAfter(3)], val_interval=None)
    return switch_async_mode(experiment, "collect")


@pytest.mark.filterwarnings("ignore::amago.utils.AmagoWarning")
def test_a_learner_waits_for_data_within_its_first_epoch(
    make_experiment: MakeExperiment, collector: Experiment
) -> None:
    watcher = CollectWhileWaiting(collector)
    learner = switch_async_mode(make_experiment(callbacks=[watcher], epochs=2), "learn")
    learner.start()
    learner.learn()
    assert watcher.epochs_begun == [0, 1]
    assert learner.counters.gradient_steps == 2 * learner.train_batches_per_epoch
    assert learner.counters.env_steps == collector.counters.env_steps == 3 * 60
    assert learner.counters.env_steps_by_name == {"memory": 3 * 60}


@pytest.mark.filterwarnings("ignore::amago.utils.AmagoWarning")
def test_a_collector_saves_only_trajectories_and_metrics(collector: Experiment) -> None:
    collect(collector)
    assert collector.counters.env_steps == 3 * 60
    collector.close()
    assert {path.name for path in collector.run_dir.iterdir()} == {"metrics.jsonl", "collectors"}
    assert len(list(collector.dataset.save_new_trajs_to.iterdir())) > 0


@pytest.mark.filterwarnings("ignore::amago.utils.AmagoWarning")
def test_a_collector_acts_with_the_learners_latest_policy(
    make_experiment: MakeExperiment, collector: Experiment
) -> None:
    learner = make_experiment(epochs=1)
    learner.start()
    learner.learn()
    collect(collector)
    for mine, theirs in zip(collector.policy.parameters(), learner.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_collector_warns_if_there_is_no_policy_yet(collector: Experiment) -> None:
    with pytest.warns(AmagoWarning, match="continuing with the current weights"):
        collect(collector)


class DeleteWhenWaiting(Callback):
    """Does what a learner does with an overfull buffer, as soon as the collector waits for it."""

    def __init__(self) -> None:
        self.files: list[int] = []
        self.phases: list[str] = []

    def on_waiting_for_learner(self, experiment: Experiment, seconds: float) -> None:
        assert isinstance(experiment.dataset, DiskTrajDataset)
        folder = experiment.dataset.fifo_folder
        self.files.append(len(list(folder.iterdir())))
        self.phases.append(experiment.status.phase)
        for path in folder.iterdir():
            path.unlink()


@pytest.mark.filterwarnings("ignore::amago.utils.AmagoWarning")
def test_a_collector_without_a_learner_waits_before_it_fills_the_disk(
    make_experiment: MakeExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = DeleteWhenWaiting()
    callbacks = [learner, StopAfter(6)]
    experiment = make_experiment(callbacks=callbacks, val_interval=None, verbose=True)
    assert isinstance(experiment.dataset, DiskTrajDataset)
    experiment.dataset.dset_max_size = 4
    collect(switch_async_mode(experiment, "collect"))
    assert learner.files
    assert all(8 < files <= 8 + 60 for files in learner.files)
    assert set(learner.phases) == {"waiting for learner"}
    assert capsys.readouterr().out.count("waiting for the learner to delete data") == len(learner.files)


class GoOnWhenWaiting(Callback):
    """Does what a learner with a larger buffer does: deletes nothing, and ends an epoch."""

    def __init__(self) -> None:
        self.epochs = 0

    def on_waiting_for_learner(self, experiment: Experiment, seconds: float) -> None:
        self.epochs += 1
        write_policy_progress(experiment.run_dir, self.epochs)


@pytest.mark.filterwarnings("ignore::amago.utils.AmagoWarning")
def test_a_collector_collects_on_if_its_learner_does_without_deleting(
    make_experiment: MakeExperiment,
) -> None:
    learner = GoOnWhenWaiting()
    experiment = make_experiment(callbacks=[learner, StopAfter(6)], val_interval=None)
    assert isinstance(experiment.dataset, DiskTrajDataset)
    experiment.dataset.dset_max_size = 4
    collect(switch_async_mode(experiment, "collect"))
    assert learner.epochs > 1


def test_waiting_for_data_ends_after_data_timeout(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(start_collecting_at_epoch=float("inf"), data_timeout=0.0, val_interval=None)
    experiment.start()
    with pytest.raises(RuntimeError, match="the dataset is not ready after"):
        experiment.learn()
