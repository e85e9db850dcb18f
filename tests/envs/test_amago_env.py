"""AMAGOEnv: what it returns, names, seeds, batched environments, and both lines of gymnasium."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.env_utils import AlreadyVectorizedEnv, DummyAsyncVectorEnv
from amago.envs.gymnasium_compat import check_gymnasium_version
from amago.envs.vector import make_vector_env


def test_reset_returns_a_timestep_of_zeros_around_the_observation(space_env):
    env = AMAGOEnv(space_env(), env_name="space")
    timestep, info = env.reset(seed=3)
    assert info == {}
    assert timestep.obs["observation"].shape == (1, 2)
    assert timestep.prev_action.shape == (1, 3)
    assert not timestep.prev_action.any()
    assert timestep.reward.tolist() == [0.0]
    assert timestep.time_idx.tolist() == [0]
    assert timestep.terminal.tolist() == [False]
    assert (timestep.reward.dtype, timestep.time_idx.dtype) == (np.float32, np.int64)


def test_step_returns_what_led_to_the_new_observation(space_env):
    inner = space_env(episode_steps=2)
    env = AMAGOEnv(inner, env_name="space")
    env.reset(seed=0)
    for time, ends in ((1, False), (2, True)):
        timestep, reward, terminated, truncated, info = env.step(np.array([[2]]))
        np.testing.assert_array_equal(timestep.obs["observation"][0], inner.returned[-1])
        np.testing.assert_array_equal(timestep.prev_action, [[0, 0, 1]])
        assert timestep.time_idx.tolist() == [time]
        assert timestep.reward.tolist() == reward.tolist() == [float(time)]
        assert timestep.terminal.tolist() == terminated.tolist() == [ends]
        assert truncated.tolist() == [False]
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
        assert info == {}
    assert type(inner.received[0]) is int


def test_truncation_is_not_terminal():
    env = AMAGOEnv(gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 1), env_name="CartPole")
    env.reset(seed=0)
    timestep, _, terminated, truncated, _ = env.step(np.array([[0]]))
    assert truncated.tolist() == [True]
    assert timestep.terminal.tolist() == terminated.tolist() == [False]


def test_seeds_reach_the_environment():
    env = AMAGOEnv(gym.make("CartPole-v1"), env_name="CartPole")
    first = env.reset(seed=5)[0].obs["observation"]
    np.testing.assert_array_equal(env.reset(seed=5)[0].obs["observation"], first)
    assert (env.reset(seed=6)[0].obs["observation"] != first).any()


def test_other_things_than_gymnasium_environments_are_refused():
    with pytest.raises(TypeError, match="not a gymnasium"):
        AMAGOEnv(object(), env_name="x")
    with pytest.raises(TypeError, match="env_name must be a string or None, got 3"):
        AMAGOEnv(gym.make("CartPole-v1"), env_name=3)
    with pytest.raises(ValueError, match="batched_envs must be at least 1, got 0"):
        AMAGOEnv(gym.make("CartPole-v1"), batched_envs=0)
    unbounded = gym.make("CartPole-v1").unwrapped
    unbounded.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(ValueError, match="unbounded"):
        AMAGOEnv(unbounded)


class ResetWithoutArguments(gym.Wrapper):
    """Its `reset` takes no arguments, as in the tutorial."""

    def reset(self):
        return self.env.reset()


def test_an_environment_whose_reset_takes_no_seed_is_seeded_through_np_random():
    env = AMAGOEnv(ResetWithoutArguments(gym.make("CartPole-v1")), env_name="CartPole")
    with pytest.warns(UserWarning, match=r"ResetWithoutArguments\.reset\(\) takes no seed.*seed=None"):
        first = env.reset(seed=5)[0].obs["observation"]
    assert (env.reset()[0].obs["observation"] != first).any()
    np.testing.assert_array_equal(env.reset(seed=5)[0].obs["observation"], first)
    with pytest.raises(TypeError, match="options"):
        env.reset(options={"easy": True})


class Returns(gym.Env):
    """Returns from `reset` and `step` what it is given."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, from_reset=None, from_step=None):
        self.from_reset = (np.zeros(2, np.float32), {}) if from_reset is None else from_reset
        self.from_step = from_step

    def reset(self, *, seed=None, options=None):
        return self.from_reset

    def step(self, action):
        return self.from_step


def test_results_in_the_form_of_the_older_gym_are_refused_with_the_remedy():
    obs = np.zeros(2, np.float32)
    with pytest.raises(TypeError, match=r"reset\(\) of environment 'old' returned a ndarray.*shimmy"):
        AMAGOEnv(Returns(from_reset=obs), env_name="old").reset()
    env = AMAGOEnv(Returns(from_step=(obs, 1.0, False, {})), env_name="old")
    env.reset()
    with pytest.raises(TypeError, match=r"step\(\) of environment 'old' returned 4 results.*shimmy"):
        env.step(np.array([[0]]))


