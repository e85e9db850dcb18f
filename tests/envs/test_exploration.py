"""Exploration: schedules, noise on every kind of action, random streams, resuming, and choice by name."""

import json

import gin
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from amago.envs import AMAGOEnv
from amago.envs.exploration import (
    BilevelEpsilonGreedy,
    EpsilonGreedy,
    ExplorationWrapper,
    get_exploration_cls,
    list_registered_explorations,
    register_exploration,
)
from amago.envs.exploration.base import exploration_registry


@pytest.fixture
def amago_env(space_env):
    return lambda action_space=None, episode_steps=10: AMAGOEnv(
        space_env(None, action_space, episode_steps), "space"
    )


@pytest.fixture(autouse=True)
def _no_bindings_left():
    yield
    gin.clear_config()


def test_schedules_match_the_reference_numbers(golden, amago_env):
    case = golden("exploration")
    wrappers = {
        "bilevel": BilevelEpsilonGreedy(
            amago_env(), rollout_horizon=100, steps_anneal=1000, randomize_eps=False
        ),
        "egreedy": EpsilonGreedy(amago_env(), steps_anneal=1000, randomize_eps=False),
    }
    for name, wrapper in wrappers.items():
        for row, global_step in enumerate(case.case["global_step"]):
            wrapper.global_step = global_step
            eps = [wrapper.current_eps(np.array([local_step]))[0] for local_step in case.case["local_step"]]
            np.testing.assert_allclose(
                eps, case.arrays[name][row], rtol=0, atol=1e-12, err_msg=f"{name} {global_step}"
            )


@pytest.mark.parametrize("seed", range(5))
def test_schedules_match_an_independent_formula(amago_env, seed):
    rng = np.random.default_rng(seed)
    horizon, anneal = int(rng.integers(1, 50)), int(rng.integers(1, 500))
    ss, se, es, ee = rng.random(4)
    wrapper = BilevelEpsilonGreedy(amago_env(), horizon, ss, se, es, ee, anneal, randomize_eps=False)
    for global_step, local_step in rng.integers(0, 600, (20, 2)):
        wrapper.global_step = int(global_step)
        start = np.interp(global_step, [0, anneal], [ss, se])
        end = np.interp(global_step, [0, anneal], [es, ee])
        expected = np.interp(local_step, [0, horizon], [start, end])
        np.testing.assert_allclose(wrapper.current_eps(np.array([local_step])), [expected], atol=1e-12)


def test_the_bilevel_schedule_stays_at_its_end_past_the_horizon(amago_env):
    def unclamped(local_step, start=1.0, end=0.8, horizon=10):
        return start - (start - end) / horizon * local_step

    wrapper = BilevelEpsilonGreedy(amago_env(), rollout_horizon=10, randomize_eps=False)
    assert wrapper.current_eps(np.array([10]))[0] == pytest.approx(0.8)
    assert wrapper.current_eps(np.array([1000]))[0] == pytest.approx(0.8)
    assert unclamped(1000) < 0


def test_a_batch_without_randomized_eps_passes_episode_ends(counting_batch_env):
    class CrashesAtEpisodeEnd(EpsilonGreedy):
        # The fault: the multiplier exists only when it is random.
        def on_episode_start(self, rows):
            self.multiplier[rows] = 1.0

    env = AMAGOEnv(counting_batch_env(2), env_name="batch", batched_envs=2)
    wrapper = EpsilonGreedy(env, randomize_eps=False)
    wrapper.reset()
    for _ in range(5):
        wrapper.step(np.zeros((2, 1), dtype=np.int64))
    with pytest.raises(AttributeError):
        CrashesAtEpisodeEnd(env, randomize_eps=False).reset()


