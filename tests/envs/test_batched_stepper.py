"""Environments stepped as a batch give, to the bit, what each gives through its own `step`."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, BilevelEpsilonGreedy, EpsilonGreedy
from amago.envs.vector import EnvWorkerError, make_vector_env
from amago.envs.vector.batched_stepper import can_be_batched

ACTION_SPACES = {
    "discrete": gym.spaces.Discrete(5, start=2),
    "multidiscrete": gym.spaces.MultiDiscrete([3, 4]),
    "multibinary": gym.spaces.MultiBinary(6),
    "box": gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)),
    "integer box": gym.spaces.Box(-3, 7, (2, 2), np.int32),
}


class Echo(gym.Env):
    """Shows the action it received, in every kind of observation; rewards are arrays of one number at times."""

    observation_space = gym.spaces.Dict(
        {
            "seen": gym.spaces.Box(-np.inf, np.inf, (), np.float64),
            "step": gym.spaces.Discrete(10),
            "both": gym.spaces.Tuple((gym.spaces.Box(0, 255, (2, 2), np.uint8), gym.spaces.MultiBinary(2))),
        }
    )

    def __init__(self, space):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(0.0), {}

    def observe(self, seen):
        pixels = self.np_random.integers(0, 256, (2, 2)).astype(np.uint8)
        return {"seen": np.float64(seen), "step": self.time, "both": (pixels, np.array([0, 1]))}

    def step(self, action):
        assert self.action_space.contains(np.int64(action) if isinstance(action, int) else action)
        self.time += 1
        seen = float(np.sum(action))
        reward = np.array([seen]) if self.time % 3 == 0 else seen
        return self.observe(seen), reward, self.time == 9, bool(self.np_random.random() < 0.1), {}


class OwnStep(AMAGOEnv):
    """Defines `step`, so it is called for every environment."""

    def step(self, action):
        return super().step(action)


class Halved(EpsilonGreedy):
    """Edits epsilon as subclasses may."""

    def current_eps(self, local_step):
        eps = super().current_eps(local_step)
        eps[local_step > 3] *= 0.5
        return eps


def bilevel(env):
    return BilevelEpsilonGreedy(env, rollout_horizon=6, steps_anneal=40)


def history(amago_env_type, space, exploration) -> list[np.ndarray]:
    env = make_vector_env(
        [lambda: amago_env_type(Echo(space), "echo")] * 4,
        env_mode="sync",
        exploration_wrapper_type=exploration,
        seed=5,
    )
    env.reset()
    # as many as the policy gives, each in its range
    rng = np.random.default_rng(0)
    kind = env.action_space
    shape = (4, 1) if isinstance(kind, gym.spaces.Discrete) else (4, *kind.shape)
    seen = []
    for _ in range(60):
        if isinstance(kind, gym.spaces.Box):
            actions = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        else:
            actions = rng.integers(0, 2, shape)
        step = env.step(actions)
        arrays = [step.actions, step.rewards, step.terminated, step.truncated, step.done_rows]
        arrays += [step.inputs.rl2s, step.inputs.time_idxs, step.final_time_idxs]
        arrays += [*step.inputs.obs.values(), *step.final_obs.values()]
        seen += [array.copy() for array in arrays]
    states = env.exploration_state()
    env.close()
    seen += [np.array([str(state) for state in states])]
    return seen


@pytest.mark.parametrize("exploration", [None, EpsilonGreedy, bilevel, Halved])
@pytest.mark.parametrize("space", ACTION_SPACES.values(), ids=ACTION_SPACES)
def test_batched_stepping_equals_stepping_one_by_one(space, exploration):
    together, alone = (history(env_type, space, exploration) for env_type in (AMAGOEnv, OwnStep))
    for left, right in zip(together, alone, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_environments_that_differ_are_stepped_one_by_one():
    plain = [AMAGOEnv(Echo(gym.spaces.Discrete(3))) for _ in range(2)]
    assert can_be_batched(plain)
    assert can_be_batched([EpsilonGreedy(env) for env in plain])
    assert not can_be_batched(plain[:1])
    assert not can_be_batched([plain[0], AMAGOEnv(Echo(gym.spaces.Discrete(3, start=1)))])
    assert not can_be_batched([OwnStep(env.env) for env in plain])
    assert not can_be_batched([plain[0], EpsilonGreedy(plain[1])])


def test_the_environment_of_a_wrong_action_is_named():
    env = make_vector_env(
        [lambda name=name: AMAGOEnv(Echo(gym.spaces.Discrete(3)), name) for name in ("first", "second")],
        env_mode="async",
        envs_per_worker=2,
    )
    env.reset()
    with pytest.raises(EnvWorkerError, match=r"environment 1 \('second'\).*\[7\]"):
        env.step(np.array([[1], [7]]))