@pytest.mark.filterwarnings("error")
def test_results_may_be_arrays_of_one_number():
    obs = np.zeros(2, np.float32)
    env = AMAGOEnv(Returns(from_step=(obs, np.array([2.0]), np.array([True]), np.array(False), {})), "arrays")
    env.reset()
    _, reward, terminated, truncated, _ = env.step(np.array([[0]]))
    assert (reward.tolist(), terminated.tolist(), truncated.tolist()) == ([2.0], [True], [False])


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_is_an_error_that_names_the_environment(reward):
    env = AMAGOEnv(Returns(from_step=(np.zeros(2, np.float32), reward, False, False, {})), "broken")
    env.reset()
    with pytest.raises(ValueError, match=r"'broken' returned the reward .* in step \[1\]"):
        env.step(np.array([[0]]))


# Names


class Renaming(gym.Env):
    """A multi-task environment: every reset begins another task, and the name says which."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    task = -1
    k = 3

    @property
    def env_name(self) -> str:
        return f"task{self.task}"

    def reset(self, *, seed=None, options=None):
        self.task += 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("layers", [0, 2])
def test_the_name_follows_the_task_through_any_wrappers(layers):
    inner = Renaming()
    for _ in range(layers):
        inner = gym.wrappers.TimeLimit(inner, 10)
    env = EpsilonGreedy(AMAGOEnv(inner))
    names = []
    for _ in range(3):
        env.reset()
        names.append(env.env_name)
    assert names == ["task0", "task1", "task2"]


@pytest.mark.filterwarnings("error")
def test_attributes_are_read_through_wrappers_on_every_gymnasium_without_warning():
    wrapped = gym.wrappers.TimeLimit(Renaming(), 10)
    env = EpsilonGreedy(AMAGOEnv(wrapped, env_name="x"))
    assert env.k == 3
    assert env.batched_envs == 1
    assert env.env_name == "x"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = env.no_such_name
    with pytest.raises(AttributeError):
        _ = env._private
    # The fault: from gymnasium 1.0 on a plain wrapper does not forward.
    if not gym.__version__.startswith("0."):
        with pytest.raises(AttributeError):
            _ = wrapped.k


def test_env_name_defaults_to_the_spec_id_or_the_class_name(space_env):
    assert AMAGOEnv(gym.make("CartPole-v1")).env_name == "CartPole-v1"
    assert AMAGOEnv(space_env()).env_name == "SpaceEnv"


def test_subclasses_may_name_convert_and_step_in_their_own_way(space_env):
    class Own(AMAGOEnv):
        @property
        def env_name(self):
            return "own"

        def make_action_rep(self, action):
            return -super().make_action_rep(action)

        def inner_step(self, action):
            obs, reward, *rest = super().inner_step(action)
            return obs, 10.0 * reward, *rest

        def inner_reset(self, seed=None, options=None):
            obs, _ = super().inner_reset(seed=seed, options=options)
            return obs, {"own": True}

    env = Own(space_env())
    assert env.env_name == "own"
    assert env.reset(seed=0)[1] == {"own": True}
    timestep, reward, *_ = env.step(np.array([[1]]))
    np.testing.assert_array_equal(timestep.prev_action, [[0, -1, 0]])
    assert reward.tolist() == [10.0]


# Batched environments


def test_a_batched_environment_has_one_row_per_environment(counting_batch_env):
    inner = counting_batch_env(3)
    env = AMAGOEnv(inner, env_name="batch", batched_envs=3)
    assert env.observation_space["observation"].shape == (1,)
    timestep, _ = env.reset(seed=0)
    assert timestep.obs["observation"].shape == (3, 1)
    timestep, reward, terminated, truncated, _ = env.step(np.array([[0], [1], [2]]))
    np.testing.assert_array_equal(inner.received[0], [5, 6, 7])
    np.testing.assert_array_equal(timestep.prev_action, np.eye(3))
    assert reward.dtype == np.float32
    assert reward.shape == terminated.shape == truncated.shape == timestep.time_idx.shape == (3,)


def test_the_final_observation_of_a_batch_is_found_in_either_form(counting_batch_env):
    env = AMAGOEnv(counting_batch_env(3), env_name="batch", batched_envs=3)
    env.reset(seed=0)
    env.step(np.zeros((3, 1), dtype=np.int64))
    timestep, _, terminated, _, info = env.step(np.zeros((3, 1), dtype=np.int64))
    rows = np.flatnonzero(terminated)
    assert rows.tolist() == [0]
    assert timestep.obs["observation"][0, 0] == 0.0
    np.testing.assert_array_equal(env.final_observation(info, rows)["observation"], [[2.0]])
    as_objects = np.array([np.array([2.0], np.float32), None, None], dtype=object)
    np.testing.assert_array_equal(
        env.final_observation({"final_observation": as_objects}, rows)["observation"], [[2.0]]
    )
    assert env.final_observation({}, rows) is None


def test_a_batched_environment_with_another_number_of_rows_is_named(counting_batch_env):
    env = AMAGOEnv(counting_batch_env(2), env_name="batch", batched_envs=3)
    with pytest.raises(ValueError, match=r"\(2, 1\).*\(3, 1\)"):
        env.reset(seed=0)


# Adapters and versions


def test_vector_adapters_step_their_environments(space_env, counting_batch_env):
    dummy = DummyAsyncVectorEnv([lambda: AMAGOEnv(space_env(), env_name="space") for _ in range(2)])
    (obs, rl2s, times), _ = dummy.reset(seed=0)
    assert (obs["observation"].shape, rl2s.shape, times.shape) == ((2, 2), (2, 4), (2, 1))
    (_, rl2s, _), rewards, terminated, _, _ = dummy.step(np.array([[0], [2]]))
    np.testing.assert_array_equal(rl2s, [[1, 1, 0, 0], [1, 0, 0, 1]])
    np.testing.assert_array_equal(rewards, [1.0, 1.0])
    assert terminated.tolist() == [False, False]
    dummy.close()
    vectorized = AlreadyVectorizedEnv(
        [lambda: AMAGOEnv(counting_batch_env(4), env_name="batch", batched_envs=4)]
    )
    assert vectorized.reset(seed=0)[0][1].shape == (4, 4)
    vectorized.close()
    with pytest.raises(ValueError, match="2 callables"):
        AlreadyVectorizedEnv([space_env, space_env])


@pytest.mark.parametrize("version", ["0.29.0", "0.29.1", "1.1.0", "1.4.0", "1.10.2"])
def test_supported_gymnasium_releases(version):
    check_gymnasium_version(version)


@pytest.mark.parametrize("version", ["0.28.1", "1.0.0", "1.0.0a2", "2.0.0", "unknown"])
def test_other_gymnasium_releases_are_refused_with_the_remedy(version):
    with pytest.raises(ImportError, match=r"gymnasium .* is installed.*pip install 'gymnasium>=1.1,<2'"):
        check_gymnasium_version(version)


class WithMask(AMAGOEnv):
    """Adds the mask of legal actions, a discrete phase, and images in another dtype to every observation."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env, "masked")
        self.observation_space["mask"] = gym.spaces.Box(0, 1, (3,), np.int8)
        self.observation_space["phase"] = gym.spaces.Discrete(2)

    def _with_mask(self, obs):
        obs = obs if isinstance(obs, dict) else {"observation": obs}
        return {**obs, "mask": np.array([1, 0, 1], np.int8), "phase": 1}

    def inner_reset(self, seed=None, options=None):
        obs, info = super().inner_reset(seed=seed, options=options)
        return self._with_mask(obs), info

    def inner_step(self, action):
        obs, *rest = super().inner_step(action)
        return self._with_mask(obs), *rest


