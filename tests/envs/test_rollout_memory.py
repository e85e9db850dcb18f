"""Memory stays flat however long environments are stepped, and nothing is kept when nothing is saved."""

import gc
import itertools
import tracemalloc

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env

ROWS, EPISODE = 128, 60
KIB = 1024


class Constant(gym.Env):
    """Episodes of a fixed length in which nothing changes."""

    observation_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(3, np.float32), 1.0, self.time == EPISODE, False, {}


class Hoarder(TrajectoryRecorder):
    """The fault: timesteps stay in memory although nothing is saved."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = []

    def add(self, step):
        super().add(step)
        self.kept.append(step.inputs.obs["observation"].copy())


def growth(steps: int, save_to, recorder_type=TrajectoryRecorder) -> float:
    """KiB by which traced memory grows over `steps` vector steps, after enough to fill every buffer once.

    Of two such runs the one that grows less: what is kept once, by whatever else runs in the process, is no leak.
    """
    env = make_vector_env(
        [lambda: AMAGOEnv(Constant(), "constant")] * ROWS,
        env_mode="sync",
        exploration_wrapper_type=EpsilonGreedy,
        seed=0,
    )
    recorder = recorder_type(
        ROWS,
        save_to=save_to,
        save_len=40,
        max_seq_len=10,
        rng=np.random.default_rng(0),
        on_written=lambda path: path.unlink(),
    )
    recorder.begin(env.reset(), env.env_names)
    actions = np.zeros((ROWS, 1), np.int64)

    def run(count: int) -> int:
        for _ in range(count):
            recorder.add(env.step(actions))
        recorder.flush()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sizes = [run(3 * EPISODE), run(steps), run(steps)]
    finally:
        tracemalloc.stop()
        recorder.close()
        env.close()
    return min(after - before for before, after in itertools.pairwise(sizes)) / KIB


@pytest.mark.parametrize("saving", [False, True])
def test_two_hundred_thousand_steps_leave_nothing_behind(tmp_path, saving):
    steps, limit = (200, 32.0) if saving else (800, 8.0)
    assert growth(steps, tmp_path if saving else None) < limit


def test_the_measure_sees_timesteps_that_stay():
    assert growth(100, None, Hoarder) > 100
