"""The least that an agent must learn, in seconds: to repeat what it sees, in every kind of action space.

The observation tells the right action, so all that is tested is that the parts fit together: the action's way
from policy to environment to buffer to loss, its scale and its order. Where memory is needed, the observation
tells it in the first step alone.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from amago import Agent, Experiment
from amago.agent import MultiTaskAgent
from amago.cli_utils import switch_traj_encoder, use_config
from amago.envs import AMAGOEnv
from amago.loading import DiskTrajDataset
from amago.nets.tstep_encoders import FFTstepEncoder

STEPS = 8  # of an episode; the reward of a step is at most 1

SETTINGS: dict[str, Any] = {
    "FFTstepEncoder.d_hidden": 32,
    "FFTstepEncoder.d_output": 32,
    "FFTstepEncoder.n_layers": 1,
    "Actor.d_hidden": 32,
    "NCritics.d_hidden": 32,
    "NCriticsTwoHot.d_hidden": 32,
    **{f"{agent}.gamma": 0.5 for agent in ("Agent", "MultiTaskAgent")},
    **{f"{agent}.use_multigamma": False for agent in ("Agent", "MultiTaskAgent")},
    **{f"{agent}.tau": 0.02 for agent in ("Agent", "MultiTaskAgent")},
    "EpsilonGreedy.steps_anneal": 150,
    "EpsilonGreedy.eps_end": 0.0,
}


class RepeatEnv(gym.Env[np.ndarray, Any]):
    """Shows the action that will be rewarded, drawn anew at every step, or once and for all at the first.

    A wrong discrete action earns nothing, a wrong bit takes its share from the reward, and a Box action earns
    1 - mean |action - target| in units of half its range.
    """

    def __init__(self, action_space: gym.Space[Any], remember: bool = False) -> None:
        self.action_space = action_space
        self.remember = remember
        size = gym.spaces.flatdim(action_space)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self._time = 0
        self._target = self.action_space.sample()
        return self._shown(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = self._reward(action)
        self._time += 1
        if self.remember:
            return np.zeros_like(self._shown()), reward, self._time == STEPS, False, {}
        self._target = self.action_space.sample()
        return self._shown(), reward, self._time == STEPS, False, {}

    def _shown(self) -> np.ndarray:
        return np.asarray(gym.spaces.flatten(self.action_space, self._target), np.float32)

    def _reward(self, action: Any) -> float:
        assert self.action_space.contains(action)
        space = self.action_space
        if isinstance(space, gym.spaces.Box):
            half = (space.high - space.low) / 2
            return float(1 - np.mean(np.abs(action - self._target) / half))
        if isinstance(space, gym.spaces.MultiBinary):
            return float(np.mean(action == self._target))
        return float(np.all(action == self._target))


def random_return(make_env: Callable[[], AMAGOEnv], episodes: int = 200) -> float:
    """Mean return of uniformly random actions."""
    env = make_env().env.unwrapped
    env.action_space.seed(1)
    total = 0.0
    for episode in range(episodes):
        env.reset(seed=episode)
        choices = [env.action_space.sample() for _ in range(STEPS)]
        total += sum(env.step(choice)[1] for choice in choices)
    return total / episodes


@pytest.fixture
def train(buffer_dir: Path) -> Iterator[Callable[..., float]]:
    """Trains with few, small updates and returns the mean return of 64 episodes after that.

    `evaluate_in` lists other environments to evaluate in; the returns are then a list, too.
    """
    made: list[Experiment] = []

    def run(
        make_env: Callable[[], AMAGOEnv],
        traj_encoder: str = "ff",
        evaluate_in: list[Callable[[], AMAGOEnv]] | None = None,
        **changes: Any,
    ) -> Any:
        config = dict(SETTINGS)
        encoder = switch_traj_encoder(config, traj_encoder, memory_size=32, layers=1)
        use_config(config, finalize=False)
        arguments: dict[str, Any] = {
            "run_name": "identity",
            "ckpt_base_dir": buffer_dir,
            "max_seq_len": STEPS,
            "dataset": DiskTrajDataset(buffer_dir, "buffer", dset_max_size=2000),
            "tstep_encoder_type": FFTstepEncoder,
            "traj_encoder_type": encoder,
            "agent_type": Agent,
            "val_timesteps_per_epoch": STEPS,
            "make_train_env": make_env,
            "make_val_env": make_env,
            "parallel_actors": 16,
            "env_mode": "sync",
            "verbose": False,
            "log_interval": 1000,
            "dloader_workers": 0,
            "epochs": 8,
            "train_timesteps_per_epoch": 2 * STEPS,
            "train_batches_per_epoch": 25,
            "val_interval": None,
            "ckpt_interval": None,
            "batch_size": 32,
            "learning_rate": 5e-3,
            "lr_warmup_steps": 10,
            "seed": 0,
        }
        made.append(experiment := Experiment(**{**arguments, **changes}))
        experiment.start()
        experiment.learn()
        returns = [
            experiment.evaluate_test(env, episodes=64)["Average Total Return (Across All Env Names)"]
            for env in evaluate_in or [make_env]
        ]
        return returns if evaluate_in else returns[0]

    yield run
    for experiment in made:
        experiment.close()


ACTION_SPACES = {
    "Discrete": gym.spaces.Discrete(4),
    "Discrete with a start": gym.spaces.Discrete(4, start=-2),
    "MultiDiscrete": gym.spaces.MultiDiscrete([3, 2]),
    "MultiBinary": gym.spaces.MultiBinary(3),
    "Box": gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
}


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_learns_to_repeat_what_it_sees(train: Callable[..., float], kind: str) -> None:
    def make_env() -> AMAGOEnv:
        return AMAGOEnv(RepeatEnv(ACTION_SPACES[kind]), env_name="repeat")

    if kind == "MultiBinary":  # samples of bits carry no gradient
        use_config({"Agent.online_coeff": 0.0, "Agent.offline_coeff": 1.0}, finalize=False)
    # Sampled bits and numbers keep some noise that costs them a share of the reward.
    enough = 7.4 if "Discrete" in kind else 6.2
    assert random_return(make_env) < 4.2
    assert train(make_env) > enough


# Rewards times 10, over two steps' worth of discounted future.
NARROW_BINS = {
    "NCriticsTwoHot.min_return": -5.0,
    "NCriticsTwoHot.max_return": 25.0,
    "NCriticsTwoHot.use_symlog": False,
    "NCriticsTwoHot.output_bins": 32,
}


@pytest.mark.parametrize(
    ("kind", "enough", "epochs"), [("MultiDiscrete", 7.0, 8), ("MultiBinary", 6.2, 8), ("Box", 6.2, 12)]
)
def test_imitating_the_better_half_learns_too(
    train: Callable[..., float], kind: str, enough: float, epochs: int
) -> None:
    """`MultiTaskAgent`, which follows no gradient of values; it takes more updates."""

    def make_env() -> AMAGOEnv:
        return AMAGOEnv(RepeatEnv(ACTION_SPACES[kind]), env_name="repeat")

    use_config(NARROW_BINS, finalize=False)
    assert train(make_env, agent_type=MultiTaskAgent, epochs=epochs, train_batches_per_epoch=50) > enough


class TwoTasksEnv(RepeatEnv):
    """Two tasks, told apart by the observation: to repeat the action shown for 1, or to take the next for 1000.

    Args:
        task: the one task of all episodes; None draws one in every episode.
    """

    def __init__(self, task: int | None = None) -> None:
        super().__init__(gym.spaces.Discrete(4))
        self.task = task
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self._now = int(self.np_random.integers(2)) if self.task is None else self.task
        return super().reset(seed=seed, options=options)

    def _shown(self) -> np.ndarray:
        return np.concatenate((super()._shown(), np.eye(2, dtype=np.float32)[self._now]))

    def _reward(self, action: Any) -> float:
        return (1.0, 1000.0)[self._now] * float(action == (self._target + self._now) % 4)


def test_learns_tasks_whose_rewards_differ_by_a_thousand(train: Callable[..., list[float]]) -> None:
    def make_env(task: int | None = None) -> AMAGOEnv:
        return AMAGOEnv(TwoTasksEnv(task), env_name="two")

    small, large = train(
        make_env,
        evaluate_in=[partial(make_env, 0), partial(make_env, 1)],
        agent_type=MultiTaskAgent,
        epochs=16,
        train_batches_per_epoch=50,
    )
    assert small > 7.4
    assert large > 7400.0


def make_memory_env() -> AMAGOEnv:
    return AMAGOEnv(RepeatEnv(gym.spaces.Discrete(4), remember=True), env_name="remember")


@pytest.mark.parametrize(
    ("traj_encoder", "low", "high"),
    [("rnn", 7.4, STEPS), ("mamba", 7.4, STEPS), ("transformer", 7.4, STEPS), ("ff", 2.0, 3.5)],
)
def test_repeats_what_it_saw_only_if_it_has_a_memory(
    train: Callable[..., float], traj_encoder: str, low: float, high: float
) -> None:
    """Without memory the first step can be right, and a quarter of the other seven: 2.75."""
    # The previous action and reward would remind an agent without memory.
    use_config({"FFTstepEncoder.hide_rl2s": True}, finalize=False)
    assert low < train(make_memory_env, traj_encoder) <= high
