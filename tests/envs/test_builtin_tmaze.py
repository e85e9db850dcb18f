"""T-Mazes: what is seen where, how long an episode lasts, and what it pays."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs.builtin.tmaze import TMazeAlt, TMazeAltActive, TMazeAltPassive

FORWARD, UP, BACK, DOWN = range(4)


def run(
    env, actions, seed: int = 0
) -> tuple[list[tuple[float, float]], list[float], list[tuple[bool, bool]]]:
    """Observations (the first one included), rewards and ends of the episode."""
    observations, rewards, ends = [tuple(env.reset(seed=seed)[0].tolist())], [], []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        observations.append(tuple(obs.tolist()))
        rewards.append(reward)
        ends.append((terminated, truncated))
    return observations, rewards, ends


@pytest.mark.parametrize(
    "env",
    [
        TMazeAltPassive(corridor_length=5),
        TMazeAltActive(corridor_length=5),
        TMazeAlt(),
        TMazeAlt(oracle_length=2, expose_goal=True, add_timestep=True),
        TMazeAlt(ambiguous_position=True, add_timestep=True),
    ],
)
def test_it_is_a_valid_gymnasium_environment(env):
    check_env(env, skip_render_check=True)


def test_the_passive_maze_starts_on_the_oracle_which_shows_the_side_once():
    observations, _, _ = run(TMazeAltPassive(corridor_length=4), [BACK, FORWARD, BACK, FORWARD])
    assert observations[0] in ((0, 1), (0, -1))
    assert observations[1:] == [(0, 0)] * 4


def test_the_active_maze_shows_the_side_when_the_oracle_is_first_visited():
    observations, _, _ = run(TMazeAltActive(corridor_length=4), [BACK, BACK, FORWARD, BACK])
    assert observations[0] == (0, 0)
    assert observations[1] in ((0, 1), (0, -1))
    assert observations[2:] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("maze", "approach"),
    [(TMazeAltPassive, [FORWARD] * 4), (TMazeAltActive, [BACK] + [FORWARD] * 5)],
)
def test_there_are_just_enough_steps_to_read_the_oracle_and_turn_to_the_goal(maze, approach):
    for seed in range(4):
        env = maze(corridor_length=4, goal_reward=2.0, penalty=-0.5)
        observations, _, _ = run(env, approach, seed)
        side = sum(int(y) for x, y in observations if x == 0)
        observations, rewards, ends = run(env, [*approach, UP if side == 1 else DOWN], seed)
        assert observations[-2:] == [(1, 0), (1, side)]
        assert rewards == [0.0] * len(approach) + [2.0]
        assert ends == [(False, False)] * len(approach) + [(True, True)]


def test_the_wrong_side_pays_nothing_and_is_no_success():
    env = TMazeAltPassive(corridor_length=2)
    side = env.reset(seed=0)[0][1]
    env.step(FORWARD)
    env.step(FORWARD)
    _, reward, *_, info = env.step(DOWN if side == 1 else UP)
    assert reward == 0.0
    assert info == {"AMAGO_LOG_METRIC Success": 0.0}


def test_both_sides_are_equally_likely():
    env = TMazeAltPassive(corridor_length=1)
    env.reset(seed=0)
    sides = [env.reset()[0][1] for _ in range(1000)]
    assert abs(np.mean(sides)) < 0.1


def test_each_step_that_is_not_forward_is_penalised_but_the_last():
    _, rewards, _ = run(
        TMazeAltPassive(corridor_length=4, penalty=-0.25), [BACK, FORWARD, UP, FORWARD, FORWARD]
    )
    assert rewards == [-0.25, 0.0, -0.25, 0.0, 0.0]


def test_the_first_step_of_the_active_maze_is_never_penalised():
    _, rewards, _ = run(TMazeAltActive(corridor_length=4, penalty=-0.25), [BACK, BACK, FORWARD, UP])
    assert rewards == [0.0, -0.25, 0.0, -0.25]


def test_impossible_moves_do_nothing():
    env = TMazeAltPassive(corridor_length=1)
    assert run(env, [UP])[0][1] == (0, 0)  # a wall beside the oracle
    assert run(env, [FORWARD, FORWARD])[0][1:] == [(1, 0), (1, 0)]  # a wall behind the junction


def test_from_a_side_of_the_junction_only_the_way_back_is_open():
    env = TMazeAltActive(corridor_length=1)
    observations, _, _ = run(env, [FORWARD, UP, BACK, DOWN])
    assert observations[1:] == [(1, 0), (1, 1), (1, 1), (1, 0)]


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"corridor_length": 0}, "corridor_length"),
        ({"corridor_length": 3, "penalty": 0.1}, "penalty"),
        ({"corridor_length": 3, "distract_reward": 0.1}, "distract_reward"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(kwargs, named):
    with pytest.raises(ValueError, match=named):
        TMazeAltPassive(**kwargs)


def test_a_step_after_the_end_needs_a_reset():
    env = TMazeAltPassive(corridor_length=1)
    run(env, [FORWARD, UP])
    with pytest.raises(RuntimeError, match="reset"):
        env.step(FORWARD)


def test_the_base_shows_the_position_and_once_the_side():
    observations, rewards, ends = run(
        TMazeAlt(episode_length=6, corridor_length=2, oracle_length=1),
        [BACK, FORWARD, BACK, FORWARD, FORWARD],
    )
    side = observations[1][2]
    assert side in (-1, 1)
    assert observations == [(1, 0, 0), (0, 0, side), (1, 0, 0), (0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert (rewards, ends[-1]) == ([0.0] * 5, (False, False))


def test_the_base_lasts_as_long_as_it_is_told_whatever_the_corridor():
    env = TMazeAlt(episode_length=3, corridor_length=10, goal_reward=5.0)
    _, rewards, ends = run(env, [FORWARD] * 3)
    assert (rewards, ends) == ([0.0] * 3, [(False, False)] * 2 + [(True, True)])


def test_an_exposed_goal_is_seen_in_every_step_after_the_oracle():
    env = TMazeAlt(episode_length=6, corridor_length=2, oracle_length=1, expose_goal=True)
    observations, _, _ = run(env, [FORWARD, BACK, BACK, FORWARD, FORWARD])
    side = observations[3][2]
    assert side in (-1, 1)
    assert [exposure for _, _, exposure in observations] == [0, 0, 0, side, side, side]


@pytest.mark.parametrize("ambiguous", [False, True])
def test_the_number_of_the_step_can_be_appended(ambiguous):
    env = TMazeAlt(episode_length=4, ambiguous_position=ambiguous, add_timestep=True)
    observations, _, _ = run(env, [FORWARD] * 4)
    assert [observation[-1] for observation in observations] == [0, 1, 2, 3, 4]
    assert all(len(observation) == (3 if ambiguous else 4) for observation in observations)


def test_steps_to_the_oracle_are_not_penalised():
    env = TMazeAlt(episode_length=5, corridor_length=1, oracle_length=2, penalty=-1.0)
    assert run(env, [BACK, BACK, BACK, FORWARD, FORWARD])[1] == [0.0, 0.0, -1.0, 0.0, 0.0]


def test_the_goal_is_exposed_only_with_positions():
    with pytest.raises(ValueError, match="expose_goal"):
        TMazeAlt(ambiguous_position=True, expose_goal=True)
