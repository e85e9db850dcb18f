"""Environments that step several rows and reset them themselves, gymnasium's vector environments among them."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import load_trajectory

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
def test_several_of_them_fill_consecutive_rows(counting_batch_env, mode):
    env = make_vector_env([lambda: AMAGOEnv(counting_batch_env(3), "counting", batched_envs=3)] * 2, **mode)
    assert env.num_envs == 6
    step, obs = steps_of(env, 3)[2]
    np.testing.assert_array_equal(step.done_rows, [1, 4])
    np.testing.assert_array_equal(step.final_obs["observation"], [[3.0], [3.0]])
    np.testing.assert_array_equal(obs[:, 0], [1, 0, 3, 1, 0, 3])
    env.close()


@pytest.mark.parametrize("vector_type", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_a_gymnasium_vector_env_gives_what_its_environments_give_one_by_one(vector_type):
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


def test_a_gymnasium_vector_env_that_nobody_would_reset_is_refused_with_the_remedy():
    # gymnasium 0.29 has no other modes
    for mode in ("DISABLED",) if HAS_AUTORESET_MODES else ():
        with pytest.raises(ValueError, match=r"DISABLED.*SAME_STEP or NEXT_STEP"):
            AMAGOEnv(gymnasium_lakes(2, mode=mode), "lake", batched_envs=2)
    unknown = gymnasium_lakes(2)
    unknown.metadata = {"autoreset_mode": "LATER"}
    with pytest.raises(ValueError, match="LATER"):
        AMAGOEnv(unknown, "lake", batched_envs=2)


def test_a_gymnasium_vector_env_that_does_not_say_who_resets_it_is_refused_with_the_remedy():
    silent = gymnasium_lakes(2)
    silent.metadata = {}
    if HAS_AUTORESET_MODES:
        with pytest.raises(
            ValueError, match=r"does not say who resets.*autoreset_mode.*SAME_STEP or NEXT_STEP"
        ):
            AMAGOEnv(silent, "lake", batched_envs=2)
    else:  # there is one way to do it, and no name for it
        assert AMAGOEnv(silent, "lake", batched_envs=2).batched_envs == 2
    silent.close()


def test_a_reset_in_the_same_step_without_the_last_observation_is_an_error():
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

    with pytest.raises(ValueError, match=r"without reporting its final observation.*final_obs"):
        until_one_ends()
    env.close()


def test_an_info_that_is_a_list_is_refused_with_the_remedy():
    lakes = gymnasium_lakes(2)
    step = lakes.step
    lakes.step = lambda actions: (*step(actions)[:4], [{}, {}])
    env = AMAGOEnv(lakes, "lake", batched_envs=2)
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"info is a list.*DictInfoToList"):
        env.step(np.zeros((2, 1), np.int64))
    env.close()


class Clock(gym.Env):
    """Shows (number of the episode, time in it); episodes last 1 to 5 steps, and end in both ways."""

    observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)
    episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.time, self.length = 0, int(self.np_random.integers(1, 6))
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        ended = self.time == self.length
        obs = np.array([self.episode, self.time], np.float32)
        return obs, 10.0 * self.episode + self.time, ended and self.length % 2 == 1, ended, {}


def recorded(folder, vector_type, mode: str, num: int = 3, steps: int = 60):
    """Records clocks, with exploration; returns the recorder, the trajectories and the number of finished rows."""
    kwargs = {"autoreset_mode": gym.vector.AutoresetMode[mode]} if HAS_AUTORESET_MODES else {}
    env = make_vector_env(
        [lambda: AMAGOEnv(vector_type([Clock] * num, **kwargs), "clock", batched_envs=num)],
        env_mode="already_vectorized",
        exploration_wrapper_type=EpsilonGreedy,
        seed=0,
    )
    recorder = TrajectoryRecorder(
        num, save_to=folder, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(seed=3), env.env_names)
    finished = 0
    for _ in range(steps):
        step = env.step(np.zeros((num, 1), np.int64))
        recorder.add(step)
        finished += step.done_rows.size
    recorder.cut()
    recorder.close()
    env.close()
    return recorder, [load_trajectory(path) for path in sorted(folder.iterdir())], finished


@pytest.mark.parametrize("vector_type", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"] if HAS_AUTORESET_MODES else ["SAME_STEP"])
def test_trajectories_hold_whole_episodes_and_nothing_else_in_every_autoreset_mode(
    tmp_path, vector_type, mode
):
    recorder, trajectories, finished = recorded(tmp_path, vector_type, mode)
    assert finished > 20
    assert len(trajectories) >= finished
    for trajectory in trajectories:
        length, obs = len(trajectory), trajectory.obs["observation"]
        episode = obs[0, 0]
        np.testing.assert_array_equal(obs[:, 0], episode)  # no observation of another episode
        np.testing.assert_array_equal(obs[:, 1], np.arange(length + 1))  # the final one included
        np.testing.assert_array_equal(trajectory.time_idxs[:, 0], np.arange(length + 1))
        np.testing.assert_array_equal(trajectory.rews[:, 0], 10.0 * episode + obs[1:, 1])
        np.testing.assert_array_equal(trajectory.actions.sum(axis=1), 1.0)
        np.testing.assert_array_equal(trajectory.rl2s[0], 0.0)
        np.testing.assert_array_equal(trajectory.rl2s[1:, 1:], trajectory.actions)
    assert recorder.total_frames == sum(map(len, trajectories))
    assert recorder.frames_by_env_name == {"clock": recorder.total_frames}


def test_resets_in_the_next_step_give_the_same_episodes_as_resets_in_the_same_step(tmp_path):
    episodes = []
    for mode in ("SAME_STEP", "NEXT_STEP") if HAS_AUTORESET_MODES else ("SAME_STEP", "the only one"):
        folder = tmp_path / mode
        folder.mkdir()
        _, trajectories, _ = recorded(folder, gym.vector.SyncVectorEnv, mode, num=2)
        episodes.append({(len(t), *t.rews[:, 0].tolist()) for t in trajectories if t.rews[0, 0] < 50.0})
    assert episodes[0] == episodes[1]


@pytest.mark.filterwarnings("error")
def test_a_row_that_was_only_reset_is_named_and_begins_an_episode():
    kwargs = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP} if HAS_AUTORESET_MODES else {}
    envs = gym.vector.SyncVectorEnv([Clock] * 4, **kwargs)
    env = make_vector_env([lambda: AMAGOEnv(envs, "clock", batched_envs=4)], env_mode="already_vectorized")
    env.reset(seed=1)
    ended_before = np.empty(0, np.int64)
    for _ in range(20):
        step = env.step(np.zeros((4, 1), np.int64))
        np.testing.assert_array_equal(step.reset_rows, ended_before)
        np.testing.assert_array_equal(step.inputs.time_idxs[step.reset_rows], 0)
        np.testing.assert_array_equal(step.inputs.rl2s[step.reset_rows], 0.0)
        np.testing.assert_array_equal(step.inputs.obs["observation"][step.reset_rows, 1], 0.0)
        if HAS_AUTORESET_MODES:
            ended_before = step.done_rows
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
