"""SymbolicAlchemy on a stand-in for dm_alchemy with the same interface (see alchemy_stand_in): trials and metrics.

dm_alchemy itself cannot be installed from a package index, so nothing here tells of its rules.
"""

import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.environments import alchemy_stand_in

from amago.envs import AMAGOEnv
from amago.envs.builtin.alchemy import LEVEL, SymbolicAlchemy
from amago.envs.vector import make_vector_env

NOOP = 0


@pytest.fixture(autouse=True)
def _dm_alchemy(monkeypatch):
    package = ModuleType("dm_alchemy")
    monkeypatch.setitem(sys.modules, "dm_alchemy", package)
    monkeypatch.setitem(sys.modules, "dm_alchemy.symbolic_alchemy", alchemy_stand_in)
    alchemy_stand_in.made.clear()


def episode(env: SymbolicAlchemy, seed: int | None) -> list[tuple]:
    rng = np.random.default_rng(0)
    steps = [(env.reset(seed=seed)[0].tolist(), 0.0, False, False, {})]
    while not steps[-1][2]:
        observation, *rest = env.step(int(rng.integers(40)))
        steps.append((observation.tolist(), *rest))
    return steps


def test_it_is_a_valid_gymnasium_environment():
    env = SymbolicAlchemy()
    assert env.observation_space == gym.spaces.Box(-np.inf, np.inf, (39,), np.float32)
    assert env.action_space == gym.spaces.Discrete(40)
    check_env(env, skip_render_check=True)


def test_an_episode_is_ten_trials_of_twenty_steps():
    steps = episode(SymbolicAlchemy(), seed=0)
    assert len(steps) == 1 + 200
    assert [step[2:4] for step in steps] == [(False, False)] * 200 + [(True, True)]


def test_the_last_step_of_a_trial_reports_its_return():
    steps = episode(SymbolicAlchemy(), seed=0)
    reported = {i: step[4] for i, step in enumerate(steps) if step[4]}
    rewards = [step[1] for step in steps]
    assert any(rewards)
    assert reported == {
        20 * (trial + 1): {
            f"AMAGO_LOG_METRIC Trial {trial} Return": sum(rewards[20 * trial + 1 : 20 * trial + 21])
        }
        for trial in range(10)
    }


def test_a_level_is_built_once_per_episode_with_a_seed_of_its_own():
    env = SymbolicAlchemy()
    assert alchemy_stand_in.made == []
    for _ in range(5):
        env.reset()
    names, seeds = zip(*alchemy_stand_in.made, strict=True)
    assert set(names) == {LEVEL}
    assert len(set(seeds)) == 5
    assert all(0 <= seed <= 1_000_000 for seed in seeds)


def test_the_seed_decides_the_episode():
    assert episode(SymbolicAlchemy(), seed=1) == episode(SymbolicAlchemy(), seed=1)
    assert episode(SymbolicAlchemy(), seed=1) != episode(SymbolicAlchemy(), seed=2)
    assert episode(SymbolicAlchemy(), seed=None) != episode(SymbolicAlchemy(), seed=None)


def test_steps_need_a_running_episode_and_a_known_action():
    env = SymbolicAlchemy()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(NOOP)
    env.reset()
    with pytest.raises(ValueError, match="39"):
        env.step(40)
    episode(env, seed=0)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(NOOP)


def test_another_level_is_refused(monkeypatch):
    monkeypatch.setattr(alchemy_stand_in, "POTIONS", 6)
    with pytest.raises(ValueError, match=r"\(27,\).*\(39,\)"):
        SymbolicAlchemy().reset()


def test_without_dm_alchemy_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_alchemy.symbolic_alchemy", None)
    with pytest.raises(ImportError, match=r"pip install.*dm_alchemy"):
        SymbolicAlchemy()


def make_env() -> AMAGOEnv:
    return AMAGOEnv(SymbolicAlchemy(), env_name="dm_symbolic_alchemy")


def test_vector_environments_report_the_trials():
    with make_vector_env([make_env] * 2, env_mode="sync", seed=0) as envs:
        envs.reset()
        metrics = [envs.step(np.zeros((2, 1), np.int64)).metrics for _ in range(200)]
    assert metrics[19] == [(0, {"Trial 0 Return": 0.0}), (1, {"Trial 0 Return": 0.0})]
    assert metrics[199] == [(0, {"Trial 9 Return": 0.0}), (1, {"Trial 9 Return": 0.0})]


def test_an_agent_trains(short_training):
    experiment = short_training(make_env)
    metrics = experiment.evaluate_test(make_env, timesteps=200)
    assert "Average Trial 9 Return in dm_symbolic_alchemy" in metrics
