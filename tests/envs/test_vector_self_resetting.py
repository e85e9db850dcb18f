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


class Countdown(gym.Env):
    """Row r lasts r + 2 steps, then r + 3, ...; terminated and truncated in turns; shows (r, episode, time)."""

    observation_space = gym.spaces.Box(0.0, 100.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, row: int) -> None:
        self.row, self.episode = row, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return np.array([self.row, self.episode, self.time], np.float32), {}

    def step(self, action):
        self.time += 1
        over = self.time >= self.row + 2 + self.episode
        terminated, truncated = over and self.episode % 2 == 0, over and self.episode % 2 == 1
        obs = np.array([self.row, self.episode, self.time], np.float32)
        metrics = {"AMAGO_LOG_METRIC Lasted": float(self.time)} if over else {}
        return obs, self.time + action / 2, terminated, truncated, metrics


class Labelled(AMAGOEnv):
    """Adds a key to the observations of a vector environment, as users' subclasses do."""

    def __init__(self, env, batched_envs):
        super().__init__(env, "labelled", batched_envs)
        self.observation_space["twice"] = gym.spaces.Box(0.0, 200.0, (1,), np.float32)

    def inner_reset(self, seed=None, options=None):
        obs, info = super().inner_reset(seed=seed, options=options)
        return {"observation": obs, "twice": 2 * obs[:, 2:]}, info

    def inner_step(self, action):
        obs, *rest = super().inner_step(action)
        return {"observation": obs, "twice": 2 * obs[:, 2:]}, *rest


def countdowns(mode: str, vector_type=gym.vector.SyncVectorEnv, rows: int = 3):
    makes = [lambda row=row: Countdown(row) for row in range(rows)]
    return vector_type(makes, autoreset_mode=gym.vector.AutoresetMode[mode])


def record(folder, amago_env, steps: int):
    """The recorded trajectories by (row, episode), the steps, and the recorder."""
    env = make_vector_env([lambda: amago_env], env_mode="already_vectorized")
    recorder = TrajectoryRecorder(
        env.num_envs, save_to=folder, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(), env.env_names)
    metrics = []
    for t in range(steps):
        step = env.step(np.full((env.num_envs, 1), t % 2))
        metrics += [(row, found["Lasted"]) for row, found in step.metrics]
        recorder.add(step)
    recorder.cut()
    recorder.close()
    env.close()
    trajectories = {}
    for path in folder.iterdir():
        trajectory = load_trajectory(path)
        row, episode, _ = trajectory.obs["observation"][0]
        assert (row, episode) not in trajectories
        trajectories[int(row), int(episode)] = trajectory
    return trajectories, metrics, recorder


@pytest.mark.skipif(not HAS_AUTORESET_MODES, reason="gymnasium 0.29 has one mode")
@pytest.mark.parametrize(
    ("mode", "vector_type"),
    [
        ("SAME_STEP", gym.vector.SyncVectorEnv),
        ("DISABLED", gym.vector.SyncVectorEnv),
        ("DISABLED", gym.vector.AsyncVectorEnv),
        ("NEXT_STEP", gym.vector.SyncVectorEnv),
        ("NEXT_STEP", gym.vector.AsyncVectorEnv),
    ],
)
@pytest.mark.parametrize("wrapper", [AMAGOEnv, Labelled])
def test_what_is_recorded_in_every_autoreset_mode_is_what_the_rows_did(mode, vector_type, wrapper, tmp_path):
    steps = 30
    env = wrapper(countdowns(mode, vector_type), batched_envs=3)
    trajectories, metrics, recorder = record(tmp_path, env, steps)
    lasted = {row: [value for each, value in metrics if each == row] for row in range(3)}
    for row in range(3):
        episodes = [trajectory for (each, _), trajectory in sorted(trajectories.items()) if each == row]
        assert len(episodes) > 3
        resets = steps - sum(map(len, episodes))
        assert resets == 0 if mode != "NEXT_STEP" else len(episodes) - 1 <= resets <= len(episodes)
        for number, trajectory in enumerate(episodes):
            length = len(trajectory)
            whole = length == row + 2 + number
            assert whole or number == len(episodes) - 1
            expected = [(row, number, time) for time in range(length + 1)]
            np.testing.assert_array_equal(trajectory.obs["observation"], expected)
            np.testing.assert_array_equal(trajectory.time_idxs[:, 0], range(length + 1))
            np.testing.assert_array_equal(trajectory.rl2s[0], 0.0)
            actions = trajectory.actions.argmax(1)
            np.testing.assert_array_equal(trajectory.rews[:, 0], np.arange(1, length + 1) + actions / 2)
            np.testing.assert_array_equal(np.diff(actions) % 2, 1)
            assert trajectory.dones[:, 0].tolist() == [False] * (length - 1) + [whole and number % 2 == 0]
            if wrapper is Labelled:
                seen = trajectory.obs["twice"][:, 0]
                # An environment that resets itself in the same step cannot report the final value of an added key.
                exact = length + 1 if mode == "NEXT_STEP" or not whole else length
                np.testing.assert_array_equal(seen[:exact], 2.0 * np.arange(exact))
        assert lasted[row] == [row + 2 + number for number in range(len(lasted[row]))]
    assert recorder.total_frames == sum(map(len, trajectories.values()))


