"""Behaviours of environments and recording that have been got wrong before; each fails on the mistake, made here.

Others stand with the part that they are about: docs/testing.md lists all.
"""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from amago.envs import AMAGOEnv
from amago.envs.metrics import extract_metrics
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import load_trajectory


class Drawing(gym.Env):
    """Draws its observations and reports a metric; an episode has 3 steps."""

    def __init__(self, observation_space=None, action_space=None) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        info = {"AMAGO_LOG_METRIC Steps": self.steps}
        return self.observation_space.sample(), 1.0, self.steps == 3, False, info


def drawing_envs(num: int, **spaces_of_env):
    return make_vector_env([lambda: AMAGOEnv(Drawing(**spaces_of_env), "drawing")] * num, env_mode="sync")


def test_multidiscrete_actions_reach_the_environment_as_choices():
    def scaled_like_a_box(action, space):
        return space.low + (action + 1.0) * 0.5 * (space.high - space.low)

    space = spaces.MultiDiscrete([3, 2])
    env = AMAGOEnv(Drawing(action_space=space), "drawing")
    env.reset()
    for choice in ([2, 1], [0, 0]):
        env.step(np.array([choice]))
    with pytest.raises(AttributeError):
        scaled_like_a_box(np.zeros(2), space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4),
        spaces.Box(0, 255, (3,), np.int64),
        spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))),
    ],
    ids=["discrete", "integers", "tuple"],
)
def test_observations_that_are_no_float_arrays_are_stepped_and_recorded(space, tmp_path):
    def taken_for_a_float_array(observation):
        if observation.dtype != np.float32:
            raise TypeError(f"expected float32, got {observation.dtype}")
        return observation

    env = drawing_envs(2, observation_space=space)
    recorder = TrajectoryRecorder(
        2, save_to=tmp_path, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(), env.env_names)
    for _ in range(3):
        recorder.add(env.step(np.zeros((2, 1), np.int64)))
    recorder.close()
    assert [len(load_trajectory(path)) for path in tmp_path.iterdir()] == [3, 3]
    with pytest.raises((TypeError, AttributeError)):
        taken_for_a_float_array(space.sample())


def files_after_each_step(folder: Path, begin, add, steps: int = 7) -> list[int]:
    env = drawing_envs(2)
    begin(env.reset(), env.env_names)
    counts = []
    for _ in range(steps):
        add(env.step(np.zeros((2, 1), np.int64)))
        counts.append(len(list(folder.iterdir())))
    return counts


def test_a_finished_trajectory_is_on_disk_before_collection_ends(tmp_path):
    recorder = TrajectoryRecorder(
        2, save_to=tmp_path, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0)
    )

    def record(step):
        recorder.add(step)
        recorder.flush()

    assert files_after_each_step(tmp_path, recorder.begin, record) == [0, 0, 2, 2, 2, 4, 4]
    recorder.close()
    # the mistake: all is kept until collection ends, and a crash before loses it
    kept = []
    late = tmp_path / "late"
    late.mkdir()
    assert files_after_each_step(late, lambda inputs, names: None, kept.append) == [0] * 7


def test_metrics_that_training_environments_report_come_out_of_every_step():
    class Forgets(gym.Wrapper):
        """The mistake: what the environment reports is thrown away on the way."""

        def step(self, action):
            return (*self.env.step(action)[:4], {})

    def reported(wrap) -> list:
        env = make_vector_env(
            [lambda: AMAGOEnv(wrap(Drawing()), "drawing")] * 2, env_mode="async", envs_per_worker=1
        )
        env.reset()
        metrics = env.step(np.zeros((2, 1), np.int64)).metrics
        env.close()
        return metrics

    assert reported(lambda env: env) == [(0, {"Steps": 1.0}), (1, {"Steps": 1.0})]
    assert reported(Forgets) == []
    assert extract_metrics({"Steps": 1}) == {}


def test_a_reset_with_a_seed_repeats_the_episode_in_every_row():
    env = drawing_envs(3)

    def first(seed) -> np.ndarray:
        return env.reset(seed=seed).obs["observation"].copy()

    np.testing.assert_array_equal(first(5), first(5))
    assert len(np.unique(first(5), axis=0)) == 3
    # the mistake: the seed does not reach the environments
    assert not np.array_equal(first(5), first(None))