def test_randomize_eps_draws_a_multiplier_below_one_at_every_reset(amago_env):
    wrapper = EpsilonGreedy(amago_env())
    wrapper.seed_exploration(np.random.default_rng(0))
    drawn = []
    for _ in range(200):
        wrapper.reset()
        drawn.append(wrapper.current_eps(np.array([0]))[0])
    assert 0.0 <= min(drawn) < 0.05
    assert 0.95 < max(drawn) < 1.0
    assert len(set(drawn)) == 200
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.07)


def test_only_finished_rows_draw_a_new_multiplier(counting_batch_env):
    wrapper = EpsilonGreedy(
        AMAGOEnv(counting_batch_env(2), env_name="batch", batched_envs=2), steps_anneal=10**9
    )
    wrapper.seed_exploration(np.random.default_rng(0))
    wrapper.reset()
    start = wrapper.current_eps(np.zeros(2, dtype=np.int64))
    for _ in range(2):
        wrapper.step(np.zeros((2, 1), dtype=np.int64))
    later = wrapper.current_eps(np.zeros(2, dtype=np.int64))
    assert later[0] != pytest.approx(start[0], rel=1e-3)
    assert later[1] == pytest.approx(start[1], rel=1e-3)


def test_subclasses_may_edit_epsilon_in_place_and_see_the_step_of_the_episode(amago_env):
    seen = []

    class OnlyAtTheEnds(EpsilonGreedy):
        def current_eps(self, local_step):
            seen.append(local_step.copy())
            eps = super().current_eps(local_step)
            eps[np.logical_and(local_step > 0, local_step < 2)] = 0.0
            return eps

    wrapper = OnlyAtTheEnds(
        amago_env(spaces.Discrete(1000), episode_steps=3), randomize_eps=False, eps_end=1.0
    )
    wrapper.seed_exploration(np.random.default_rng(0))
    executed = []
    for _ in range(2):
        wrapper.reset()
        executed.append([int(wrapper.step(np.array([[7]]))[0].prev_action.argmax()) for _ in range(3)])
    assert [int(step[0]) for step in seen] == [0, 1, 2] * 2
    assert all(step.shape == (1,) for step in seen)
    for first, middle, last in executed:
        assert middle == 7
        assert first != 7
        assert last != 7


@pytest.mark.parametrize(
    "space", [spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)], ids=str
)
@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
def test_discrete_actions_are_replaced_with_probability_eps_by_uniform_ones(amago_env, space, eps):
    env = amago_env(space)
    wrapper = EpsilonGreedy(env, eps_start=eps, eps_end=eps, randomize_eps=False)
    wrapper.seed_exploration(np.random.default_rng(0))
    policy_action = np.zeros((1, max(1, int(np.prod(env.action_space.shape)))), dtype=np.int64)
    executed = np.concatenate([wrapper.action(policy_action) for _ in range(6000)])
    assert executed.dtype == policy_action.dtype
    sizes = (
        [4]
        if isinstance(space, spaces.Discrete)
        else [2, 3]
        if isinstance(space, spaces.MultiDiscrete)
        else [2] * 3
    )
    for column, size in zip(executed.T, sizes, strict=True):
        frequency = np.bincount(column, minlength=size) / len(column)
        expected = np.full(size, eps / size)
        expected[0] += 1.0 - eps
        np.testing.assert_allclose(frequency, expected, atol=0.025)
    kept = (executed == 0).all(axis=1).mean()
    assert kept == pytest.approx(1.0 - eps + eps / np.prod(sizes), abs=0.025)
    assert not policy_action.any()


@pytest.mark.parametrize("eps", [0.0, 0.2])
def test_continuous_actions_get_gaussian_noise_of_scale_eps(amago_env, eps):
    wrapper = EpsilonGreedy(amago_env(spaces.Box(-5, 5, (2,), np.float32)), eps, eps, randomize_eps=False)
    wrapper.seed_exploration(np.random.default_rng(0))
    policy_action = np.array([[0.1, -0.2]], dtype=np.float32)
    executed = np.concatenate([wrapper.action(policy_action) for _ in range(4000)])
    assert executed.dtype == np.float32
    np.testing.assert_allclose(executed.mean(axis=0), policy_action[0], atol=0.015)
    np.testing.assert_allclose(executed.std(axis=0), eps, atol=0.01)
    assert policy_action.tolist() == [[pytest.approx(0.1), pytest.approx(-0.2)]]


