"""Ctrl-C ends a rollout after the running step is recorded, and the rollout can continue."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv
from amago.envs.interrupts import defer_interrupts
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import make_vector_env
from amago.experiment import Callback, Experiment
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.hindsight import FrozenTraj, load_trajectory
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Counting(gym.Env[np.ndarray, int]):
    """Shows (row, episode, time); episodes last two to four steps. Interrupts in the step of that number."""

    observation_space = gym.spaces.Box(0.0, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, row: int, interrupted_step: int) -> None:
        self.row, self.episode, self.taken, self.interrupted_step = row, -1, 0, interrupted_step

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.taken, self.time = self.taken + 1, self.time + 1
        if self.taken == self.interrupted_step:
            interrupt()
        return self._obs(), float(self.time), self.time == 2 + (self.row + self.episode) % 3, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.row, self.episode, self.time], np.float32)


class InterruptedRecorder(TrajectoryRecorder):
    """Is interrupted before it writes the segment of that number."""

    interrupted_segment = -1
    segments = 0

    def _write(self, segment: FrozenTraj, row: int) -> None:
        self.segments += 1
        if self.segments == self.interrupted_segment:
            interrupt()
        super()._write(segment, row)


@pytest.fixture
def make_rollout(small_nets: None, tmp_path: Path) -> Iterator[Callable[..., Rollout]]:
    made: list[Rollout] = []

    def make(interrupted_step: int = -1) -> Rollout:
        env = make_vector_env(
            [
                lambda row=row: AMAGOEnv(Counting(row, interrupted_step if row == 1 else -1), "env")
                for row in range(3)
            ],
            env_mode="sync",
        )
        agent = Agent(
            obs_space=env.observation_space,
            rl2_space=env.rl2_space,
            action_space=env.action_space,
            max_seq_len=4,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=GRUTrajEncoder,
        )
        recorder = InterruptedRecorder(
            3, save_to=tmp_path, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
        )
        made.append(Rollout(ActingPolicy(agent, device=torch.device("cpu")), env, recorder=recorder))
        return made[-1]

    yield make
    for rollout in made:
        rollout.vector_env.close()


def check(rollout: Rollout, folder: Path) -> None:
    """No transition is there twice, none is missing between others, and no file holds two episodes."""
    assert rollout.recorder is not None
    rollout.recorder.cut()
    rollout.recorder.close()
    found: set[tuple[int, ...]] = set()
    for path in folder.iterdir():
        trajectory = load_trajectory(path)
        row, episode, _ = trajectory.obs["observation"][0]
        times = np.arange(len(trajectory) + 1)
        expected = np.stack([np.full_like(times, row), np.full_like(times, episode), times], 1)
        np.testing.assert_array_equal(trajectory.obs["observation"], expected)
        np.testing.assert_array_equal(trajectory.rews[:, 0], times[1:])
        transitions = {(int(row), int(episode), int(time)) for time in times[1:]}
        assert not transitions & found
        found |= transitions
    assert len(found) == rollout.recorder.total_frames


@pytest.mark.parametrize("segment", [1, 2, 3, 4])
def test_a_step_is_recorded_whole_before_an_interrupt_comes_through(segment, make_rollout, tmp_path):
    rollout = make_rollout()
    rollout.recorder.interrupted_segment = segment
    with pytest.raises(KeyboardInterrupt):
        rollout.run(timesteps=50)
    assert rollout.recorder.segments < segment + 3
    check(rollout, tmp_path)


@pytest.mark.parametrize("segment", [1, 2, 3])
def test_an_interrupt_during_reset_waits_until_all_unfinished_segments_are_queued(
    segment, make_rollout, tmp_path
):
    rollout = make_rollout()
    rollout.run(timesteps=1)
    rollout.recorder.interrupted_segment = segment
    with pytest.raises(KeyboardInterrupt):
        rollout.reset()
    assert rollout.recorder.segments == 3
    check(rollout, tmp_path)


@pytest.mark.parametrize("cause", ["an environment's step", "recording"])
def test_a_rollout_continues_after_an_interrupt(cause, make_rollout, tmp_path):
    rollout = make_rollout(interrupted_step=7 if cause != "recording" else -1)
    rollout.recorder.interrupted_segment = 3 if cause == "recording" else -1
    with pytest.raises(KeyboardInterrupt):
        rollout.run(timesteps=50)
    rollout.run(timesteps=20)
    check(rollout, tmp_path)


def test_a_rollout_continues_its_episodes_after_a_failed_write(make_rollout, tmp_path):
    rollout = make_rollout()
    rollout.run(timesteps=2)
    rollout.recorder.flush()
    os.rename(tmp_path, tmp_path.with_name("away"))
    with pytest.raises(TrajectoryWriteError):
        rollout.run(timesteps=100_000)
    os.rename(tmp_path.with_name("away"), tmp_path)
    rollout.recorder.flush()
    rollout.run(timesteps=20)
    assert sum(map(len, rollout.stats.returns.values())) == rollout.recorder.segments
    check(rollout, tmp_path)


def test_a_second_interrupt_is_delivered_at_once():
    done = []

    def interrupted_twice() -> None:
        with defer_interrupts():
            interrupt()
            done.append("first")
            interrupt()
            done.append("second")

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    assert done == ["first"]


def test_the_handler_from_before_receives_the_deferred_interrupt_and_is_restored():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with defer_interrupts() as interrupts:
            interrupt()
            assert interrupts.pending
            assert heard == []
            interrupts.deliver()
            assert heard == [signal.SIGINT]
            interrupt()
        assert heard == [signal.SIGINT] * 2
        interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT] * 3


def test_close_ends_the_workers_even_if_trajectories_cannot_be_written(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    before = multiprocessing.active_children()
    experiment = make_experiment(env_mode="async", train_timesteps_per_epoch=3)
    experiment.start()
    experiment.collect_new_training_data()
    assert multiprocessing.active_children() != before
    buffer = next(tmp_path.rglob("fifo"))
    buffer.rename(buffer.with_name("away"))
    with pytest.warns(UserWarning, match="are lost"), pytest.raises(TrajectoryWriteError):
        experiment.close()
    assert multiprocessing.active_children() == before


class InterruptsAtStep(Callback):
    """Interrupts a rollout of the training environments after so many of its steps."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self.steps_left -= section == "train"
        if self.steps_left == 0:
            interrupt()


