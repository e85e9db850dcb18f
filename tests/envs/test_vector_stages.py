"""Environments stepped in stages take the steps that they take otherwise, and tell how far they have come."""

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv, BilevelEpsilonGreedy, EpsilonGreedy
from amago.envs.vector import SyncVectorEnv, VectorStep, make_vector_env


class Drawn(gym.Env):
    """Episodes of drawn lengths under changing names; every third step reports a metric."""

    observation_space = gym.spaces.Dict(
        {"time": gym.spaces.Box(0, np.inf, (1,), np.float32), "bits": gym.spaces.MultiBinary(2)}
    )
    action_space = gym.spaces.Discrete(4)

    def __init__(self, wrong_at=0):
        self.episode, self.life, self.wrong_at = 0, 0, wrong_at

    @property
    def env_name(self):
        return f"task {self.episode % 3}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.episode = 0, self.episode + 1
        self.length = self.np_random.geometric(0.3)
        return self.observe(), {}

    def observe(self):
        return {"time": np.array([self.time], np.float32), "bits": self.np_random.integers(0, 2, 2, np.int8)}

    def step(self, action):
        self.time, self.life = self.time + 1, self.life + 1
        reward = np.inf if self.life == self.wrong_at else float(action)
        info = {f"{AMAGO_ENV_LOG_PREFIX} Time": self.time} if self.time % 3 == 0 else {}
        return self.observe(), reward, self.time >= self.length, bool(self.np_random.random() < 0.1), info


class OwnStep(AMAGOEnv):
    """Defines `step`, so these are not stepped as a batch, and in a single stage."""

    def step(self, action):
        return super().step(action)


def make(rows: int, exploration=EpsilonGreedy, env_type=AMAGOEnv, **wrong: int) -> SyncVectorEnv:
    def maker(row: int) -> Callable[[], AMAGOEnv]:
        return lambda: env_type(Drawn(**wrong if row == rows - 1 else {}))

    env = make_vector_env(
        [maker(row) for row in range(rows)], env_mode="sync", exploration_wrapper_type=exploration, seed=3
    )
    assert isinstance(env, SyncVectorEnv)
    return env


def contents(step: VectorStep) -> dict[str, object]:
    arrays = {
        "actions": step.actions,
        "rewards": step.rewards,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "done_rows": step.done_rows,
        "final_time_idxs": step.final_time_idxs,
        "rl2s": step.inputs.rl2s,
        "time_idxs": step.inputs.time_idxs,
        **{f"obs {key}": array for key, array in step.inputs.obs.items()},
        **{f"final {key}": array for key, array in step.final_obs.items()},
    }
    told = {"metrics": step.metrics, "names": list(step.env_names)}
    return {name: (array.dtype, array.tolist()) for name, array in arrays.items()} | told


def bilevel(env):
    return BilevelEpsilonGreedy(env, rollout_horizon=5, steps_anneal=30)


@pytest.mark.parametrize("env_type", [AMAGOEnv, OwnStep])
@pytest.mark.parametrize("exploration", [None, EpsilonGreedy, bilevel])
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 40), steps=st.integers(1, 25), data=st.data())
def test_stages_give_what_a_step_gives(rows, steps, data, exploration, env_type):
    plain, staged = make(rows, exploration, env_type), make(rows, exploration, env_type)
    plain.reset()
    inputs = staged.reset()
    rng = np.random.default_rng(0)
    for number in range(steps):
        actions = rng.integers(0, 4, (rows, 1))
        seen: list[tuple[slice, np.ndarray | None, list[np.ndarray]]] = []

        def note(
            part: slice, ended: np.ndarray | None, seen: list[tuple[slice, np.ndarray | None, list]] = seen
        ) -> None:
            arrays = [inputs.rl2s, inputs.time_idxs, *inputs.obs.values()]
            seen.append((part, ended, [array[part].copy() for array in arrays]))

        if data.draw(st.integers(0, 3)):
            step = staged.step_in_stages(actions, note)
            check_told(seen, step, rows)
        else:  # either may come after the other
            step = staged.step(actions)
        assert contents(step) == contents(plain.step(actions)), number
    assert staged.exploration_state() == plain.exploration_state()


def check_told(seen, step: VectorStep, rows: int) -> None:
    """All rows in turn, each with what it ends the step with."""
    assert [part.start for part, _, _ in seen] == [0, *(part.stop for part, _, _ in seen[:-1])]
    assert seen[-1][0].stop == rows
    final = [step.inputs.rl2s, step.inputs.time_idxs, *step.inputs.obs.values()]
    done = step.terminated | step.truncated
    for part, ended, arrays in seen:
        for early, late in zip(arrays, final, strict=True):
            np.testing.assert_array_equal(early, late[part])
        np.testing.assert_array_equal(done[part], False if ended is None else ended)
        assert ended is None or ended.any()


@pytest.mark.parametrize(
    ("rows", "stages"), [(1, 1), (11, 1), (12, 2), (24, 2), (25, 3), (100, 9)], ids=lambda number: str(number)
)
def test_there_are_stages_of_about_a_dozen_rows(rows, stages):
    env = make(rows)
    assert isinstance(env, SyncVectorEnv)
    env.reset()
    parts: list[slice] = []
    env.step_in_stages(np.zeros((rows, 1), np.int64), lambda part, _: parts.append(part))
    assert len(parts) == stages
    sizes = {part.stop - part.start for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_environments_with_steps_of_their_own_are_one_stage():
    env = make(30, env_type=OwnStep)
    env.reset()
    parts: list[slice] = []
    env.step_in_stages(np.zeros((30, 1), np.int64), lambda part, _: parts.append(part))
    assert parts == [slice(0, 30)]


def test_an_error_in_a_later_stage_names_the_environment():
    env = make(30, wrong_at=2)
    env.reset()
    actions, told = np.zeros((30, 1), np.int64), []
    env.step_in_stages(actions, lambda part, _: None)
    with pytest.raises(ValueError, match=r"environment 'task \d' returned the reward inf in step"):
        env.step_in_stages(actions, lambda part, _: told.append(part))
    assert len(told) == 2
    assert env._group.active == 29


def test_wrong_actions_are_refused_before_anything_is_stepped():
    env = make(30)
    env.reset()
    actions, told = np.zeros((30, 1), np.int64), []
    actions[20] = 4
    with pytest.raises(ValueError, match="4"):
        env.step_in_stages(actions, lambda part, _: told.append(part))
    with pytest.raises(ValueError, match="shape"):
        env.step_in_stages(actions[:5], lambda part, _: told.append(part))
    assert told == []
    assert env._group.active == 20
