"""MetaFrozenLake: attempts, rewards, observations, and what hard mode, recovery and slipping change."""

from collections import Counter

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from gymnasium.utils.env_checker import check_env

from amago.envs.builtin.toy_gym import MetaFrozenLake

STAY, ROW_UP, ROW_DOWN, COLUMN_UP, COLUMN_DOWN = range(5)


def lake_like(text: str, **kwargs) -> MetaFrozenLake:
    """An environment whose lake renders as `text` after its reset, found by trying seeds."""
    env = MetaFrozenLake(size=len(text.split()), **kwargs)
    for seed in range(2000):
        env.reset(seed=seed)
        if env.render().split() == text.split():
            return env
    raise AssertionError(f"no seed gives the lake {text}")


@pytest.mark.parametrize("kwargs", [{}, {"hard_mode": True, "slip_chance": 0.2}, {"recover_mode": True}])
def test_it_is_a_valid_gymnasium_environment(kwargs):
    check_env(MetaFrozenLake(size=4, k_episodes=3, **kwargs), skip_render_check=True)


def test_moves_change_row_and_column_and_stop_at_the_shore():
    env = lake_like("*FF FFF FFG")
    positions = []
    for action in (ROW_UP, ROW_DOWN, ROW_DOWN, COLUMN_UP, COLUMN_DOWN, COLUMN_DOWN, STAY):
        obs, *_ = env.step(action)
        positions.append((round(obs[0] * 3), round(obs[1] * 3)))
    assert positions == [(1, 0), (0, 0), (0, 0), (0, 1), (0, 0), (0, 0), (0, 0)]


def test_observations_are_float32_fractions_with_the_reset_signal_and_the_progress():
    env = lake_like("*F FG", k_episodes=4)
    obs, _ = env.reset(seed=0)
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs, [0, 0, 1, 0])
    obs, *_ = env.step(STAY)
    np.testing.assert_array_equal(obs, [0, 0, 0, 0])


def test_the_goal_gives_one_and_the_observation_is_the_start_of_the_next_attempt():
    env = lake_like("*F FG", k_episodes=2)
    env.step(ROW_UP)
    obs, reward, terminated, truncated, info = env.step(COLUMN_UP)
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert info == {"AMAGO_LOG_METRIC Episode 0 Success": 1.0}
    np.testing.assert_array_equal(obs, [0, 0, 1, 0])  # still shows the progress of the attempt just ended
    obs, _, _, _, info = env.step(STAY)
    np.testing.assert_array_equal(obs, [0, 0, 0, 0.5])
    assert info == {}


def test_a_hole_ends_the_attempt_without_reward():
    env = lake_like("*F HG", k_episodes=2)
    obs, reward, terminated, _, info = env.step(ROW_UP)
    assert (reward, terminated) == (0.0, False)
    assert info == {"AMAGO_LOG_METRIC Episode 0 Success": 0.0}
    np.testing.assert_array_equal(obs[:3], [0, 0, 1])


def test_in_recover_mode_a_hole_costs_a_tenth_and_the_agent_stays_where_it_was():
    env = lake_like("*F HG", recover_mode=True)
    obs, reward, _, _, info = env.step(ROW_UP)
    assert reward == -0.1
    assert info == {}
    np.testing.assert_array_equal(obs, [0, 0, 0, 0])


def test_the_episode_terminates_after_the_last_attempt_and_then_needs_a_reset():
    env = MetaFrozenLake(size=3, k_episodes=2, max_episode_steps=3)
    env.reset(seed=0)
    ends = [env.step(STAY)[2] for _ in range(6)]
    assert ends == [False] * 5 + [True]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STAY)


@pytest.mark.parametrize(
    ("kwargs", "steps"),
    [
        ({}, 9),
        ({"hard_mode": True}, 18),
        ({"slip_chance": 0.5}, 18),
        ({"slip_chance": 0.15}, 10),
        ({"max_episode_steps": 4}, 4),
    ],
)
def test_the_length_of_an_attempt_follows_from_size_mode_and_slipping(kwargs, steps):
    env = MetaFrozenLake(size=3, k_episodes=1, **kwargs)
    env.reset(seed=1)
    count = 1
    while not env.step(STAY)[2]:
        count += 1
    assert count == steps


def test_lakes_are_distributed_as_those_of_gymnasium():
    env = MetaFrozenLake(size=2)
    counts: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    for seed in range(3000):
        env.reset(seed=seed)
        counts[env.render().replace("*", "S").replace("\n", "")] += 1
        theirs["".join(generate_random_map(2, seed=seed))] += 1
    assert set(counts) == set(theirs) == {"SFFG", "SHFG", "SFHG"}
    for lake in counts:
        assert abs(counts[lake] - theirs[lake]) < 5 * np.sqrt(theirs[lake])


