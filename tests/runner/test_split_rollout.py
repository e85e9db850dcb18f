"""SplitRollout gives what a Rollout over all environments gives: episodes, counts and trajectories."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.recorder import SplitRecorder, TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import EnvWorkerError, make_split_vector_env, make_vector_env
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.experiment.split_rollout import SplitRollout
from amago.hindsight import FrozenTraj, load_trajectory
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

CPU = torch.device("cpu")
ROWS = 5


class Noted(gym.Env[np.ndarray, int]):
    """Observes (row, episode, time, noise); episodes last two to six steps; raises in step `fails_at`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, row: int, fails_at: int = -1) -> None:
        self.row, self.episode, self.steps_left = row, -1, fails_at

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise ArithmeticError("it broke")
        self.time += 1
        over = self.time == 2 + (self.row + self.episode) % 5
        return self._obs(), float(action), over, False, {"AMAGO_LOG_METRIC row": self.row}

    def _obs(self) -> np.ndarray:
        noise = self.np_random.random()
        return np.array([self.row, self.episode, self.time, noise], np.float32)

    def row_and(self, number: int) -> tuple[int, int]:
        return self.row, number


def make_env(row: int, fails_at: int = -1) -> AMAGOEnv:
    return AMAGOEnv(Noted(row, fails_at), env_name=f"task {row % 2}")


MakeRollout = Callable[..., Any]


@pytest.fixture
def make(small_nets: None, tmp_path: Path) -> Iterator[MakeRollout]:
    """Makes a Rollout or a SplitRollout over ROWS environments, with recorders if a folder is given."""
    opened: list[Any] = []

    def make_rollout(split: bool, folder: Path | None = None, fails_at: int = -1) -> Any:
        makers = [partial(make_env, row, fails_at if row == 3 else -1) for row in range(ROWS)]
        options: dict[str, Any] = {"seed": 3, "exploration_wrapper_type": EpsilonGreedy}
        envs: Any
        envs = (
            make_split_vector_env(makers, **options)
            if split
            else make_vector_env(makers, env_mode="sync", **options)
        )
        opened.append(envs)

        def recorder(rows: int, writer: str) -> TrajectoryRecorder:
            return TrajectoryRecorder(
                rows,
                save_to=folder,
                save_len=np.inf,
                max_seq_len=1,
                rng=np.random.default_rng(0),
                writer_id=writer,
            )

        torch.manual_seed(0)
        agent = Agent(
            obs_space=envs.observation_space,
            rl2_space=envs.rl2_space,
            action_space=envs.action_space,
            max_seq_len=16,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=GRUTrajEncoder,
        )
        if split:
            first, second = (half.num_envs for half in envs.halves)
            recorders = SplitRecorder(recorder(first, "00a"), recorder(second, "00b"))
            return SplitRollout(ActingPolicy(agent, device=CPU), envs, recorder=recorders)
        return Rollout(ActingPolicy(agent, device=CPU), envs, recorder=recorder(ROWS, "00a"))

    yield make_rollout
    for envs in opened:
        envs.close()


def stored(rollout: Any, folder: Path) -> list[FrozenTraj]:
    """All trajectories, ordered by row and episode."""
    rollout.recorder.cut()
    rollout.recorder.flush()
    loaded = [load_trajectory(path) for path in folder.iterdir()]
    return sorted(loaded, key=lambda trajectory: trajectory.obs["observation"][0].tolist())


def test_trajectories_and_statistics_equal_those_of_one_rollout(make: MakeRollout, tmp_path: Path) -> None:
    found = []
    for split in (False, True):
        rollout = make(split, tmp_path / str(split))
        for timesteps in (1, 20, 13):
            # The mode of the policy: sampling would draw in another order.
            rollout.run(timesteps=timesteps, sample=False)
        found.append((rollout, stored(rollout, tmp_path / str(split))))
    (whole, mine), (halves, theirs) = found
    assert len(mine) == len(theirs) > 3 * ROWS
    for one, other in zip(mine, theirs, strict=True):
        assert one.to_dict().keys() == other.to_dict().keys()
        for name, array in one.to_dict().items():
            np.testing.assert_array_equal(array, other.to_dict()[name], err_msg=name)
    assert {name: len(found) for name, found in halves.stats.returns.items()} == {
        name: len(found) for name, found in whole.stats.returns.items()
    }
    assert halves.stats.to_metrics() == pytest.approx(whole.stats.to_metrics())
    assert halves.steps_by_env_name == whole.steps_by_env_name == {"task 0": 3 * 34, "task 1": 2 * 34}
    assert (
        sum(half.total_frames for half in halves.recorder.halves) == whole.recorder.total_frames == 34 * ROWS
    )
    assert torch.equal(torch.cat(halves.hidden_state, dim=1), whole.hidden_state)


def test_every_actor_contributes_the_same_number_of_episodes(make: MakeRollout) -> None:
    counts = []
    for split in (False, True):
        rollout = make(split)
        rollout.run(episodes=2 * ROWS + 1)
        counts.append({name: len(returns) for name, returns in rollout.stats.returns.items()})
    assert counts[0] == counts[1] == {"task 0": 7, "task 1": 4}


def test_methods_are_called_on_every_environment_and_states_restored(make: MakeRollout) -> None:
    first, second = make(True), make(True)
    first.run(timesteps=9)
    first.vector_env.call_async("row_and", number=5)
    assert first.vector_env.call_wait() == [(row, 5) for row in range(ROWS)]
    assert first.vector_env.env_names == [f"task {row % 2}" for row in range(ROWS)]
    states = first.vector_env.exploration_state()
    second.vector_env.load_exploration_state(states)
    assert second.vector_env.exploration_state() == states
    second.recorder.load_state_dict(first.recorder.state_dict())
    assert sum(half.total_frames for half in second.recorder.halves) == 9 * ROWS


def test_a_failed_write_is_raised_after_both_halves_took_the_step(make: MakeRollout, tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    rollout = make(True, folder)
    rollout.run(timesteps=1)
    folder.rmdir()
    with pytest.raises(TrajectoryWriteError):
        rollout.run(timesteps=100_000)
    folder.mkdir()
    recorders = rollout.recorder.halves
    assert len({half.total_frames / half.num_envs for half in recorders}) == 1
    rollout.recorder.flush()
    rollout.run(timesteps=10)
    written = sum(len(trajectory) for trajectory in stored(rollout, folder))
    assert written == sum(half.total_frames for half in recorders)


def test_an_error_names_the_environment_by_its_number_among_all(make: MakeRollout) -> None:
    rollout = make(True, fails_at=6)
    with pytest.raises(EnvWorkerError, match=r"environment 3 \('task 1'\) raised while stepping"):
        rollout.run(timesteps=20)
    assert not rollout.started


def test_one_environment_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="two or more"):
        make_split_vector_env([partial(make_env, 0)])
