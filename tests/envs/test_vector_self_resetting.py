"""Environments that step several rows and reset them themselves, gymnasium's vector environments among them."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import make_vector_env

HAS_AUTORESET_MODES = hasattr(gym.vector, "AutoresetMode")


def gymnasium_lakes(num: int, vector_type=gym.vector.SyncVectorEnv, mode: str = "SAME_STEP"):
    kwargs = {"autoreset_mode": gym.vector.AutoresetMode[mode]} if HAS_AUTORESET_MODES else {}
    return vector_type([lambda: MetaFrozenLake(size=3, k_episodes=2)] * num, **kwargs)


class Unreporting(gym.Wrapper):
    """Drops the infos of the environment inside."""

    def step(self, action):
        return (*self.env.step(action)[:4], {})


def steps_of(vector_env, num: int) -> list:
    vector_env.reset()
    actions = np.zeros((vector_env.num_envs, 1), np.int64)
    return [
        (step, step.inputs.obs["observation"].copy())
        for step in (vector_env.step(actions) for _ in range(num))
    ]


def counting(counting_batch_env, wrapper=lambda env: env):
    return make_vector_env(
        [lambda: AMAGOEnv(wrapper(counting_batch_env(3)), "counting", batched_envs=3)],
        env_mode="already_vectorized",
    )


def test_a_reported_final_observation_is_passed_on(counting_batch_env):
    steps = steps_of(counting(counting_batch_env), 2)
    step, obs = steps[1]
    np.testing.assert_array_equal(step.done_rows, [0])
    np.testing.assert_array_equal(step.final_obs["observation"], [[2.0]])
    np.testing.assert_array_equal(step.final_time_idxs, [2])
    np.testing.assert_array_equal(obs, [[0.0], [2.0], [2.0]])


def test_the_first_observation_of_the_next_episode_stands_in_for_an_unreported_one(counting_batch_env):
    step, obs = steps_of(counting(counting_batch_env, Unreporting), 2)[1]
    np.testing.assert_array_equal(step.final_obs["observation"], [[0.0]])
    np.testing.assert_array_equal(step.final_time_idxs, [2])
    np.testing.assert_array_equal(step.inputs.rl2s[0], 0.0)
    np.testing.assert_array_equal(step.inputs.time_idxs, [0, 2, 2])
    np.testing.assert_array_equal(obs, [[0.0], [2.0], [2.0]])


@pytest.mark.parametrize("mode", [{"env_mode": "sync"}, {"env_mode": "async", "envs_per_worker": 1}])
def test_several_batched_environments_fill_consecutive_rows(counting_batch_env, mode):
    env = make_vector_env([lambda: AMAGOEnv(counting_batch_env(3), "counting", batched_envs=3)] * 2, **mode)
    assert env.num_envs == 6
    step, obs = steps_of(env, 3)[2]
    np.testing.assert_array_equal(step.done_rows, [1, 4])
    np.testing.assert_array_equal(step.final_obs["observation"], [[3.0], [3.0]])
    np.testing.assert_array_equal(obs[:, 0], [1, 0, 3, 1, 0, 3])
    env.close()


@pytest.mark.parametrize("vector_type", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_a_gymnasium_vector_env_equals_its_environments_stepped_singly(vector_type):
    seed, num = 5, 3
    vectorized = make_vector_env(
        [lambda: AMAGOEnv(gymnasium_lakes(num, vector_type), "lake", batched_envs=num)],
        env_mode="already_vectorized",
    )
    single = make_vector_env(
        [lambda: AMAGOEnv(MetaFrozenLake(size=3, k_episodes=2), "lake")] * num, env_mode="sync"
    )
    vectorized.reset(seed=seed)
    single.reset(seed=seed)
    # rows have other seeds there than here, and no lake differs from another while the agent stands still
    for _ in range(60):
        actions = np.zeros((num, 1), np.int64)
        first, second = vectorized.step(actions), single.step(actions)
        np.testing.assert_array_equal(first.inputs.obs["observation"], second.inputs.obs["observation"])
        np.testing.assert_array_equal(first.inputs.rl2s, second.inputs.rl2s)
        np.testing.assert_array_equal(first.inputs.time_idxs, second.inputs.time_idxs)
        np.testing.assert_array_equal(first.done_rows, second.done_rows)
        np.testing.assert_array_equal(first.final_obs["observation"], second.final_obs["observation"])
        np.testing.assert_array_equal(first.final_time_idxs, second.final_time_idxs)
        assert first.metrics == second.metrics
    vectorized.close()
    single.close()


@pytest.mark.skipif(not HAS_AUTORESET_MODES, reason="gymnasium 0.29 has one mode")
@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED", None])
def test_a_gymnasium_vector_env_in_another_autoreset_mode_is_refused(mode):
    lakes = gymnasium_lakes(2, mode=mode or "SAME_STEP")
    if mode is None:
        lakes.metadata = {}
    with pytest.raises(ValueError, match=rf"autoreset_mode.*{mode}.*only SAME_STEP"):
        AMAGOEnv(lakes, "lake", batched_envs=2)


def test_a_gymnasium_vector_env_that_does_not_report_the_final_observation_is_an_error():
    lakes = gymnasium_lakes(2)
    step = lakes.step

    def keeps_it_to_itself(actions):
        *results, info = step(actions)
        return *results, {key: value for key, value in info.items() if "final" not in key}

    lakes.step = keeps_it_to_itself
    env = AMAGOEnv(lakes, "lake", batched_envs=2)
    env.reset(seed=0)

    def until_one_ends():
        for _ in range(500):
            env.step(np.zeros((2, 1), np.int64))

    with pytest.raises(ValueError, match=r"did not report its final observation.*final_obs"):
        until_one_ends()
    env.close()


def test_a_wrong_number_of_rows_is_refused_with_the_right_one():
    with pytest.raises(ValueError, match="batched_envs=2"):
        AMAGOEnv(gymnasium_lakes(2), "lake", batched_envs=3)
    with pytest.raises(ValueError, match="the environment inside it"):
        AMAGOEnv(gymnasium_lakes(1), "lake", batched_envs=1)


def test_exploration_is_recorded_for_every_row():
    env = make_vector_env(
        [lambda: AMAGOEnv(gymnasium_lakes(64), "lake", batched_envs=64)],
        env_mode="already_vectorized",
        exploration_wrapper_type=EpsilonGreedy,
        seed=0,
    )
    env.reset()
    executed = env.step(np.zeros((64, 1), np.int64)).actions.argmax(1)
    assert 0 < (executed != 0).sum() < 64
    assert len(env.exploration_state()) == 1
    env.close()