@pytest.mark.parametrize(
    ("space", "key"),
    [
        (None, "observation"),
        (gym.spaces.Dict({"nested": gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,))})}), "nested/x"),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_subclass_adds_keys_to_its_observations(space_env, space, key, rows):
    single = WithMask(space_env(space))
    timestep, _ = single.reset()
    assert set(timestep.obs) == {key, "mask", "phase"}
    np.testing.assert_array_equal(timestep.obs["phase"], [[0.0, 1.0]])
    envs = make_vector_env([lambda: WithMask(space_env(space))] * rows, env_mode="sync")
    assert set(envs.observation_space.spaces) == {key, "mask", "phase"}
    assert envs.observation_space["phase"].shape == (2,)
    inputs = envs.reset()
    np.testing.assert_array_equal(inputs.obs["mask"], [[1, 0, 1]] * rows)
    step = envs.step(np.zeros((rows, 1), np.int64))
    np.testing.assert_array_equal(step.inputs.obs["phase"], [[0.0, 1.0]] * rows)
    envs.close()


def test_a_subclass_replaces_a_space(space_env):
    class Wide(AMAGOEnv):
        def __init__(self, env):
            super().__init__(env, "wide")
            self.observation_space["observation"] = gym.spaces.Box(-9.0, 9.0, (4,), np.float64)

        def inner_reset(self, seed=None, options=None):
            obs, info = super().inner_reset(seed=seed, options=options)
            return np.concatenate((obs, obs)).astype(np.float64), info

    obs = Wide(space_env()).reset()[0].obs
    assert set(obs) == {"observation"}
    assert obs["observation"].shape == (1, 4)
    assert obs["observation"].dtype == np.float64