def test_a_checkpoint_after_an_interrupted_rollout_holds_what_was_collected(
    make_experiment: Callable[..., Experiment],
) -> None:
    experiment = make_experiment(callbacks=[InterruptsAtStep(4)])
    experiment.start()
    with pytest.raises(KeyboardInterrupt):
        experiment.collect_new_training_data()
    recorder = experiment.collector.recorder
    assert isinstance(recorder, TrajectoryRecorder)
    assert recorder.unsaved_frames > 0
    experiment.save_checkpoint()
    assert recorder.unsaved_frames == 0
    assert experiment.dataset is not None
    files = experiment.dataset.state_dict()["fifo"]["files"]
    assert len(files) == experiment.parallel_actors
    folder = experiment.dataset.save_new_trajs_to
    assert folder is not None
    assert [len(load_trajectory(folder / name)) for name in files] == [4] * len(files)


@pytest.mark.parametrize("end", ["save_checkpoint", "close"])
def test_an_interrupt_during_save_checkpoint_or_close_loses_no_segment(
    make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    experiment = make_experiment(train_timesteps_per_epoch=3)
    experiment.start()
    experiment.collect_new_training_data()
    recorder = experiment.collector.recorder
    assert isinstance(recorder, TrajectoryRecorder)
    assert recorder.unsaved_frames > 0
    write, first = recorder._write, itertools.count()

    def interrupted(segment: FrozenTraj, row: int) -> None:
        if next(first) == 0:
            interrupt()
        write(segment, row)

    monkeypatch.setattr(recorder, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(experiment, end)()
    experiment.close()
    assert experiment.dataset is not None
    folder = experiment.dataset.save_new_trajs_to
    assert folder is not None
    assert sum(len(load_trajectory(path)) for path in folder.iterdir()) == recorder.total_frames
