"""Ctrl-C in the middle of a rollout: no step is recorded by half, and what goes on afterwards begins anew."""

import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import make_vector_env
from amago.experiment import Callback, Experiment, interrupts
from amago.experiment.interrupts import InterruptGate
from amago.experiment.rollout import Rollout
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
    """Is interrupted each time before it hands over the piece of that number."""

    interrupted_piece = -1
    pieces = 0

    def _hand_over(self, piece: FrozenTraj, row: int) -> None:
        self.pieces += 1
        if self.pieces == self.interrupted_piece:
            interrupt()
        super()._hand_over(piece, row)


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
        made.append(Rollout(agent, env, device=torch.device("cpu"), recorder=recorder))
        return made[-1]

    yield make
    for rollout in made:
        rollout.vector_env.close()


def check(rollout: Rollout, folder: Path) -> None:
    """No transition is there twice, none is missing between others, and no piece holds two episodes."""
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


@pytest.mark.parametrize("piece", [1, 2, 3, 4])
def test_a_step_is_recorded_whole_before_an_interrupt_comes_through(piece, make_rollout, tmp_path):
    rollout = make_rollout()
    rollout.recorder.interrupted_piece = piece
    with pytest.raises(KeyboardInterrupt):
        rollout.run(timesteps=50)
    assert rollout.recorder.pieces < piece + 3
    check(rollout, tmp_path)


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_an_interrupt_while_a_reset_writes_unfinished_pieces_waits_for_all_of_them(
    piece, make_rollout, tmp_path
):
    rollout = make_rollout()
    rollout.run(timesteps=1)
    rollout.recorder.interrupted_piece = piece
    with pytest.raises(KeyboardInterrupt):
        rollout.reset()
    assert rollout.recorder.pieces == 3
    check(rollout, tmp_path)


@pytest.mark.parametrize("cause", ["an environment's step", "recording"])
def test_a_rollout_that_goes_on_after_an_interrupt_begins_new_episodes(cause, make_rollout, tmp_path):
    rollout = make_rollout(interrupted_step=7 if cause != "recording" else -1)
    rollout.recorder.interrupted_piece = 3 if cause == "recording" else -1
    with pytest.raises(KeyboardInterrupt):
        rollout.run(timesteps=50)
    rollout.run(timesteps=20)
    check(rollout, tmp_path)


def test_a_rollout_that_goes_on_after_a_failed_write_goes_on_where_it_was(make_rollout, tmp_path):
    rollout = make_rollout()
    rollout.run(timesteps=2)
    rollout.recorder.flush()
    os.rename(tmp_path, tmp_path.with_name("away"))
    with pytest.raises(TrajectoryWriteError):
        rollout.run(timesteps=100_000)
    os.rename(tmp_path.with_name("away"), tmp_path)
    rollout.recorder.flush()
    rollout.run(timesteps=20)
    assert rollout.stats.episodes == rollout.recorder.pieces
    check(rollout, tmp_path)


def test_a_second_interrupt_does_not_wait():
    gate = InterruptGate()
    done = []

    def interrupted_twice() -> None:
        with gate.watching(), gate:
            interrupt()
            done.append("first")
            interrupt()
            done.append("second")

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    assert done == ["first"]


def test_whoever_handled_interrupts_before_does_so_afterwards():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        gate = InterruptGate()
        with gate.watching():
            with gate:
                interrupt()
                assert heard == []
            assert heard == [signal.SIGINT]
        interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT] * 2


