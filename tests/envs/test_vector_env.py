"""Vector environments: what a step returns, and that every way of stepping returns the same."""

import json
from functools import partial

import gin
import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.seeding import stream_seed
from amago.envs.vector import make_vector_env

SYNC = {"env_mode": "sync"}
ASYNC = {"env_mode": "async", "envs_per_worker": 2}
MODES = [
    pytest.param(SYNC, id="sync"),
    pytest.param(ASYNC, id="two-per-worker"),
    pytest.param({"env_mode": "async", "envs_per_worker": 1}, id="one-per-worker"),
]


class NamedEpisodes(gym.Env):
    """Observes (episode, step); ends after 3 steps, is named after its episode, and reports the step's number."""

    def __init__(self, truncates: bool = False) -> None:
        self.observation_space = gym.spaces.Dict(
            {
                "where": gym.spaces.Box(0, 1000, (2,), np.float64),
                "image": gym.spaces.Box(0, 255, (2, 3), np.uint8),
            }
        )
        self.action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.episode = -1
        self.truncates = truncates

    @property
    def env_name(self) -> str:
        return f"episode {self.episode}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 3
        info = {"AMAGO_LOG_METRIC steps": self.steps} if over else {}
        return self._observe(), self.steps / 2, over and not self.truncates, over and self.truncates, info

    def _observe(self):
        image = np.full((2, 3), 10 * self.episode + self.steps, np.uint8)
        return {"where": np.array([self.episode, self.steps], np.float64), "image": image}


def lakes(num: int) -> list:
    return [lambda: AMAGOEnv(MetaFrozenLake(size=3, k_episodes=2, hard_mode=True), "lake")] * num


def rollout(vector_env, steps: int, seed: int = 0) -> list[np.ndarray]:
    """Everything that comes out of a reset and `steps` steps with random actions, copied."""
    actions = np.random.default_rng(seed)
    inputs = vector_env.reset()
    seen = [*inputs.obs.values(), inputs.rl2s, inputs.time_idxs]
    out = [array.copy() for array in seen]
    for _ in range(steps):
        step = vector_env.step(actions.integers(0, 5, (vector_env.num_envs, 1)))
        seen = [*step.inputs.obs.values(), step.inputs.rl2s, step.inputs.time_idxs]
        seen += [step.actions, step.rewards, step.terminated, step.truncated, step.done_rows]
        seen += [*step.final_obs.values(), step.final_time_idxs]
        out += [array.copy() for array in seen]
        out.append(np.array([value for row, found in step.metrics for value in (row, *found.values())]))
    return out


