"""What programs do with the vector environments of an experiment: call methods, and bring their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_split_vector_env, make_vector_env
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.hindsight import load_trajectory
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from amago.utils import call_async_env


class Counter(gym.Env[np.ndarray, int]):
    """Lasts `length` steps with reward 1 each; shows the step and a number of its own."""

    observation_space = gym.spaces.Box(0.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int, length: int = 3) -> None:
        self.number, self.length = number, length
        self.added = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.array([0, self.number], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.array([self.time, self.number], np.float32), 1.0, self.time >= self.length, False, {}

    def add(self, amount: int, times: int = 1) -> int:
        self.added += amount * times
        return self.number + self.added


def makers(count: int = 3) -> list[Callable[[], AMAGOEnv]]:
    return [lambda number=number: AMAGOEnv(Counter(number), env_name="counter") for number in range(count)]


VECTOR_ENVS: dict[str, Callable[[], Any]] = {
    "sync": lambda: make_vector_env(makers(), env_mode="sync"),
    "async": lambda: make_vector_env(makers(), env_mode="async", envs_per_worker=2),
    "split": lambda: make_split_vector_env(makers()),
    "gymnasium sync": lambda: gym.vector.SyncVectorEnv([lambda n=n: Counter(n) for n in range(3)]),
    "gymnasium async": lambda: gym.vector.AsyncVectorEnv([lambda n=n: Counter(n) for n in range(3)]),
}


@pytest.mark.parametrize("make", VECTOR_ENVS.values(), ids=VECTOR_ENVS)
def test_a_method_of_every_environment_can_be_called(make: Callable[[], Any]) -> None:
    envs = make()
    if hasattr(envs, "reset"):
        envs.reset()
    assert list(call_async_env(envs, "add", 10)) == [10, 11, 12]
    assert list(call_async_env(envs, "add", 10, times=2)) == [30, 31, 32]
    envs.close()


def test_a_method_of_an_environment_that_steps_all_rows_can_be_called() -> None:
    class Rows(gym.vector.SyncVectorEnv):
        def total(self) -> int:
            return sum(env.unwrapped.number for env in self.envs)

    envs = make_vector_env(
        [lambda: AMAGOEnv(Rows([lambda n=n: Counter(n) for n in range(3)]), "counter", batched_envs=3)],
        env_mode="already_vectorized",
    )
    assert call_async_env(envs, "total") == [3]
    assert call_async_env(envs, "call", "add", 5) == [(5, 6, 7)]
    envs.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_an_agent_acts_in_a_gymnasium_vector_environment_of_any_autoreset_mode(
    mode: str, small_nets: None, tmp_path: Any
) -> None:
    rows = gym.vector.SyncVectorEnv(
        [lambda n=n: Counter(n, length=3 + n) for n in range(3)],
        autoreset_mode=gym.vector.AutoresetMode[mode],
    )
    envs = make_vector_env(
        [lambda: AMAGOEnv(rows, "counter", batched_envs=3)], env_mode="already_vectorized", seed=0
    )
    agent = Agent(
        obs_space=envs.observation_space,
        rl2_space=envs.rl2_space,
        action_space=envs.action_space,
        max_seq_len=16,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder,
    )
    recorder = TrajectoryRecorder(
        3, save_to=tmp_path, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    rollout = Rollout(ActingPolicy(agent, device=torch.device("cpu")), envs, recorder=recorder)
    rollout.run(timesteps=60)
    # Row n has episodes of 3 + n steps, one more with the step that resets it.
    resets = mode == "NEXT_STEP"
    episodes = [(60 + resets) // (3 + n + resets) for n in range(3)]
    assert sorted(rollout.stats.returns["counter"]) == [
        3.0 + n for n, count in enumerate(episodes) for _ in range(count)
    ]
    assert rollout.stats.specials["counter"]["Episode Length"] == rollout.stats.returns["counter"]
    assert rollout.steps_by_env_name == {"counter": recorder.total_frames}
    assert recorder.total_frames == 180 if not resets else recorder.total_frames < 180
    rollout.stats.returns.clear()
    rollout.run(episodes=6)
    assert len(rollout.stats.returns["counter"]) == 6
    recorder.close()
    envs.close()


class GameCrashed(Exception):
    pass


class Fragile(Counter):
    """Lasts 20 steps, and crashes in one of six of them."""

    def __init__(self) -> None:
        super().__init__(0, length=20)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < 1 / 6:
            raise GameCrashed
        return super().step(action)


class FragileEnv(AMAGOEnv):
    """Adds what is left of the time, counts crashes and survives them."""

    def __init__(self) -> None:
        super().__init__(Fragile(), env_name="fragile")
        self.observation_space["time_left"] = gym.spaces.Box(0.0, 1.0, (1,), np.float32)  # type: ignore[index]

    def inner_reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return {"observation": obs, "time_left": np.ones(1, np.float32)}, info

    def inner_step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return {"observation": obs, "time_left": np.array([1 - obs[0] / 20], np.float32)}, *rest

    def step(self, action: Any) -> Any:
        try:
            return super().step(action)
        except GameCrashed:
            timestep, info = self.reset()
            info["AMAGO_LOG_METRIC Crashes"] = 1.0
            return timestep, np.zeros(1), np.zeros(1, bool), np.ones(1, bool), info


@pytest.mark.parametrize("env_mode", ["sync", "async"])
@pytest.mark.filterwarnings("ignore:environments are stepped one by one")
def test_a_training_on_a_subclass_that_adds_observations_and_survives_crashes(
    env_mode: str, make_experiment: Callable[..., Any], metrics_of: Callable[..., Any]
) -> None:
    experiment = make_experiment(make_train_env=FragileEnv, make_val_env=FragileEnv, env_mode=env_mode)
    experiment.start()
    experiment.learn()
    assert set(experiment.policy.obs_space) == {"observation", "time_left"}
    assert experiment.grad_update_counter == 8
    experiment.close()  # writes unfinished episodes
    files = list(Path(experiment.dataset.save_new_trajs_to).iterdir())
    trajectories = [load_trajectory(path) for path in files]
    (steps,) = experiment.counters.env_steps_by_name.values()
    assert sum(map(len, trajectories)) == steps < 2 * 20 * 3
    for trajectory in trajectories:
        obs, steps = trajectory.obs, np.arange(len(trajectory) + 1)
        np.testing.assert_array_equal(obs["observation"][:, 0] - obs["observation"][0, 0], steps)
        np.testing.assert_allclose(obs["time_left"][:, 0], 1 - obs["observation"][:, 0] / 20)
        np.testing.assert_array_equal(trajectory.actions.sum(1), 1.0)
    logged = [line["metrics"] for line in metrics_of(experiment, "train")]
    assert any(line.get("Average Crashes in fragile") == 1.0 for line in logged)