def test_every_lake_has_a_path_and_every_reset_draws_a_new_one():
    env = MetaFrozenLake(size=5)
    env.reset(seed=3)
    lakes = set()
    for _ in range(50):
        env.reset()
        lakes.add(env.render())
    assert len(lakes) > 40


def test_the_same_seed_gives_the_same_episode():
    def episode(seed: int) -> list:
        env = MetaFrozenLake(size=4, k_episodes=3, hard_mode=True, slip_chance=0.3, recover_mode=True)
        steps = [env.reset(seed=seed)[0].tolist()]
        actions = np.random.default_rng(0)
        done = False
        while not done:
            obs, reward, done, _, _ = env.step(actions.integers(5))
            steps.append((obs.tolist(), reward))
        return steps

    assert episode(7) == episode(7)
    assert episode(7) != episode(8)


def test_progress_can_be_hidden():
    env = MetaFrozenLake(size=3, k_episodes=2, max_episode_steps=1, show_k_progress=False)
    env.reset(seed=0)
    env.step(STAY)
    assert env.step(STAY)[0][3] == 0.0


def test_slipping_turns_the_given_share_of_moves_into_staying():
    env = lake_like("*FF FFF FFG", slip_chance=0.3)
    stayed = 0
    for _ in range(2000):
        env.soft_reset()
        stayed += env.step(COLUMN_UP)[0][1] == 0.0
    assert abs(stayed / 2000 - 0.3) < 0.04


def test_hard_mode_swaps_two_actions_in_half_of_the_lakes():
    env = MetaFrozenLake(size=9, hard_mode=True, recover_mode=True)
    swapped = 0
    for seed in range(400):
        env.reset(seed=seed)
        before = env.render().index("*")
        env.step(COLUMN_UP)
        after = env.render().index("*")
        swapped += after - before == 10  # one row further in nine columns and a line break
    # a fifth of the first moves meets a hole and does not happen
    assert 0.3 < swapped / 400 < 0.5


def test_hard_mode_misreads_a_quarter_of_the_positions_by_at_most_one_cell():
    env = MetaFrozenLake(size=9, hard_mode=True, max_episode_steps=10**6)
    env.reset(seed=0)
    readings = np.array([env.step(STAY)[0][:2] * 9 for _ in range(4000)]).round()
    assert readings.min() == 0
    assert readings.max() == 1
    # of the errors in {-1, 0, 1}², clipped at the corner, five in nine show
    assert abs((readings.sum(axis=1) > 0).mean() - 0.25 * 5 / 9) < 0.03


def test_hard_mode_melts_a_third_of_the_cells_left_behind_for_the_attempt_only():
    env = MetaFrozenLake(size=9, hard_mode=True, recover_mode=True, max_episode_steps=10**6)
    env.reset(seed=0)
    melted = moved = 0
    for _ in range(1500):
        env.soft_reset()
        env.step(ROW_UP)
        where = env.render().index("*")
        if where != 0:
            moved += 1
            env.step(COLUMN_DOWN if where == 1 else ROW_DOWN)
            melted += env.render().index("*") == where  # the start is a hole now, so there is no way back
    assert moved == 1500
    assert abs(melted / moved - 1 / 3) < 0.05


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"size": 1}, "size"),
        ({"size": 3, "k_episodes": 0}, "k_episodes"),
        ({"size": 3, "slip_chance": 1.0}, "slip_chance"),
        ({"size": 3, "max_episode_steps": 0}, "max_episode_steps"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(kwargs, named):
    with pytest.raises(ValueError, match=named):
        MetaFrozenLake(**kwargs)


def test_an_unknown_action_is_refused():
    env = MetaFrozenLake(size=3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action"):
        env.step(5)


def test_an_agent_turned_back_onto_a_melted_cell_pays_a_tenth_per_stay():
    env = MetaFrozenLake(size=2, hard_mode=True, recover_mode=True, max_episode_steps=100)
    for seed in range(200):
        env.reset(seed=seed)
        turned_back = env.step(ROW_UP)[1] == -0.1
        stays = [env.step(STAY)[1] for _ in range(3)]
        if turned_back and stays != [0.0] * 3:
            assert stays == [-0.1] * 3
            return
    raise AssertionError("no seed melts the cell under the agent")
