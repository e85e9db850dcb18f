"""EnvPool on its real package: its rows reset in the step after an episode's end, which is no transition."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.builtin.envpool_envs import EnvPoolEnv
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import load_trajectory

ROWS, LIMIT = 5, 30


def make(**settings) -> AMAGOEnv:
    return AMAGOEnv(EnvPoolEnv("CartPole-v1", ROWS, max_episode_steps=LIMIT, **settings), batched_envs=ROWS)


def record(folder, steps: int = 200, seed: int = 0, exploration=EpsilonGreedy):
    env = make_vector_env(
        [make], env_mode="already_vectorized", exploration_wrapper_type=exploration, seed=seed
    )
    assert env.env_names == ["CartPole-v1"] * ROWS
    recorder = TrajectoryRecorder(
        ROWS, save_to=folder, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0), writer_id="000"
    )
    recorder.begin(env.reset(), env.env_names)
    for t in range(steps):
        recorder.add(env.step(np.full((ROWS, 1), t % 2)))
    recorder.cut()
    recorder.close()
    env.close()
    return [load_trajectory(path) for path in sorted(folder.iterdir())], recorder


def test_recorded_transitions_are_those_of_cart_pole(tmp_path):
    trajectories, recorder = record(tmp_path)
    assert recorder.total_frames == sum(map(len, trajectories)) < 200 * ROWS
    ends = {"fallen": 0, "time limit": 0}
    cart_pole = gym.make("CartPole-v1").unwrapped
    cart_pole.reset()
    for trajectory in trajectories:
        obs = trajectory.obs["observation"]
        assert (np.abs(obs[0]) <= 0.05).all()
        assert len(trajectory) <= LIMIT
        np.testing.assert_array_equal(trajectory.time_idxs[:, 0], np.arange(len(trajectory) + 1))
        assert (trajectory.rews == 1.0).all()
        for t, action in enumerate(trajectory.actions.argmax(1)):
            cart_pole.state, cart_pole.steps_beyond_terminated = obs[t].astype(np.float64), None
            expected, _, terminated, _, _ = cart_pole.step(int(action))
            np.testing.assert_allclose(obs[t + 1], expected, atol=1e-5)
            # EnvPool tells of an end at its time limit as a truncation, whatever else ends there.
            assert trajectory.dones[t, 0] == (terminated and t + 1 < LIMIT)
            assert not terminated or t + 1 == len(trajectory)
        ends["fallen"] += int(trajectory.dones[-1, 0])
        ends["time limit"] += int(len(trajectory) == LIMIT)
    assert ends["fallen"] > 5
    assert ends["time limit"] > 5


def test_a_seed_fixes_the_episodes_and_without_one_they_are_fresh(tmp_path):
    def first_obs(name, seed):
        trajectories, _ = record(tmp_path / name, steps=20, seed=seed)
        return np.stack([trajectory.obs["observation"][0] for trajectory in trajectories[:ROWS]])

    np.testing.assert_array_equal(first_obs("a", 1), first_obs("b", 1))
    assert not np.array_equal(first_obs("c", 1), first_obs("d", 2))

    def reset(**seed):
        env = EnvPoolEnv("CartPole-v1", ROWS)
        obs, _ = env.reset(**seed)
        again, _ = env.reset()
        assert not np.array_equal(obs, again)
        env.close()
        return obs

    assert not np.array_equal(reset(), reset())
    np.testing.assert_array_equal(reset(seed=3), reset(seed=3))


def test_spaces_and_a_continuous_task():
    env = AMAGOEnv(EnvPoolEnv("Pendulum-v1", 3), batched_envs=3)
    assert env.observation_space["observation"].shape == (3,)
    assert env.action_space == gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    env.reset(seed=0)
    timestep, reward, *_ = env.step(np.array([[-1.0], [0.0], [1.0]], np.float32))
    assert timestep.obs["observation"].shape == (3, 3)
    assert (reward <= 0).all()
    env.close()


def test_one_row_is_an_ordinary_environment():
    env = make_vector_env(
        [lambda: AMAGOEnv(EnvPoolEnv("CartPole-v1", 1))], env_mode="already_vectorized", seed=0
    )
    env.reset()
    ended = 0
    for _ in range(60):
        step = env.step(np.ones((1, 1), np.int64))
        ended += len(step.done_rows)
        assert step.reset_rows.size == 0
    assert ended > 3
    env.close()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        EnvPoolEnv("CartPole-v1", 0)
    with pytest.raises(ValueError, match="env_type cannot be set"):
        EnvPoolEnv("CartPole-v1", 2, env_type="dm")


def test_a_short_training(short_training):
    short_training(make, env_mode="already_vectorized", parallel_actors=ROWS)