def test_noisy_continuous_actions_stay_within_the_policy_space(amago_env):
    wrapper = EpsilonGreedy(amago_env(spaces.Box(-5, 5, (2,), np.float32)), 3.0, 3.0, randomize_eps=False)
    wrapper.reset()
    rows = np.concatenate([wrapper.step(np.array([[0.9, -0.9]]))[0].prev_action for _ in range(100)])
    assert np.abs(rows).max() == 1.0


def test_what_is_recorded_is_what_was_executed(amago_env):
    env = amago_env(spaces.Discrete(100))
    wrapper = EpsilonGreedy(env, eps_start=1.0, eps_end=1.0, randomize_eps=False)
    wrapper.reset()
    recorded = [int(wrapper.step(np.array([[3]]))[0].prev_action.argmax()) for _ in range(20)]
    assert recorded == env.unwrapped.received
    assert set(recorded) != {3}


def test_global_steps_count_the_steps_of_this_actor_over_all_episodes(amago_env):
    wrapper = EpsilonGreedy(amago_env(), eps_start=1.0, eps_end=0.0, steps_anneal=10, randomize_eps=False)
    ceilings = []
    for _ in range(3):
        wrapper.reset()
        for _ in range(4):
            ceilings.append(wrapper.current_eps(np.array([0]))[0])
            wrapper.step(np.array([[0]]))
    np.testing.assert_allclose(ceilings, np.maximum(1.0 - np.arange(12) / 10, 0.0), atol=1e-12)


def executed_actions(wrapper, episodes, seed=None):
    actions = []
    for episode in range(episodes):
        wrapper.reset(seed=seed if episode == 0 else None)
        actions += [int(wrapper.step(np.array([[0]]))[0].prev_action.argmax()) for _ in range(10)]
    return actions


def test_the_random_stream_is_seeded_once_and_goes_on_over_resets(amago_env):
    class UnseededAtReset(EpsilonGreedy):
        # The fault: a reset makes a new generator without a seed.
        def reset(self, *args, **kwargs):
            self.rng = np.random.default_rng()
            return super().reset(*args, **kwargs)

    def run(wrapper_type):
        wrapper = wrapper_type(amago_env(spaces.Discrete(100)))
        wrapper.seed_exploration(np.random.default_rng(11))
        return executed_actions(wrapper, episodes=3)

    assert run(EpsilonGreedy) == run(EpsilonGreedy)
    assert run(EpsilonGreedy)[:10] != run(EpsilonGreedy)[10:20]
    assert run(UnseededAtReset) != run(UnseededAtReset)


def test_a_seeded_reset_seeds_the_noise_of_a_wrapper_that_stands_alone(amago_env):
    def run(seed):
        return executed_actions(EpsilonGreedy(amago_env(spaces.Discrete(100))), episodes=2, seed=seed)

    assert run(3) == run(3)
    assert run(3) != run(4)


@pytest.mark.parametrize("bit_generator", [np.random.PCG64, np.random.MT19937])
def test_a_resumed_wrapper_draws_the_same_noise(amago_env, bit_generator):
    def make():
        return EpsilonGreedy(amago_env(spaces.Discrete(100)), steps_anneal=50)

    wrapper = make()
    wrapper.seed_exploration(np.random.Generator(bit_generator(5)))
    executed_actions(wrapper, episodes=2)
    state = json.loads(json.dumps(wrapper.exploration_state()))
    resumed = make()
    resumed.load_exploration_state(state)
    assert resumed.global_step == 20
    assert resumed.exploration_state() == wrapper.exploration_state()
    assert executed_actions(resumed, episodes=3) == executed_actions(wrapper, episodes=3)