@pytest.mark.skipif(not HAS_AUTORESET_MODES, reason="gymnasium 0.29 has one mode")
def test_a_step_that_only_resets_a_row_is_an_episode_without_steps():
    env = make_vector_env(
        [lambda: AMAGOEnv(countdowns("NEXT_STEP"), "countdown", batched_envs=3)],
        env_mode="already_vectorized",
    )
    env.reset()
    actions = np.ones((3, 1), np.int64)
    env.step(actions)
    ends, resets = env.step(actions), None
    np.testing.assert_array_equal(ends.done_rows, [0])
    np.testing.assert_array_equal(ends.final_obs["observation"], [[0, 0, 2]])
    assert ends.reset_rows.size == 0
    resets = env.step(actions)
    np.testing.assert_array_equal(resets.done_rows, [0, 1])
    np.testing.assert_array_equal(resets.reset_rows, [0])
    np.testing.assert_array_equal(resets.final_time_idxs, [0, 3])
    np.testing.assert_array_equal(resets.inputs.obs["observation"][0], [0, 1, 0])
    np.testing.assert_array_equal(resets.inputs.rl2s[0], 0.0)
    assert resets.rewards[0] == 0.0
    follows = env.step(actions)
    np.testing.assert_array_equal(follows.inputs.obs["observation"][0], [0, 1, 1])
    np.testing.assert_array_equal(follows.inputs.time_idxs, [1, 0, 0])


@pytest.mark.skipif(not HAS_AUTORESET_MODES, reason="gymnasium 0.29 has one mode")
def test_the_vector_environments_that_gymnasium_makes_by_default_are_taken(tmp_path):
    cart_poles = gym.make_vec("CartPole-v1", num_envs=4)  # a class of its own, in mode NEXT_STEP
    env = make_vector_env(
        [lambda: AMAGOEnv(cart_poles, batched_envs=4)],
        env_mode="already_vectorized",
        exploration_wrapper_type=EpsilonGreedy,
        seed=0,
    )
    assert env.env_names == ["CartPole-v1"] * 4
    recorder = TrajectoryRecorder(
        4, save_to=tmp_path, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(), env.env_names)
    for _ in range(100):
        recorder.add(env.step(np.ones((4, 1), np.int64)))
    recorder.cut()
    recorder.close()
    env.close()
    ended = [each for each in map(load_trajectory, tmp_path.iterdir()) if each.dones.any()]
    assert len(ended) > 10
    for trajectory in ended:
        angles, final = trajectory.obs["observation"][:-1, 2], trajectory.obs["observation"][-1]
        assert (np.abs(angles) < 0.21).all()
        assert abs(final[2]) > 0.2 or abs(final[0]) > 2.4
        assert (trajectory.rews == 1.0).all()
        np.testing.assert_array_equal(
            trajectory.obs["observation"][0].clip(-0.05, 0.05), trajectory.obs["observation"][0]
        )


@pytest.mark.skipif(not HAS_AUTORESET_MODES, reason="gymnasium 0.29 has one mode")
def test_an_autoreset_mode_that_is_missing_or_unknown_is_told():
    class Silent(gym.vector.VectorEnv):
        metadata = {}  # noqa: RUF012  (gymnasium's own is shared, and some environments write into it)
        num_envs = 2
        single_observation_space = Countdown.observation_space
        single_action_space = Countdown.action_space

    with pytest.warns(UserWarning, match=r"Silent has no metadata\['autoreset_mode'\]; NEXT_STEP is assumed"):
        assert AMAGOEnv(Silent(), "silent", batched_envs=2).env.autoreset_mode == "NEXT_STEP"
    Silent.metadata = {"autoreset_mode": "SOMETIMES"}
    with pytest.raises(ValueError, match="'SOMETIMES', not one of NEXT_STEP, SAME_STEP, DISABLED"):
        AMAGOEnv(Silent(), "silent", batched_envs=2)


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


@pytest.mark.skipif(not HAS_AUTORESET_MODES, reason="gymnasium 0.29 has one mode")
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_a_gymnasium_vector_env_of_one_row_is_an_ordinary_environment(mode):
    env = make_vector_env(
        [lambda: AMAGOEnv(countdowns(mode, rows=1), "countdown", batched_envs=1)],
        env_mode="already_vectorized",
    )
    env.reset()
    seen = []
    for _ in range(6):
        step = env.step(np.zeros((1, 1), np.int64))
        seen.append(step.inputs.obs["observation"][0, 2])
        if step.done_rows.size:
            assert (
                step.final_obs["observation"][0, 2] == step.final_time_idxs[0] == step.metrics[0][1]["Lasted"]
            )
    assert seen == [1, 0, 1, 2, 0, 1] if mode != "SAME_STEP" else seen[:2] == [1, 0]
    env.close()


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
