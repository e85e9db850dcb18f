"""A run that is stopped by a signal, or killed, goes on as if it had not been."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runner.ranks import finish, start_ranks

from amago.experiment import Callback, Experiment, RunStopped
from amago.experiment.checkpointer import read_state
from amago.experiment.stop_signals import StopSignals
from amago.experiment.training_state import check_run_id
from amago.tracking.jsonl import cut_metrics

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]
ROOT = Path(__file__).parents[2]
EPOCHS = 3


class Signals(Callback):
    """Sends a signal to its own process in the middle of one part of an epoch."""

    def __init__(self, moment: str, number: int = signal.SIGTERM, epoch: int = 1) -> None:
        self.moment, self.number, self.epoch, self.count = moment, number, epoch, 0

    def _reached(self, experiment: Experiment, moment: str) -> None:
        if experiment.epoch == self.epoch and moment == self.moment:
            self.count += 1
            if self.count == 3:
                os.kill(os.getpid(), self.number)

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self._reached(experiment, section)

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self._reached(experiment, "batch")

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        if self.moment == "end":
            self.count = 2
            self._reached(experiment, "end")


def learn(experiment: Experiment) -> Experiment:
    experiment.start()
    try:
        experiment.learn()
    finally:
        experiment.close()
    return experiment


@pytest.mark.parametrize(
    ("moment", "env_mode"),
    [*((moment, "sync") for moment in ("val", "train", "batch", "end")), ("train", "async")],
)
def test_a_stopped_run_makes_up_for_the_rest_of_its_epoch(
    make_experiment: MakeExperiment, metrics_of: Callable[..., list[Any]], moment: str, env_mode: str
) -> None:
    options: dict[str, Any] = {"epochs": EPOCHS, "val_interval": 1, "ckpt_interval": 2, "env_mode": env_mode}
    if env_mode == "async":
        options["double_buffer"] = True
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with pytest.raises(RunStopped) as stopped:
        learn(make_experiment(**options, callbacks=[Signals(moment)]))
    assert stopped.value.code == 128 + signal.SIGTERM
    assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]

    resumed = make_experiment(**options, resume=True)
    resumed.start()
    before = resumed.counters.env_steps, resumed.counters.gradient_steps
    expected = {"val": (60, 4), "train": (69, 4), "batch": (120, 7), "end": (120, 8)}
    if env_mode == "async":
        expected["train"] = (72, 4)  # the first half had begun the next step
    assert before == expected[moment]
    resumed.learn()
    # Every epoch has collected and learned as much as it should, once.
    assert resumed.counters.env_steps == 60 * EPOCHS
    assert resumed.counters.gradient_steps == 4 * EPOCHS
    for section in ("val", "train", "dataset"):
        epochs = Counter(line["axes"]["Epoch"] for line in metrics_of(resumed, section))
        assert epochs == dict.fromkeys(range(EPOCHS), 1), section


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_signal_to_one_of_two_processes_stops_both(tmp_path: Path, rank: int) -> None:
    script = Path(__file__).parent / "joint_run.py"
    stopped = start_ranks(script, [str(tmp_path), "3", "False", "False", str(rank)])
    errors = [process.communicate(timeout=180)[1] for process in stopped]
    # They agree about it after every tenth update and at the end of an epoch.
    assert "run stopped by SIGTERM in epoch 2. The checkpoint of epoch 2 is written" in errors[0]
    assert [process.returncode for process in stopped] == [128 + signal.SIGTERM] * 2
    finish(start_ranks(script, [str(tmp_path), "3", "False", "True"]))
    results = [json.loads((tmp_path / f"result_{each}.json").read_text()) for each in range(2)]
    assert results[0] == results[1]
    assert results[0]["updates"] == 3 * 3  # of 5 batches in twos; the last one of an epoch has one


def test_what_is_collected_after_a_stop_is_not_a_repetition(make_experiment: MakeExperiment) -> None:
    """The random streams of an epoch go on with other keys, or the same tasks would be drawn again."""
    with pytest.raises(RunStopped):
        learn(make_experiment(epochs=EPOCHS, callbacks=[Signals("train")]))
    resumed = make_experiment(epochs=EPOCHS, resume=True)
    resumed.start()
    assert resumed._stream_key not in range(2**32)
    resumed.learn()
    assert resumed._stream_key == resumed.epoch


def test_a_run_without_checkpoints_stops_without_one(make_experiment: MakeExperiment, capsys: Any) -> None:
    experiment = make_experiment(ckpt_interval=None, callbacks=[Signals("train", signal.SIGINT, epoch=0)])
    with pytest.raises(RunStopped) as stopped:
        learn(experiment)
    assert stopped.value.code == 130
    assert "stopped by SIGINT in epoch 0. It writes no checkpoints" in capsys.readouterr().err
    assert not (experiment.run_dir / "ckpts" / "training_states").exists()


def test_other_signals_keep_their_effect(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(
        callbacks=[Signals("train", signal.SIGINT, epoch=0)], stop_signals=("SIGTERM", "SIGUSR2")
    )
    with pytest.raises(KeyboardInterrupt):
        learn(experiment)


def test_a_misspelt_signal_is_an_error(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ValueError, match=r"stop_signals contains 'SIGTREM'.*SIGTERM"):
        make_experiment(stop_signals=("SIGTREM",))


def test_a_second_signal_has_the_effect_that_it_had_before() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with StopSignals(["SIGTERM", "SIGINT"]) as signals:
            signal.raise_signal(signal.SIGTERM)
            assert (signals.received, heard) == (signal.SIGTERM, [])
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM]
        with StopSignals(["SIGTERM", "SIGINT"]):
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ignored_signals_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopSignals(["SIGUSR1"]) as signals:
            signal.raise_signal(signal.SIGUSR1)
        assert signals.received is None
    finally:
        signal.signal(signal.SIGUSR1, before)
    entered = threading.Thread(target=lambda: StopSignals(["SIGTERM"]).__enter__())
    entered.start()
    entered.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_metrics_after_a_checkpoint_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"section": "x", "axes": {{"Epoch": {epoch}}}}}\n' for epoch in (0, 1, 1, 2, 1)]
    path.write_text("".join(lines) + '{"torn')
    cut_metrics(path, size=len(lines[0] + lines[1]), epoch=1)
    assert path.read_text() == "".join(lines[:3]), "what the checkpoint's epoch logged after it stays"
    cut_metrics(path, size=10**6, epoch=1)
    assert path.read_text() == "".join(lines[:3])


def test_a_checkpoint_of_another_run_is_refused(make_experiment: MakeExperiment) -> None:
    first = make_experiment(epochs=1)
    first.start()
    first.run_id = "0123456789ab"
    first.learn()
    assert read_state(first.checkpointer.training_state(0))["run_id"] == "0123456789ab"
    first.run_id = "ba9876543210"
    with pytest.raises(ValueError, match=r"of the run 0123456789ab.*of the run ba9876543210"):
        check_run_id(first.checkpointer, 0, first.run_id)


def killed(folder: Path, env_mode: str, kills: int) -> str:
    """Runs killed_run.py, which fails unless the killed run ends as the one that was not; what it printed."""
    command = [sys.executable, "-m", "tests.runner.killed_run", str(folder), env_mode, str(kills), "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("env_mode", ["sync", "async", "overlap"])
def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_never_killed(
    tmp_path: Path, env_mode: str
) -> None:
    assert f"{env_mode}: 3 kills" in killed(tmp_path, env_mode, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("env_mode", ["sync", "async", "overlap"])
def test_a_run_that_is_killed_20_times_ends_with_the_weights_of_one_never_killed(
    tmp_path: Path, env_mode: str
) -> None:
    assert f"{env_mode}: 20 kills" in killed(tmp_path, env_mode, 20)