def test_a_state_of_another_wrapper_is_refused(amago_env):
    wrapper = EpsilonGreedy(amago_env())
    state = wrapper.exploration_state()
    with pytest.raises(ValueError, match="lacks 'rng'"):
        wrapper.load_exploration_state({key: value for key, value in state.items() if key != "rng"})
    with pytest.raises(ValueError, match="lacks 'multiplier'"):
        wrapper.load_exploration_state({key: value for key, value in state.items() if key != "multiplier"})
    with pytest.raises(ValueError, match="2 environments"):
        wrapper.load_exploration_state({**state, "local_step": [0, 0]})


def test_custom_exploration_is_registered_and_found_by_name(amago_env):
    with pytest.raises(NotImplementedError, match="add_exploration_noise"):
        ExplorationWrapper(amago_env()).action(np.array([[0]]))

    @register_exploration("always-last")
    class AlwaysLast(ExplorationWrapper):
        def add_exploration_noise(self, action, local_step):
            return np.full_like(action, self.action_space.n - 1)

    try:
        wrapper = get_exploration_cls("always-last")(amago_env())
        wrapper.reset()
        np.testing.assert_array_equal(wrapper.step(np.array([[0]]))[0].prev_action, [[0, 0, 1]])
        assert {"always-last", "bilevel", "egreedy"} <= set(list_registered_explorations())
        with pytest.raises(ValueError, match="already registered"):
            register_exploration("egreedy")(AlwaysLast)
    finally:
        del exploration_registry._classes["always-last"]


def test_builtin_strategies_are_found_by_name_and_a_mistyped_one_is_corrected():
    assert get_exploration_cls("egreedy") is EpsilonGreedy
    assert get_exploration_cls("bilevel") is BilevelEpsilonGreedy
    with pytest.raises(ValueError, match="Did you mean 'egreedy'"):
        get_exploration_cls("e-greedy")


def test_gin_sets_every_argument_and_a_binding_on_bilevel_does_not_reach_egreedy(amago_env):
    gin.parse_config(
        """
        amago.envs.exploration.EpsilonGreedy.eps_start = 0.7
        EpsilonGreedy.randomize_eps = False
        BilevelEpsilonGreedy.rollout_horizon = 20
        exploration.BilevelEpsilonGreedy.steps_anneal = 123
        """
    )
    egreedy = EpsilonGreedy(amago_env())
    assert egreedy.current_eps(np.array([0]))[0] == pytest.approx(0.7)
    assert egreedy.steps_anneal == 1_000_000
    bilevel = BilevelEpsilonGreedy(amago_env())
    assert (bilevel.rollout_horizon, bilevel.steps_anneal) == (20, 123)


def test_the_horizon_of_the_bilevel_schedule_must_be_given(amago_env):
    with pytest.raises(RuntimeError, match="rollout_horizon"):
        BilevelEpsilonGreedy(amago_env())


@pytest.mark.parametrize("arguments", [{"eps_start": -0.1}, {"eps_end": float("nan")}, {"steps_anneal": 0}])
def test_impossible_schedules_are_refused(amago_env, arguments):
    with pytest.raises(ValueError, match=r"eps|steps_anneal"):
        EpsilonGreedy(amago_env(), **arguments)


def test_exploration_wraps_amago_environments_only():
    with pytest.raises(TypeError, match=r"EpsilonGreedy\(AMAGOEnv\(env\)\)"):
        EpsilonGreedy(gym.make("CartPole-v1"))


def test_histories_are_read_from_the_wrapped_environment(amago_env):
    class Keeping(AMAGOEnv):
        return_history = "returns"
        success_history = "successes"

    wrapper = EpsilonGreedy(Keeping(amago_env().env, "keeping"))
    assert (wrapper.return_history, wrapper.success_history) == ("returns", "successes")
    with pytest.raises(AttributeError, match="return_history"):
        _ = EpsilonGreedy(amago_env()).return_history
