"""Exploration schedules and noise against their formulas, for random settings."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.exploration import BilevelEpsilonGreedy, EpsilonGreedy


class Still(gym.Env):
    """An environment with the given actions in which nothing happens."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        return np.zeros(2, dtype=np.float32), 0.0, False, False, {}


def still(action_space=None):
    return AMAGOEnv(Still(action_space or gym.spaces.Discrete(3)), "still")


@pytest.mark.parametrize("seed", range(6))
def test_schedules_are_linear_in_training_and_in_the_rollout(seed):
    rng = np.random.default_rng(seed)
    horizon, anneal = int(rng.integers(1, 80)), int(rng.integers(1, 600))
    a, b, c, d = rng.random(4)
    bilevel = BilevelEpsilonGreedy(still(), horizon, a, b, c, d, anneal, randomize_eps=False)
    plain = EpsilonGreedy(still(), a, b, anneal, randomize_eps=False)
    for total, local in rng.integers(0, 700, (30, 2)).tolist():
        bilevel.global_step = plain.global_step = total
        trained = min(total / anneal, 1.0)
        start, end = a + trained * (b - a), c + trained * (d - c)
        within = start + min(local / horizon, 1.0) * (end - start)
        assert bilevel.current_eps(np.array([local])) == pytest.approx([within], abs=1e-12)
        assert plain.current_eps(np.array([local])) == pytest.approx([start], abs=1e-12)


def test_the_schedule_of_a_randomized_episode_is_a_share_of_the_ceiling():
    wrapper = EpsilonGreedy(still(), 0.8, 0.2, 100)
    wrapper.seed_exploration(np.random.default_rng(3))
    shares = []
    for _ in range(300):
        wrapper.reset()
        shares.append(wrapper.current_eps(np.array([0]))[0] / 0.8)
        assert wrapper.current_eps(np.array([5]))[0] / 0.8 == shares[-1]
    assert min(shares) >= 0.0
    assert max(shares) < 1.0
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)
    assert np.var(shares) == pytest.approx(1 / 12, abs=0.02)


@pytest.mark.parametrize("eps", [0.0, 0.35, 1.0])
def test_random_actions_come_with_probability_epsilon_and_are_uniform(eps):
    wrapper = EpsilonGreedy(still(gym.spaces.Discrete(4)), eps, eps, 10, randomize_eps=False)
    wrapper.seed_exploration(np.random.default_rng(0))
    wrapper.reset()
    drawn = [int(wrapper.action(np.array([2])).item()) for _ in range(4000)]
    counts = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(counts, eps / 4 + (1 - eps) * np.array([0, 0, 1, 0]), atol=0.03)


def test_box_noise_is_normal_with_standard_deviation_epsilon_and_clipped():
    wrapper = EpsilonGreedy(still(gym.spaces.Box(-2.0, 2.0, (3,))), 0.3, 0.3, 10, randomize_eps=False)
    wrapper.seed_exploration(np.random.default_rng(0))
    wrapper.reset()
    action = np.array([[0.0, 0.1, 0.95]], dtype=np.float32)
    noisy = np.concatenate([wrapper.action(action) for _ in range(4000)])
    np.testing.assert_allclose(noisy[:, :2].mean(0), [0.0, 0.1], atol=0.02)
    assert noisy[:, 0].std() == pytest.approx(0.3, abs=0.02)
    assert np.abs(noisy).max() <= 1.0
    assert (noisy[:, 2] == 1.0).mean() == pytest.approx(0.434, abs=0.03)  # P(N(0, 1) > 0.05 / 0.3)
