"""How the learner and the collectors of a run know of each other: epochs, slots, totals, status and ratio."""

import json
import math
import os
import socket
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from amago.cli_utils import switch_async_mode
from amago.distributed.ratio import UpdateRatio, step_budget
from amago.experiment import Callback, Experiment
from amago.experiment.shared_run import (
    Collected,
    CollectorSlot,
    LearnerWatch,
    PolicyProgress,
    read_collected,
    write_collected,
)
from amago.experiment.status import read_status, status_file, write_status
from amago.utils import AmagoWarning

MakeExperiment = Callable[..., Experiment]

pytestmark = [
    pytest.mark.source_only,
    pytest.mark.filterwarnings("ignore:continuing with the current weights"),
]


class Enough(Exception):
    """Stops a process that would run on."""


class Rounds(Callback):
    """Ends a collector after some rounds, and notes in which epoch each of them was."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.epochs: list[int] = []

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        self.epochs.append(epoch)
        if len(self.epochs) >= self.rounds:
            raise Enough


def collect(collector: Experiment) -> None:
    collector.start()
    with pytest.raises(Enough):
        collector.learn()


def test_a_collectors_epoch_follows_the_learners(make_experiment: MakeExperiment) -> None:
    before, after = Rounds(2), Rounds(3)
    first = switch_async_mode(make_experiment(callbacks=[before], val_interval=None), "collect")
    collect(first)
    learner = switch_async_mode(make_experiment(epochs=5), "learn")
    learner.start()
    learner.learn()
    second = switch_async_mode(make_experiment(callbacks=[after], val_interval=None), "collect")
    collect(second)
    assert before.epochs == [0, 1]  # without a learner, rounds are counted
    assert after.epochs == [5, 5, 5]
    assert second.policy_epoch == 5


def test_collectors_of_one_seed_collect_different_data(make_experiment: MakeExperiment) -> None:
    observed = []
    for _ in range(2):
        collector = switch_async_mode(
            make_experiment(callbacks=[Rounds(1)], val_interval=None, seed=7), "collect"
        )
        collect(collector)
        assert collector.collector is not None
        observed.append(collector.streams.env_seed(0))
        collector.close()
    assert observed[0] != observed[1]


def test_rounds_within_one_epoch_of_the_learner_have_their_own_random_actions(
    make_experiment: MakeExperiment,
) -> None:
    learner = switch_async_mode(make_experiment(epochs=0), "learn")
    learner.start()
    learner.shared.publish_policy(learner, 0)
    keys: list[int] = []
    collector = switch_async_mode(make_experiment(callbacks=[Rounds(3)], val_interval=None), "collect")
    collector.start()
    acting = collector.streams.acting

    def note(key: int):  # type: ignore[no-untyped-def]
        keys.append(key)
        return acting(key)

    collector.streams.acting = note  # type: ignore[method-assign,assignment]
    with pytest.raises(Enough):
        collector.learn()
    assert keys == [0, 1, 2]


def test_only_the_first_collector_evaluates_and_once_per_epoch(
    make_experiment: MakeExperiment, metrics_of: Callable[..., list[dict[str, object]]]
) -> None:
    learner = switch_async_mode(make_experiment(epochs=0), "learn")
    learner.start()
    learner.shared.publish_policy(learner, 0)
    first = switch_async_mode(make_experiment(callbacks=[Rounds(3)], val_interval=1), "collect")
    first.start()
    second = switch_async_mode(make_experiment(callbacks=[Rounds(3)], val_interval=1), "collect")
    collect(second)
    assert metrics_of(second, "val") == []
    with pytest.raises(Enough):
        first.learn()
    assert len(metrics_of(first, "val")) == 1
    assert metrics_of(first, "train")[-1]["axes"]["total_frames"] == 6 * 60  # type: ignore[index]


def test_a_collector_that_returns_continues_its_account_and_its_exploration(
    make_experiment: MakeExperiment,
) -> None:
    for session in range(2):
        collector = switch_async_mode(make_experiment(callbacks=[Rounds(2)], val_interval=None), "collect")
        collect(collector)
        assert collector.train_envs is not None
        states = collector.train_envs.exploration_state()
        collector.close()
        assert read_collected(collector.run_dir).env_steps == (session + 1) * 2 * 60
        assert [int(state["global_step"]) for state in states] == 3 * [(session + 1) * 2 * 20]


def test_running_collectors_have_different_numbers(tmp_path: Path) -> None:
    first, second = CollectorSlot(tmp_path), CollectorSlot(tmp_path)
    assert (first.index, second.index) == (0, 1)
    first.release()
    assert CollectorSlot(tmp_path).index == 0


def test_an_old_policy_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LearnerWatch(tmp_path, max_age=60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.update(PolicyProgress(3, time_ago(10)))
        assert not watch.update(watch.progress)
    with pytest.warns(AmagoWarning, match=r"61 s old \(epoch 4\).*max_policy_age=60 s"):
        watch.update(PolicyProgress(4, time_ago(61)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.update(watch.progress)
    with pytest.warns(AmagoWarning, match="epoch 5"):
        watch.update(PolicyProgress(5, time_ago(100)))


def time_ago(seconds: float) -> float:
    import time

    return time.time() - seconds


class SeeStatus(Callback):
    """Notes the status files at every batch and step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: object) -> None:
        self.seen += read_status(experiment.run_dir)

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self.seen += read_status(experiment.run_dir)


