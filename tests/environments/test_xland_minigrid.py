"""XLand-MiniGrid on its real package, with a benchmark made here, as the published ones are downloads."""

import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.builtin.xland_minigrid import XLandMinigridVectorizedGym
from amago.envs.vector import make_vector_env

ROWS, K = 4, 2
FORWARD, RIGHT, LEFT = 0, 1, 2


@pytest.fixture(scope="module")
def benchmark():
    """Ten rulesets without rules: come near the ball or the square of a color."""
    import jax.numpy as jnp
    from xminigrid.benchmarks import Benchmark
    from xminigrid.core.constants import TILES_REGISTRY, Colors, Tiles
    from xminigrid.core.goals import AgentNearGoal
    from xminigrid.core.rules import EmptyRule

    colors = (Colors.RED, Colors.GREEN, Colors.BLUE, Colors.YELLOW, Colors.PURPLE)
    tiles = [TILES_REGISTRY[tile, color] for tile in (Tiles.BALL, Tiles.SQUARE) for color in colors]
    return Benchmark(
        goals=jnp.stack([AgentNearGoal(tile=tile).encode() for tile in tiles]),
        rules=jnp.stack([EmptyRule().encode()[None]] * len(tiles)),
        init_tiles=jnp.stack([tile[None] for tile in tiles]),
        num_rules=jnp.zeros(len(tiles), int),
    )


@pytest.fixture(scope="module")
def xland(benchmark):
    return XLandMinigridVectorizedGym(ROWS, K, rooms=1, grid_size=9, ruleset_benchmark=benchmark)


def play(env, steps: int, seed: int | None = None) -> list:
    """(observation before the step, results of the step) for random walks."""
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=seed)
    history = []
    for _ in range(steps):
        result = env.step(rng.choice([FORWARD, FORWARD, RIGHT, LEFT], ROWS))
        history.append((obs, result))
        obs = result[0]
    return history


@pytest.fixture(scope="module")
def history(xland):
    return play(xland, 700, seed=0)


def test_observations_are_in_the_space(xland, history):
    for obs, _ in history[:50]:
        for row in range(ROWS):
            one = {key: array[row] for key, array in obs.items()}
            assert xland.observation_space.contains(one)
    assert xland.action_space.n == 6
    assert (xland.max_steps_per_episode, xland.suggested_max_seq_len) == (243, 244 * K)


def test_attempts_share_a_goal_and_are_counted_logged_and_ended(xland, history):
    for row in range(ROWS):
        goal, attempt, start, earned, episodes = history[0][0]["goal"][row], 0, 0, 0.0, 0
        for t, (obs, (after, reward, terminated, truncated, info)) in enumerate(history):
            np.testing.assert_array_equal(obs["goal"][row], goal)
            was_last = obs["direction_done"][row, 4] == 1.0
            metrics = {
                key.removeprefix("AMAGO_LOG_METRIC "): values[row]
                for key, values in info.items()
                if key.startswith("AMAGO_LOG_METRIC") and not np.isnan(values[row])
            }
            earned += reward[row]
            if not was_last:
                if reward[row] > 0:
                    np.testing.assert_allclose(reward[row], 1 - 0.9 * (t + 1 - start) / 243, rtol=1e-5)
                    assert after["direction_done"][row, 4] == 1.0
                assert t + 1 - start <= 243
                assert not terminated[row]
                assert metrics == {}
                continue
            assert reward[row] == 0.0
            assert set(metrics) == {f"Ep {attempt} Return"}
            np.testing.assert_allclose(metrics[f"Ep {attempt} Return"], earned, rtol=1e-5)
            attempt, start, earned = attempt + 1, t + 1, 0.0
            assert bool(terminated[row]) == bool(truncated[row]) == (attempt == K)
            if attempt == K:
                np.testing.assert_array_equal(info["final_obs"]["goal"][row], goal)
                attempt, goal, episodes = 0, after["goal"][row], episodes + 1
        assert episodes >= 1


