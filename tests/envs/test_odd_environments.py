"""What is recorded of environments that do odd things is what they did, however they are stepped.

`odd_environments.py` has the environments.
"""

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.seeding import stream_seed
from amago.envs.vector import EnvWorkerError, make_vector_env
from amago.hindsight import load_trajectory
from amago.hindsight.filenames import clean_env_name, parse_filename

_spec = importlib.util.spec_from_file_location(
    "odd_environments", Path(__file__).with_name("odd_environments.py")
)
odd: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(odd)

ROWS, STEPS = odd.ROWS, 40
ODD = [
    kind
    for kind in vars(odd).values()
    if isinstance(kind, type) and issubclass(kind, odd.Plain) and kind is not odd.Wrong
]
NOISE = {"exploration_wrapper_type": EpsilonGreedy}
MODES: dict[str, dict[str, Any]] = {
    "sync": {"env_mode": "sync", **NOISE},
    "one by one": {"env_mode": "sync", **NOISE},  # see OneByOne
    "async": {"env_mode": "async", "envs_per_worker": 2, **NOISE},
    "sync, no noise": {"env_mode": "sync"},  # which makes arrays of actions of its own
    "one by one, no noise": {"env_mode": "sync"},
    "async, no noise": {"env_mode": "async", "envs_per_worker": 2},
}


class OneByOne(AMAGOEnv):
    """An AMAGOEnv that counts as one with steps of its own, so that it is not stepped in a batch with others."""

    def step(self, action):
        return super().step(action)


def make(kind: type, row: int, wrapper: type[AMAGOEnv]) -> Callable[[], AMAGOEnv]:
    return lambda: wrapper(kind(row))


def record(kind: type, mode: str, folder: Path) -> None:
    wrapper = OneByOne if mode.startswith("one by one") else AMAGOEnv
    env = make_vector_env(
        [make(kind, row, wrapper) for row in range(ROWS)],
        seed=4,
        **MODES[mode],
    )
    recorder = TrajectoryRecorder(
        ROWS, save_to=folder, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(), env.env_names)
    action = env.action_space
    # One array for all actions, as policies have that use their memory again.
    actions = np.zeros((ROWS, *(action.shape or (1,))), action.dtype)
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        drawn = rng.integers(0, 2, actions.shape)
        actions[...] = drawn
        recorder.add(env.step(actions))
        np.testing.assert_array_equal(actions, drawn)
    recorder.cut()
    recorder.close()
    env.close()
    assert recorder.total_frames == ROWS * STEPS


def number_of_first_episode(path: Path) -> tuple[int, int]:
    """(row, order in which it was handed over), from the file's name."""
    name, number, _ = path.stem.split("_")
    return int(name[3]), int(number, 16)


def check(kind: type, folder: Path) -> None:
    """Plays every row once more, with the recorded actions."""
    files = sorted(folder.iterdir(), key=number_of_first_episode)
    for row, paths in itertools.groupby(files, lambda path: number_of_first_episode(path)[0]):
        env = kind(row)
        seed: int | None = stream_seed(4, "env", 0, row)
        transitions = 0
        for path in paths:
            trajectory = load_trajectory(path)
            env.reset(seed=seed)
            seed = None
            truth = [env.expected(env.counts)]
            assert parse_filename(path).env_name == clean_env_name(env.env_name)
            for t, action in enumerate(trajectory.actions):
                own = int(action.argmax()) if isinstance(env.action_space, Discrete) else action.copy()
                _, _, terminated, truncated, _ = env.step(own)
                truth.append(env.expected(env.counts))
                assert trajectory.rews[t, 0] == np.float32(env.expected_reward())
                assert trajectory.dones[t, 0] == np.any(terminated)
                assert (np.any(terminated) or np.any(truncated)) <= (t + 1 == len(trajectory))
            assert set(trajectory.obs) == set(truth[0])
            for key, array in trajectory.obs.items():
                expected = np.stack([each[key] for each in truth])
                assert array.dtype == expected.dtype
                np.testing.assert_array_equal(array, expected, err_msg=f"{kind.__name__} {path.name} {key}")
            np.testing.assert_array_equal(trajectory.rl2s[1:, 1:], trajectory.actions)
            np.testing.assert_array_equal(trajectory.rl2s[1:, :1], trajectory.rews)
            np.testing.assert_array_equal(trajectory.time_idxs[:, 0], np.arange(len(trajectory) + 1))
            transitions += len(trajectory)
        assert transitions == STEPS


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (kind, mode)
        for kind, mode in itertools.product(ODD, MODES)
        if "no noise" not in mode or kind in (odd.SpoilsItsAction, odd.KeepsItsAction)
    ],
)
def test_what_is_recorded_is_what_the_environment_did(kind, mode, tmp_path):
    record(kind, mode, tmp_path)
    check(kind, tmp_path)


