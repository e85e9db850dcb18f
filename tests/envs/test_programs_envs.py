"""Programs as users of AMAGO 3 write them: a game of their own behind a subclass of AMAGOEnv."""

import functools
import warnings

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv, EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import load_trajectory
from amago.hindsight.filenames import parse_filename

ROWS, STEPS = 4, 60


class GameCrashed(Exception):
    pass


class Mine(gym.Env):
    """Digs for gold: action 1 digs a level deeper, from level 3 on one more step kills the game at times.

    Shows (episode, level, step). An episode lasts 8 steps.
    """

    def __init__(self):
        self.observation_space = gym.spaces.Box(0.0, 1000.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.episode = -1
        self.played = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.level, self.time = 0, 0
        return self.look(), {}

    def look(self):
        return np.array([self.episode, self.level, self.time], np.float32)

    def step(self, action):
        if self.level >= 3 and self.np_random.random() < 0.5:
            raise GameCrashed("the mine has collapsed")
        self.level += int(action == 1)
        self.time += 1
        self.played += 1
        return self.look(), float(self.level), self.time == 8, False, {}


class MineEnv(AMAGOEnv):
    """Adds the light that is left to the observations, and the last action as bits."""

    def __init__(self, miner: str):
        super().__init__(Mine(), env_name="mine")
        self.miner = miner
        self.observation_space["light"] = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space["tool"] = gym.spaces.Discrete(3)

    @property
    def env_name(self):
        return f"{self.miner} level {self.env.unwrapped.level if hasattr(self.env.unwrapped, 'level') else 0}"

    def inner_reset(self, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        return {"observation": obs, "light": np.ones(1, np.float32), "tool": 0}, info

    def inner_step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        light = np.array([1.0 - obs[2] / 8], np.float32)
        return (
            {"observation": obs, "light": light, "tool": int(action)},
            reward,
            terminated,
            truncated,
            info,
        )

    def gold(self):
        return self.env.unwrapped.level * 10


class SafeMineEnv(MineEnv):
    """Survives crashes of the game, and reports what it found."""

    def step(self, action):
        try:
            timestep, reward, terminated, truncated, info = super().step(action)
        except GameCrashed:
            timestep, info = self.reset()
            reward, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.ones(1, bool)
            info[f"{AMAGO_ENV_LOG_PREFIX} Crashes"] = 1.0
            return timestep, reward, terminated, truncated, info
        if terminated or truncated:
            info[f"{AMAGO_ENV_LOG_PREFIX} Gold"] = self.gold()
            info[f"{AMAGO_ENV_LOG_PREFIX} Steps"] = int(self.step_count[0])
        return timestep, reward, terminated, truncated, info


MODES = {
    "sync": {"env_mode": "sync"},
    "async": {"env_mode": "async", "envs_per_worker": 2},
    "exploring": {
        "env_mode": "sync",
        "exploration_wrapper_type": functools.partial(EpsilonGreedy, eps_end=1.0),
    },
}


def play(env_type, folder, steps=STEPS, **mode):
    """Plays, with every row digging in every second step; returns the files, the metrics and the recorder."""
    makes = [functools.partial(env_type, f"miner{row}") for row in range(ROWS)]
    envs = make_vector_env(makes, seed=1, **mode)
    assert set(envs.observation_space) == {"observation", "light", "tool"}
    recorder = TrajectoryRecorder(
        ROWS, save_to=folder, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(envs.reset(), envs.env_names)
    metrics = []
    for t in range(steps):
        step = envs.step(np.full((ROWS, 1), t % 2))
        metrics += step.metrics
        recorder.add(step)
    recorder.cut()
    recorder.close()
    envs.call_async("gold")
    assert [gold % 10 for gold in envs.call_wait()] == [0] * ROWS
    envs.close()
    return sorted(folder.iterdir()), metrics, recorder


def check_that_it_was_played(trajectory):
    """Every step of a recorded trajectory is one of the game."""
    obs, actions = trajectory.obs["observation"], trajectory.actions.argmax(1)
    steps = np.arange(len(trajectory) + 1)
    assert len(trajectory) > 0
    assert len(set(obs[:, 0])) == 1
    np.testing.assert_array_equal(obs[:, 2], steps)
    np.testing.assert_array_equal(trajectory.time_idxs[:, 0], steps)
    np.testing.assert_array_equal(np.diff(obs[:, 1]), actions == 1)
    np.testing.assert_array_equal(trajectory.rews[:, 0], obs[1:, 1])
    np.testing.assert_array_equal(trajectory.actions.sum(1), 1.0)
    np.testing.assert_allclose(trajectory.obs["light"][:, 0], 1.0 - steps / 8)
    np.testing.assert_array_equal(trajectory.obs["tool"][1:], trajectory.actions)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.filterwarnings("ignore:environments are stepped one by one")
def test_added_observations_metrics_and_names_are_recorded_and_crashes_survived(mode, tmp_path):
    files, metrics, recorder = play(SafeMineEnv, tmp_path, **mode)
    trajectories = [load_trajectory(path) for path in files]
    for trajectory in trajectories:
        check_that_it_was_played(trajectory)
    crashes = sum("Crashes" in found for _, found in metrics)
    finished = [found for _, found in metrics if "Gold" in found]
    assert crashes > 5
    assert sum(each.dones[-1, 0] for each in trajectories) == len(finished) > 5
    assert all(found["Steps"] == 8 for found in finished)
    # a crash is no step of the game, nor a transition
    assert sum(map(len, trajectories)) == recorder.total_frames == ROWS * STEPS - crashes
    names = {parse_filename(path.name).env_name for path in files}
    assert {name[:12] for name in names} == {f"miner{row} level" for row in range(ROWS)}
    assert len(names) > ROWS  # the name changes with the level


def test_an_exception_that_the_program_does_not_catch_is_raised():
    envs = make_vector_env([lambda: MineEnv("miner")] * 2, env_mode="sync", seed=0)
    envs.reset()

    def until_it_crashes():
        for _ in range(100):
            envs.step(np.ones((2, 1), np.int64))

    with pytest.raises(GameCrashed, match="collapsed"):
        until_it_crashes()


class DryMineEnv(MineEnv):
    """A mine of two levels, which never crashes."""

    def inner_step(self, action):
        self.env.unwrapped.level = min(self.env.unwrapped.level, 1)
        return super().inner_step(action)


class DryMineEnvWithStep(DryMineEnv):
    def step(self, action):
        timestep, reward, terminated, truncated, info = super().step(action)
        if terminated:
            info[f"{AMAGO_ENV_LOG_PREFIX} Gold"] = self.gold()
        return timestep, reward, terminated, truncated, info


def test_the_result_is_the_same_whether_or_not_step_is_overridden(tmp_path):
    recorded = []
    for env_type in (DryMineEnv, DryMineEnvWithStep):
        folder = tmp_path / env_type.__name__
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files, _, recorder = play(env_type, folder, **MODES["exploring"])
        recorded.append([load_trajectory(path) for path in files])
        assert recorder.total_frames == ROWS * STEPS
    for left, right in zip(*recorded, strict=True):
        for name in ("rews", "dones", "actions", "time_idxs", "rl2s"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
        for key, array in left.obs.items():
            np.testing.assert_array_equal(array, right.obs[key])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_override_that_slows_stepping_down_is_told_once(mode):
    def told(env_type, count):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make_vector_env([lambda: env_type("miner")] * count, **MODES[mode]).close()
        return [str(each.message) for each in caught if "one by one" in str(each.message)]

    (message,) = told(DryMineEnvWithStep, 4)
    assert "DryMineEnvWithStep.step" in message
    assert "the results are the same" in message
    assert told(DryMineEnv, 4) == []
    assert told(DryMineEnvWithStep, 1) == []  # nothing is lost
    with pytest.warns(UserWarning, match=r"one by one.*OwnNoise\.step"):
        make_vector_env(
            [lambda: DryMineEnv("miner")] * 2, env_mode="sync", exploration_wrapper_type=OwnNoise
        ).close()


class OwnNoise(EpsilonGreedy):
    def step(self, action):
        return super().step(action)


def test_attributes():
    env = MineEnv("miner")
    assert env.env.unwrapped.__class__ is Mine
    assert (env.batched_envs, env.discrete, env.multibinary, env.action_size) == (1, True, False, 3)
    assert env.rl2_space.shape == (4,)
    assert env.action_space == gym.spaces.Discrete(3)
    assert env.observation_space["light"].shape == (1,)
    env.reset()
    np.testing.assert_array_equal(env.step_count, [0])
    for _ in range(2):
        env.step(np.array([[0]]))
    np.testing.assert_array_equal(env.step_count, [2])
    assert env.env_name == "miner level 0"

    class Switches(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        action_space = gym.spaces.MultiBinary(5)

    switches = AMAGOEnv(Switches())
    assert (switches.discrete, switches.multibinary, switches.action_size) == (False, True, 5)


@pytest.mark.parametrize("env_type", [DryMineEnv, DryMineEnvWithStep])
@pytest.mark.filterwarnings("ignore:environments are stepped one by one")
def test_step_count_counts_however_the_environments_are_stepped(env_type):
    envs = make_vector_env([lambda: env_type("miner")] * 2, env_mode="sync", seed=0)
    envs.reset()
    for t in range(12):
        envs.call_async("step_count")
        counted = envs.call_wait()
        np.testing.assert_array_equal(counted, [[t % 8]] * 2)
        envs.step(np.zeros((2, 1), np.int64))


class FrameSkip(AMAGOEnv):
    """Replaces the whole space and returns a dict of its own form, and a plain one for a plain space."""

    def __init__(self, keys):
        super().__init__(Mine(), env_name="mine")
        self.observation_space = gym.spaces.Dict(keys)

    def inner_reset(self, seed=None, options=None):
        obs, info = super().inner_reset(seed=seed, options=options)
        return {"observation": obs[:2], "level": obs[1:2]}, info


@pytest.mark.parametrize("keys", [("observation",), ("level",), ("level", "observation")])
def test_keys_may_be_removed_and_replaced(keys):
    spaces = {
        "observation": gym.spaces.Box(0, 1000, (2,), np.float32),
        "level": gym.spaces.Box(0, 1000, (1,), np.float32),
    }
    env = FrameSkip({key: spaces[key] for key in keys})
    timestep, _ = env.reset()
    assert {key: array.shape for key, array in timestep.obs.items()} == {
        key: (1, *spaces[key].shape) for key in keys
    }