def test_a_seed_fixes_all_that_follows_and_without_one_the_tasks_are_fresh(xland, benchmark):
    def seen(env, seed):
        return np.concatenate([obs["grid"].ravel() for obs, _ in play(env, 12, seed)])

    first, second, other, again = (seen(xland, seed) for seed in (1, None, 2, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    fresh = XLandMinigridVectorizedGym(ROWS, K, rooms=1, grid_size=9, ruleset_benchmark=benchmark)
    assert not np.array_equal(seen(fresh, None), first)
    np.testing.assert_array_equal(seen(fresh, 1), first)


def test_training_and_test_rulesets_are_apart(benchmark):
    def goals(split, key=0):
        env = XLandMinigridVectorizedGym(
            2,
            rooms=1,
            grid_size=9,
            ruleset_benchmark=benchmark,
            train_test_split=split,
            train_test_split_key=key,
            train_test_split_pct=0.7,
        )
        return {tuple(goal) for goal in np.asarray(env.benchmark.goals).tolist()}

    train, test = goals("train"), goals("test")
    assert (len(train), len(test)) == (7, 3)
    assert not train & test
    assert goals("test", key=1) != test


def test_through_a_vector_environment(xland):
    env = make_vector_env(
        [lambda: AMAGOEnv(xland, "xland", batched_envs=ROWS)], env_mode="already_vectorized", seed=0
    )
    env.reset()
    metrics, done = [], 0
    for t in range(500):
        step = env.step(np.full((ROWS, 1), (FORWARD, FORWARD, LEFT)[t % 3]))
        metrics += [name for _, found in step.metrics for name in found]
        done += len(step.done_rows)
        if step.done_rows.size:
            assert (step.final_time_idxs >= K).all()
            assert (step.inputs.time_idxs[step.done_rows] == 0).all()
    assert metrics.count("Ep 1 Return") == done >= ROWS
    assert metrics.count("Ep 0 Return") >= done


def test_rendering_gives_an_image(xland):
    xland.reset(seed=0)
    image = xland.render(1)
    assert image.dtype == np.uint8
    assert image.shape == (288, 288, 3)
    assert image.std() > 0


def test_one_grid_is_an_ordinary_environment(benchmark):
    env = XLandMinigridVectorizedGym(1, 1, rooms=1, grid_size=9, ruleset_benchmark=benchmark)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    wrapped = AMAGOEnv(env, "xland")
    wrapped.reset(seed=0)
    for _ in range(243):
        *_, terminated, _, info = wrapped.step(np.array([[LEFT]]))
        assert not terminated
    *_, terminated, _, info = wrapped.step(np.array([[LEFT]]))
    assert terminated
    assert info["AMAGO_LOG_METRIC Ep 0 Return"] == 0.0


def test_wrong_arguments_are_refused(benchmark):
    with pytest.raises(ValueError, match=r"rooms=3 and grid_size=13 are not one of XLand-MiniGrid-R1-9x9"):
        XLandMinigridVectorizedGym(2, rooms=3, ruleset_benchmark=benchmark)
    with pytest.raises(ValueError, match=r"'trivial-1m', not one of trivial-21k"):
        XLandMinigridVectorizedGym(2, ruleset_benchmark="trivial-1m")
    with pytest.raises(TypeError, match="a name or a Benchmark"):
        XLandMinigridVectorizedGym(2, ruleset_benchmark=3)
    with pytest.raises(ValueError, match="train_test_split must be one of 'train', 'test'"):
        XLandMinigridVectorizedGym(2, ruleset_benchmark=benchmark, train_test_split="val")
    with pytest.raises(ValueError, match="k_episodes"):
        XLandMinigridVectorizedGym(2, 0, ruleset_benchmark=benchmark)
    env = XLandMinigridVectorizedGym(2, rooms=1, grid_size=9, ruleset_benchmark=benchmark)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(np.zeros(2, np.int64))
    env.reset()
    with pytest.raises(ValueError, match="one for each of 2 grids"):
        env.step(np.zeros(3, np.int64))


def test_a_short_training(benchmark, short_training):
    experiment = short_training(
        lambda: AMAGOEnv(
            XLandMinigridVectorizedGym(ROWS, K, rooms=1, grid_size=9, ruleset_benchmark=benchmark),
            "xland",
            batched_envs=ROWS,
        ),
        env_mode="already_vectorized",
        parallel_actors=ROWS,
    )
    assert set(experiment.train_envs.observation_space) == {"grid", "direction_done", "goal"}