def test_a_batched_environment_may_return_lists_and_final_observations_as_objects(tmp_path):
    lengths = [1, 2, 3, 4]

    class Lasting(odd.Plain):
        @property
        def length(self):
            return lengths[self.row]

    envs = [Lasting(row) for row in range(4)]
    env = make_vector_env(
        [lambda: AMAGOEnv(odd.OddBatch(envs), "batch", batched_envs=4)],
        env_mode="already_vectorized",
        **NOISE,
        seed=0,
    )
    recorder = TrajectoryRecorder(
        4, save_to=tmp_path, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(), env.env_names)
    for _ in range(20):
        recorder.add(env.step(np.zeros((4, 1), np.int64)))
    recorder.cut()
    recorder.close()
    found = [load_trajectory(path) for path in tmp_path.iterdir()]
    assert sum(map(len, found)) == 80
    assert len(found) == sum(-(-20 // length) for length in lengths)
    for trajectory in found:
        row, episode, _, _ = trajectory.obs["observation"][0]
        steps = np.arange(len(trajectory) + 1)
        choices = trajectory.actions.argmax(1)
        expected = np.stack(
            [np.full_like(steps, row), np.full_like(steps, episode), steps, [-1, *choices]], 1
        )
        np.testing.assert_array_equal(trajectory.obs["observation"], expected)
        np.testing.assert_array_equal(trajectory.rews[:, 0], episode + steps[1:] / 4)
        np.testing.assert_array_equal(trajectory.time_idxs[:, 0], steps)


@pytest.mark.parametrize("mode", ["sync", "one by one", "async"])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (odd.another_shape, r"'observation' has shape \(3,\), and its space says \(4,\)"),
        (odd.no_observation, r"'observation' has shape \(\)"),
        (odd.no_dictionary, r"'observation' has shape \(\)"),
        (odd.two_rewards, r"reward of shape \(2,\)"),
        (odd.no_reward, "'row1' returned the reward None in step .3."),
        (odd.a_word, "returned 'much' as reward"),
        (odd.four_results, "'row1' returned 4 results"),
        (odd.a_reward_without_end, r"'row1' returned the reward 1e\+39"),
        (odd.a_metric_that_is_no_number, r"AMAGO_LOG_METRIC success'\] is 'yes'"),
    ],
)
def test_a_wrong_result_is_an_error_that_says_what_is_wrong(wrong, told, mode):
    wrapper = OneByOne if mode == "one by one" else AMAGOEnv
    env = make_vector_env(
        [lambda row=row: wrapper(odd.Wrong(row, wrong if row == 1 else None)) for row in range(ROWS)],
        **MODES[mode],
    )
    env.reset()
    if mode == "async":
        told = r"environment 1 \('row1'\) raised while stepping with action \[\[\d\]\]: .*" + told
    with pytest.raises((ValueError, TypeError, EnvWorkerError), match=told):
        steps(env, STEPS)
    env.close()


def steps(env: Any, count: int) -> None:
    for _ in range(count):
        env.step(np.zeros((env.num_envs, 1), np.int64))