def assert_equal(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    assert len(first) == len(second)
    for mine, theirs in zip(first, second, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture
def make():
    """`make_vector_env`, closing what it made."""
    made = []

    def make_and_keep(make_envs, **kwargs):
        made.append(make_vector_env(make_envs, **kwargs))
        return made[-1]

    yield make_and_keep
    for vector_env in made:
        vector_env.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_returns_whole_batches_in_the_documented_shapes(make, mode):
    env = make([lambda: AMAGOEnv(NamedEpisodes())] * 3, **mode)
    inputs = env.reset()
    assert inputs.obs["where"].shape == (3, 2)
    assert inputs.obs["where"].dtype == np.float64
    assert inputs.obs["image"].shape == (3, 2, 3)
    assert inputs.obs["image"].dtype == np.uint8
    assert inputs.rl2s.shape == (3, 3)
    assert inputs.time_idxs.dtype == np.int64
    actions = np.array([[0.5, -1.0], [0.0, 1.0], [0.25, 0.75]], np.float32)
    step = env.step(actions)
    np.testing.assert_array_equal(step.actions, actions)
    np.testing.assert_array_equal(step.rewards, np.full(3, 0.5, np.float32))
    np.testing.assert_array_equal(step.inputs.rl2s, np.concatenate((step.rewards[:, None], actions), 1))
    np.testing.assert_array_equal(step.inputs.time_idxs, [1, 1, 1])
    assert step.terminated.dtype == step.truncated.dtype == np.bool_
    assert step.done_rows.shape == (0,)
    assert step.final_obs["image"].shape == (0, 2, 3)
    assert step.metrics == []


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_finished_rows_start_anew_in_the_same_step_and_report_their_final_observation(make, mode, truncates):
    env = make([lambda: AMAGOEnv(NamedEpisodes(truncates))] * 3, **mode)
    env.reset()
    actions = np.ones((3, 2), np.float32)
    env.step(actions)
    env.step(actions)
    step = env.step(actions)
    np.testing.assert_array_equal(step.terminated, [not truncates] * 3)
    np.testing.assert_array_equal(step.truncated, [truncates] * 3)
    np.testing.assert_array_equal(step.done_rows, [0, 1, 2])
    np.testing.assert_array_equal(step.final_obs["where"], [[0, 3]] * 3)
    np.testing.assert_array_equal(step.final_time_idxs, [3] * 3)
    np.testing.assert_array_equal(step.rewards, [1.5] * 3)
    np.testing.assert_array_equal(step.inputs.obs["where"], [[1, 0]] * 3)
    np.testing.assert_array_equal(step.inputs.rl2s, np.zeros((3, 3)))
    np.testing.assert_array_equal(step.inputs.time_idxs, [0] * 3)
    np.testing.assert_array_equal(env.step(actions).inputs.time_idxs, [1] * 3)


@pytest.mark.parametrize("mode", MODES)
def test_names_and_metrics_belong_to_the_episode_of_the_transition(make, mode):
    env = make([lambda: AMAGOEnv(NamedEpisodes())] * 3, **mode)
    env.reset()
    actions = np.zeros((3, 2), np.float32)
    assert env.env_names == ["episode 0"] * 3
    early = env.step(actions)
    env.step(actions)
    last = env.step(actions)
    assert last.env_names == ["episode 0"] * 3
    assert last.metrics == [(row, {"steps": 3.0}) for row in range(3)]
    assert env.env_names == ["episode 1"] * 3
    assert env.step(actions).env_names == ["episode 1"] * 3
    assert early.env_names == ["episode 0"] * 3


@pytest.mark.parametrize("mode", MODES[1:])
def test_async_and_sync_steps_are_bit_identical(make, mode):
    here = make(lakes(5), **SYNC, exploration_wrapper_type=EpsilonGreedy, seed=11)
    there = make(lakes(5), **mode, exploration_wrapper_type=EpsilonGreedy, seed=11)
    assert_equal(rollout(here, 200), rollout(there, 200))


def test_a_seed_fixes_everything_and_another_changes_it(make):
    runs = [
        rollout(make(lakes(3), **SYNC, exploration_wrapper_type=EpsilonGreedy, seed=seed), 100)
        for seed in (1, 1, 2)
    ]
    assert_equal(runs[0], runs[1])
    assert any(not np.array_equal(mine, theirs) for mine, theirs in zip(runs[0], runs[2], strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_seeds_every_environment_with_a_stream_of_its_own(make, mode):
    class TellsItsSeed(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.array([-1.0 if seed is None else seed]), {}

        def step(self, action):
            return np.zeros(1), 0.0, True, False, {}

    def seeds(vector_reset) -> list[float]:
        return vector_reset.obs["observation"][:, 0].tolist()

    env = make([lambda: AMAGOEnv(TellsItsSeed())] * 3, **mode, seed=4, rank=1, role="eval")
    assert seeds(env.reset()) == [stream_seed(4, "eval", 1, i) for i in range(3)]
    assert seeds(env.reset()) == [-1.0] * 3
    assert seeds(env.reset(seed=9)) == [stream_seed(9, "eval", 1, i) for i in range(3)]
    assert seeds(env.step(np.zeros((3, 1), np.int64)).inputs) == [-1.0] * 3


@pytest.mark.parametrize("mode", MODES)
def test_exploration_continues_from_a_saved_state(make, mode):
    def made():
        env = make([lambda: AMAGOEnv(NamedEpisodes())] * 4, **mode, exploration_wrapper_type=EpsilonGreedy)
        env.reset()
        return env

    def noise(env) -> list[np.ndarray]:
        return [env.step(np.zeros((4, 2), np.float32)).actions.copy() for _ in range(20)]

    first, second = made(), made()
    noise(first)
    noise(second)
    states = json.loads(json.dumps(first.exploration_state()))
    assert [state["global_step"] for state in states] == [20] * 4
    second.load_exploration_state(states)
    assert_equal(noise(first), noise(second))


def test_there_is_no_exploration_state_without_exploration(make):
    for mode in (SYNC, ASYNC):
        env = make(lakes(2), **mode)
        assert env.exploration_state() == []
        env.load_exploration_state([])
        with pytest.raises(ValueError, match="states"):
            env.load_exploration_state([{}])


@pytest.fixture
def gin_bindings():
    gin.clear_config()
    yield gin.bind_parameter
    gin.clear_config()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("zero", [0.0, np.float32(0.0)], ids=["literal", "object"])
def test_spawned_workers_receive_gin_bindings(make, gin_bindings, method, zero):
    gin_bindings("EpsilonGreedy.eps_start", zero)
    gin.parse_config("no_noise = 0.0\nEpsilonGreedy.eps_end = %no_noise")
    make_env = partial(AMAGOEnv, MetaFrozenLake(size=3), "lake")
    env = make(
        [make_env] * 2,
        env_mode="async",
        envs_per_worker=2,
        mp_context=method,
        exploration_wrapper_type=EpsilonGreedy,
    )
    env.reset()
    for action in range(5):
        step = env.step(np.full((2, 1), action))
        np.testing.assert_array_equal(step.actions.argmax(1), [action] * 2)


def test_a_gin_binding_that_cannot_be_pickled_is_an_error(gin_bindings):
    gin_bindings("EpsilonGreedy.eps_start", lambda: 1.0)
    make_env = partial(AMAGOEnv, MetaFrozenLake(size=3), "lake")
    with pytest.raises(ValueError, match=r"EpsilonGreedy\.eps_start.*top level.*mp_context='fork'"):
        make_vector_env([make_env], env_mode="async", mp_context="spawn")


@pytest.mark.parametrize("mode", MODES)
def test_rendering_shows_the_first_environment(make, mode, capfd):
    env = make([lambda: AMAGOEnv(MetaFrozenLake(size=2), "lake")] * 2, **mode, seed=0)
    env.reset()
    env.render()
    env.close()
    assert capfd.readouterr().out.count("*") == 1


def test_invalid_arguments_of_make_vector_env_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'async'"):
        make_vector_env(lakes(1), env_mode="asinc")
    with pytest.raises(ValueError, match="make_envs is empty"):
        make_vector_env([], env_mode="sync")
    with pytest.raises(TypeError, match=r"make_envs\[0\]"):
        make_vector_env([AMAGOEnv(MetaFrozenLake(3), "lake")], env_mode="sync")
    with pytest.raises(ValueError, match="one callable"):
        make_vector_env(lakes(2), env_mode="already_vectorized")
    with pytest.raises(ValueError, match="envs_per_worker"):
        make_vector_env(lakes(2), env_mode="async", envs_per_worker=0)
    with pytest.raises(ValueError, match="mp_context"):
        make_vector_env(lakes(2), env_mode="async", mp_context="thread")
    with pytest.raises(TypeError, match="AMAGOEnv"):
        make_vector_env([lambda: MetaFrozenLake(3)], env_mode="sync")


@pytest.mark.parametrize("mode", [SYNC, {"env_mode": "async", "envs_per_worker": 1}])
def test_environments_that_differ_in_their_spaces_are_refused_by_number(mode):
    make_envs = [lambda: AMAGOEnv(NamedEpisodes()), lambda: AMAGOEnv(MetaFrozenLake(3), "lake")]
    with pytest.raises(ValueError, match="environments 0 and 1 differ"):
        make_vector_env(make_envs, **mode)


@pytest.mark.parametrize("mode", MODES)
def test_actions_of_another_shape_or_kind_are_refused(make, mode):
    env = make(lakes(3), **mode)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros((3, 1), np.int64))
    env.reset()
    with pytest.raises(ValueError, match=r"\(3, 1\)"):
        env.step(np.zeros(3, np.int64))
    with pytest.raises(TypeError, match="whole numbers"):
        env.step(np.full((3, 1), 0.5))
    env.step(np.ones((3, 1), np.float32))
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_every_method_but_close_raises_after_close(make, mode):
    env = make(lakes(3), **mode, exploration_wrapper_type=EpsilonGreedy)
    env.reset()
    states = env.exploration_state()
    env.close()
    env.close()
    for call in (
        env.reset,
        env.render,
        env.exploration_state,
        lambda: env.load_exploration_state(states),
        lambda: env.step(np.zeros((3, 1), np.int64)),
    ):
        with pytest.raises(RuntimeError, match="is closed: make a new one"):
            call()