def test_every_process_writes_its_status_and_removes_it_at_the_end(make_experiment: MakeExperiment) -> None:
    see = SeeStatus()
    experiment = make_experiment(callbacks=[see])
    experiment.start()
    experiment.learn()
    phases = {status["phase"] for status in see.seen}
    assert {"evaluating", "collecting", "learning"} <= phases
    status = see.seen[-1]
    assert list(status) == [
        *("role", "index", "pid", "host", "phase", "epoch", "epochs", "env_steps", "gradient_steps"),
        *("steps_per_second", "updates_per_second", "policy_epoch", "buffer_files", "return", "time"),
    ]
    assert (status["role"], status["index"], status["pid"], status["epochs"]) == ("both", 0, os.getpid(), 2)
    assert isinstance(status["return"], float)
    experiment.close()
    assert not (experiment.run_dir / "status").exists()


def test_evaluation_of_a_run_leaves_no_status(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=0)
    experiment.start()
    assert read_status(experiment.run_dir) == []


def test_a_status_without_end_is_valid_json(make_experiment: MakeExperiment) -> None:
    collector = switch_async_mode(make_experiment(), "collect")
    collector.start()
    (status,) = read_status(collector.run_dir)
    assert (status["role"], status["epochs"], status["phase"]) == ("collector", None, "starting")
    assert json.loads(json.dumps(status, allow_nan=False)) == status


class RatioUntil(UpdateRatio):
    """Ends a collector when its learner has ended, also one that waits."""

    def __init__(self, ratio: float, ended: threading.Event) -> None:
        super().__init__(ratio)
        self.ended = ended

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        super().on_rollout_step(experiment, section, env_steps)
        if self.ended.is_set():
            raise Enough

    def wait(self, experiment: Experiment, phase: str) -> None:
        if self.ended.is_set():
            raise Enough
        super().wait(experiment, phase)


@pytest.mark.parametrize("ratio", [0.02, 0.2])
def test_the_faster_side_waits_for_the_ratio_that_was_asked_for(
    make_experiment: MakeExperiment, ratio: float
) -> None:
    collect(switch_async_mode(make_experiment(callbacks=[Rounds(1)], val_interval=None), "collect"))
    ended = threading.Event()
    learner = switch_async_mode(
        make_experiment(callbacks=[UpdateRatio(ratio)], epochs=3, train_batches_per_epoch=20), "learn"
    )
    learner.start()
    learner.status.enter(learner, "learning")  # the buffer is filled
    collectors = []
    for _ in range(2):
        callbacks = [RatioUntil(ratio, ended)]
        collectors.append(
            switch_async_mode(make_experiment(callbacks=callbacks, val_interval=None), "collect")
        )
        collectors[-1].start()
    steps: list[int] = []

    def learn() -> None:
        learner.learn()
        steps.append(read_collected(learner.run_dir).env_steps)
        ended.set()
        learner.close()

    threads = [threading.Thread(target=learn, daemon=True)]
    threads += [threading.Thread(target=end_quietly, args=(each,), daemon=True) for each in collectors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=250)
        assert not thread.is_alive()
    updates = learner.counters.gradient_steps
    assert updates == 60
    # The learner is at most one update ahead, the collectors one round and what each collects between two looks.
    assert (updates - 1) / ratio <= steps[0] <= updates / ratio + 60 + 2 * 60 / 8 + 2 * 3


def end_quietly(collector: Experiment) -> None:
    with pytest.raises(Enough):
        collector.learn()


class EndWhenWaiting(UpdateRatio):
    """Ends a collector as soon as it waits."""

    def wait(self, experiment: Experiment, phase: str) -> None:
        super().wait(experiment, phase)
        raise Enough


def test_collectors_without_a_learner_wait_after_a_round(make_experiment: MakeExperiment) -> None:
    callbacks = [EndWhenWaiting(0.5), Rounds(10)]
    collector = switch_async_mode(make_experiment(callbacks=callbacks, val_interval=None), "collect")
    collect(collector)
    assert collector.counters.env_steps == 60  # a round
    assert [status["phase"] for status in read_status(collector.run_dir)] == ["waiting for learner"]


@pytest.mark.parametrize(
    ("phase", "budget"), [("starting", -40), ("evaluating", -40), ("waiting for data", math.inf)]
)
def test_the_updates_of_a_resumed_learner_count_before_it_goes_on(
    tmp_path: Path, phase: str, budget: float
) -> None:
    write_collected(Collected(env_steps=1000), tmp_path, 0)
    assert step_budget(tmp_path, 0.1, 60) == -940
    learner = {"role": "learner", "index": 0, "pid": os.getpid(), "host": socket.gethostname()}
    write_status({**learner, "phase": phase, "gradient_steps": 90}, status_file(tmp_path, "learner", 0))
    assert step_budget(tmp_path, 0.1, 60) == budget
    assert step_budget(tmp_path, 0.1, 60, has_data=lambda: True) == -40


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan")])
def test_a_ratio_is_above_zero(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio is"):
        UpdateRatio(ratio)
