"""KShot makes k attempts at the same task one episode."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, KShot
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import load_trajectory

PREFIX = "AMAGO_LOG_METRIC "


class Safe(gym.Env):
    """Open a safe by its number, drawn at reset from 0 to 9, or as `options` say; three guesses per attempt."""

    observation_space = gym.spaces.Dict({"guesses": gym.spaces.Discrete(4)})
    action_space = gym.spaces.Discrete(10)

    def __init__(self, tells: str = "is_success") -> None:
        self.tells = tells

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(10))
        self.number = drawn if options is None else options["number"]
        self.guesses = 0
        return {"guesses": 0}, {}

    def step(self, action):
        self.guesses += 1
        opened = action == self.number
        return {"guesses": self.guesses}, float(opened), opened, self.guesses == 3, {self.tells: opened}


def play(env, actions):
    """Steps until the episode ends; the results of all steps."""
    results = []
    for action in actions:
        results.append(env.step(action))
        if results[-1][2] or results[-1][3]:
            break
    return results


def test_attempts_rewards_soft_resets_ends_and_metrics():
    env = KShot(Safe(), 3)
    obs, _ = env.reset(seed=0)
    number, wrong = env.unwrapped.number, (env.unwrapped.number + 1) % 10
    assert env.observation_space.contains(obs)
    np.testing.assert_allclose(obs["attempt"], [1, 0])
    # missed, extra step, opened at the second guess, extra step, opened at once
    actions = [wrong, wrong, wrong, number, wrong, number, number, number]
    results = play(env, actions)
    assert len(results) == len(actions)
    shown = [(each[0]["guesses"], *each[0]["attempt"].tolist()) for each in results]
    third = np.float32(1 / 3)
    assert shown == [
        *[(1, 0, 0), (2, 0, 0), (3, 0, 0)],
        *[(0, 1, third), (1, 0, third), (2, 0, third)],
        *[(0, 1, np.float32(2 / 3)), (1, 0, np.float32(2 / 3))],
    ]
    assert [each[1] for each in results] == [0, 0, 0, 0, 0, 1, 0, 1]
    assert [each[2] for each in results] == [False] * 7 + [True]
    assert not any(each[3] for each in results)
    assert [t for t, each in enumerate(results) if each[4].get("soft_reset")] == [3, 6]
    metrics = [{key: info[key] for key in info if key.startswith(PREFIX)} for *_, info in results]
    assert metrics[2] == {f"{PREFIX}Episode 0 Return": 0.0, f"{PREFIX}Episode 0 Success": 0.0}
    assert metrics[5] == {f"{PREFIX}Episode 1 Return": 1.0, f"{PREFIX}Episode 1 Success": 1.0}
    assert metrics[7] == {f"{PREFIX}Episode 2 Return": 1.0, f"{PREFIX}Episode 2 Success": 1.0}
    assert [t for t, found in enumerate(metrics) if found] == [2, 5, 7]
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(0)


def test_all_attempts_have_one_task_and_every_episode_another():
    env = KShot(Safe(), 4)

    def numbers(episodes, seed=None):
        found = []
        for episode in range(episodes):
            env.reset(seed=seed if episode == 0 else None)
            in_attempts = {env.unwrapped.number}
            for *_, info in play(env, [10] * 100):
                if info.get("soft_reset"):
                    in_attempts.add(env.unwrapped.number)
            assert len(in_attempts) == 1
            found.append(in_attempts.pop())
        return found

    assert numbers(12, seed=3) == numbers(12, seed=3)
    assert numbers(12, seed=3) != numbers(12, seed=4)
    assert numbers(12) != numbers(12)
    assert len(set(numbers(12))) > 1


def test_a_function_of_the_user_draws_the_task():
    def sample_task(env, rng):
        assert isinstance(env, Safe)
        return {"options": {"number": int(rng.integers(100, 200))}}

    env = KShot(Safe("success"), 2, sample_task=sample_task)
    env.reset(seed=0)
    first = env.unwrapped.number
    results = play(env, [0, 0, 0, 0, first])
    assert env.unwrapped.number == first >= 100
    assert results[-1][4][f"{PREFIX}Episode 1 Success"] == 1.0
    env.reset()
    assert env.unwrapped.number != first
    env = KShot(Safe(), 2)
    env.reset(options={"number": 77})
    assert env.unwrapped.number == 77


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_gymnasium_s_own_environments(name):
    env = KShot(gym.make(name, max_episode_steps=20), 3)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=1)
    first = obs["observation"]
    returns, starts, earned, steps = [], [], 0.0, 0
    while True:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        steps += 1
        earned += reward
        if info.get("soft_reset"):
            starts.append(obs["observation"])
        for key, value in info.items():
            if key.startswith(PREFIX):
                assert key == f"{PREFIX}Episode {len(returns)} Return"
                returns.append(value)
        assert not truncated
        if terminated:
            break
    assert len(returns) == 3
    np.testing.assert_allclose(sum(returns), earned)
    assert steps <= 3 * 20 + 2
    assert len(starts) == 2
    for start in starts:
        np.testing.assert_array_equal(start, first)


def test_recorded_through_a_vector_environment(tmp_path):
    names = {"sync": {}, "async": {"envs_per_worker": 1}}
    recorded = []
    for mode, settings in names.items():
        folder = tmp_path / mode
        env = make_vector_env(
            [lambda: AMAGOEnv(KShot(gym.make("FrozenLake-v1"), 2), "lake")] * 2,
            env_mode=mode,
            seed=0,
            **settings,
        )
        recorder = TrajectoryRecorder(
            2, save_to=folder, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0), writer_id="000"
        )
        recorder.begin(env.reset(), env.env_names)
        for t in range(80):
            recorder.add(env.step(np.full((2, 1), t % 4)))
        recorder.cut()
        recorder.close()
        env.close()
        recorded.append([load_trajectory(path) for path in sorted(folder.iterdir())])
    for left, right in zip(*recorded, strict=True):
        np.testing.assert_array_equal(left.obs["observation"], right.obs["observation"])
        np.testing.assert_array_equal(left.obs["attempt"], right.obs["attempt"])
    whole = [each for each in recorded[0] if each.dones[-1, 0]]
    assert len(whole) > 4
    for trajectory in whole:
        flags, attempts = trajectory.obs["attempt"].T
        assert flags.sum() == 2
        assert sorted({*attempts.tolist()}) == [0.0, 0.5]
        # the observation before the second attempt is the last one of the first, not yet the start
        second = int(np.flatnonzero(flags)[1])
        assert trajectory.obs["observation"][second - 1].argmax() in (5, 7, 11, 12, 15)  # holes and goal
        assert trajectory.obs["observation"][second].argmax() == 0


def test_the_observation_may_stay_as_it_is():
    env = KShot(gym.make("CartPole-v1"), 2, show_attempt=False)
    assert env.observation_space == gym.make("CartPole-v1").observation_space
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="k must be at least 1"):
        KShot(Safe(), 0)
    with pytest.raises(TypeError, match="k must be a whole number"):
        KShot(Safe(), 1.5)
    with pytest.raises(TypeError, match="must be a gymnasium environment"):
        KShot("CartPole-v1", 2)
    with pytest.raises(ValueError, match="already has an observation 'attempt'"):
        KShot(KShot(Safe(), 2), 2)