class InterruptAt:
    """Interrupts before those of the gate's own instructions that have these numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.count, self.sent = numbers, 0, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> "InterruptAt | None":
        if frame.f_code.co_filename != interrupts.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.count += 1
            if self.count in self.numbers:
                self.sent += 1
                interrupt()
        return self


def interrupted_at(*numbers: int, within: bool = False) -> tuple[InterruptGate, InterruptAt, int]:
    """A gate that was closed twice under such interrupts, `within` it one more; how many came through."""
    gate, tracer, heard = InterruptGate(), InterruptAt(*numbers), 0
    sys._getframe().f_trace_opcodes = True  # from Python 3.12 on none are traced unless one asked before
    sys.settrace(tracer)
    try:
        with gate.watching():
            with gate:
                if within:
                    interrupt()
            with gate:
                pass
    except KeyboardInterrupt:
        heard += 1
    finally:
        sys.settrace(None)
    return gate, tracer, heard


def check_next_block(gate: InterruptGate) -> None:
    """The gate holds an interrupt back where it is closed, and nowhere else, and puts back who heard it before."""
    done = []

    def interrupted_while_closed() -> None:
        with gate.watching():
            with gate:
                done.append("closed")
            done.append("opened without an interrupt")
            with gate:
                interrupt()
                done.append("held back")
            done.append("lost")

    def interrupted_while_open() -> None:
        with gate.watching():
            interrupt()
            done.append("held back by an open gate")

    for block in (interrupted_while_closed, interrupted_while_open):
        with pytest.raises(KeyboardInterrupt):
            block()
    assert done == ["closed", "opened without an interrupt", "held back"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("within", [False, True])
def test_at_whatever_instruction_of_the_gate_an_interrupt_comes_it_is_heard_and_the_next_block_works(within):
    for number in itertools.count(1):
        gate, tracer, heard = interrupted_at(number, within=within)
        assert heard == bool(tracer.sent or within)
        check_next_block(gate)
        if not tracer.sent:
            break
    assert number > 15, "instructions are traced, on Python 3.13 not all of them"


@pytest.mark.parametrize("within", [False, True])
def test_two_interrupts_at_any_instructions_leave_a_gate_that_works(within):
    _, uninterrupted, _ = interrupted_at()
    for first in range(1, uninterrupted.count + 1):
        for second in range(first + 1, uninterrupted.count + 40):
            gate, _, heard = interrupted_at(first, second, within=within)
            assert heard == 1
            check_next_block(gate)


def test_an_interrupt_that_waited_when_its_block_ended_does_not_come_in_the_next_one():
    gate = InterruptGate()
    with gate.watching():
        gate.__enter__()  # never opened, as several interrupts in a row may leave it
        interrupt()
    check_next_block(gate)


def test_an_experiment_that_cannot_write_its_last_episodes_ends_its_workers_all_the_same(
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
    assert experiment.collector.recorder is not None
    assert experiment.collector.recorder.unsaved_frames > 0
    experiment.save_checkpoint()
    assert experiment.collector.recorder.unsaved_frames == 0
    assert experiment.dataset is not None
    files = experiment.dataset.state_dict()["fifo"]["files"]
    assert len(files) == experiment.parallel_actors
    folder = experiment.dataset.save_new_trajs_to
    assert folder is not None
    assert [len(load_trajectory(folder / name)) for name in files] == [4] * len(files)


@pytest.mark.parametrize("end", ["save_checkpoint", "close"])
def test_an_interrupt_while_a_checkpoint_or_the_end_writes_unfinished_pieces_loses_none(
    make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    experiment = make_experiment(train_timesteps_per_epoch=3)
    experiment.start()
    experiment.collect_new_training_data()
    recorder = experiment.collector.recorder
    assert recorder is not None
    assert recorder.unsaved_frames > 0
    hand_over, first = recorder._hand_over, itertools.count()

    def interrupted(piece: FrozenTraj, row: int) -> None:
        if next(first) == 0:
            interrupt()
        hand_over(piece, row)

    monkeypatch.setattr(recorder, "_hand_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(experiment, end)()
    experiment.close()
    assert experiment.dataset is not None
    folder = experiment.dataset.save_new_trajs_to
    assert folder is not None
    assert sum(len(load_trajectory(path)) for path in folder.iterdir()) == recorder.total_frames
