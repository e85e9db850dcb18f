"""MazeRunner: mazes, the order of goals, and hindsight relabelling of its episodes."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs.builtin.mazerunner import (
    MOVES,
    HindsightInstructionReplay,
    MazeRunnerAMAGOEnv,
    MazeRunnerGymEnv,
    RelabelInfoWrapper,
    random_maze,
)
from amago.envs.exploration import EpsilonGreedy
from amago.envs.vector import make_vector_env
from amago.hindsight import FrozenTraj, Trajectory

WEST, NORTH, EAST, SOUTH, STAY = range(5)


def connected_cells(maze: np.ndarray, start: tuple[int, int]) -> int:
    seen, frontier = {start}, [start]
    while frontier:
        row, column = frontier.pop()
        for d_row, d_column in MOVES[:4]:
            cell = (row + d_row, column + d_column)
            if cell not in seen and not maze[cell]:
                seen.add(cell)
                frontier.append(cell)
    return len(seen)


def way_to(env: MazeRunnerGymEnv, goal: tuple[int, int]) -> list[int]:
    """Actions of a shortest way from the agent to `goal`, by breadth-first search."""
    came_from = {env.pos: (env.pos, STAY)}
    frontier = [env.pos]
    for cell in frontier:
        for action, (d_row, d_column) in enumerate(MOVES[:4]):
            neighbour = (cell[0] + d_row, cell[1] + d_column)
            if neighbour not in came_from and not env.maze[neighbour]:
                came_from[neighbour] = (cell, action)
                frontier.append(neighbour)
    actions: list[int] = []
    while goal != env.pos:
        goal, action = came_from[goal]
        actions.insert(0, action)
    return actions


def maze_runner(seed: int = 0, **changes) -> MazeRunnerGymEnv:
    arguments = {"maze_dim": 9, "min_num_goals": 2, "max_num_goals": 2, "time_limit": 200, **changes}
    env = MazeRunnerGymEnv(**arguments)
    env.reset(seed=seed)
    return env


@pytest.mark.parametrize(("width", "height"), [(11, 11), (10, 7), (3, 21)])
def test_mazes_have_odd_sides_a_border_and_connected_free_cells(width, height):
    for seed in range(30):
        maze = random_maze(width, height, rng=np.random.default_rng(seed))
        assert maze.shape == (height // 2 * 2 + 1, width // 2 * 2 + 1)
        assert maze[[0, -1]].all()
        assert maze[:, [0, -1]].all()
        assert connected_cells(maze, (1, 1)) == (maze == 0).sum()


def test_density_is_the_number_of_walls_and_complexity_their_length():
    def walls(**changes):
        return sum(random_maze(21, 21, rng=np.random.default_rng(i), **changes).sum() for i in range(10))

    border = 4 * 20 * 10
    assert walls(density=0.0) == border
    assert border < walls(complexity=0.0) < walls(density=0.1) < walls()


def test_without_a_generator_mazes_differ():
    assert (random_maze(21, 21) != random_maze(21, 21)).any()


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is")
@pytest.mark.parametrize("kwargs", [{}, {"goal_in_obs": False, "randomized_action_space": True}])
def test_it_is_a_valid_gymnasium_environment(kwargs):
    check_env(MazeRunnerGymEnv(9, 1, 3, 20, **kwargs), skip_render_check=True)


@pytest.mark.parametrize("maze_dim", [6, 7, 9, 11, 12, 20])
def test_the_start_lies_in_a_lane_that_leads_to_a_free_row(maze_dim):
    env = maze_runner(maze_dim=maze_dim)
    n = maze_dim // 2 * 2 + 1
    for _ in range(20):
        env.reset()
        assert env.maze.shape == (n, n)
        assert env.pos == env.start == (n - 2, n // 2)
        assert not env.maze[n - 5, 1 : n - 1].any()
        rows = slice(n - 4, n - 1)
        assert env.maze[rows, n // 2 - 1].all()
        assert env.maze[rows, n // 2 + 1].all()
        assert not env.maze[rows, n // 2].any()
        assert connected_cells(env.maze, env.start) == (env.maze == 0).sum()


def test_goals_are_different_free_cells_other_than_the_start_and_their_number_varies():
    env = maze_runner(min_num_goals=1, max_num_goals=4)
    counts = set()
    for _ in range(60):
        env.reset()
        goals = env.goal_positions
        counts.add(len(goals))
        assert len(set(goals)) == len(goals)
        assert all(not env.maze[goal] and goal != env.start for goal in goals)
    assert counts == {1, 2, 3, 4}


def test_actions_move_west_north_east_and_south_and_walls_block():
    env = maze_runner()
    row, column = env.start
    for action in (WEST, EAST, SOUTH, STAY):  # walls on all sides of the lane but the north
        env.step(action)
        assert env.pos == env.start
    for _ in range(3):
        env.step(NORTH)
    assert env.pos == (row - 3, column)
    env.step(WEST)
    assert env.pos == (row - 3, column - 1)
    env.step(EAST)
    env.step(SOUTH)
    assert env.pos == (row - 2, column)
    env.go_back_to_start()
    assert env.pos == env.start


def test_the_observation_has_position_free_cells_time_and_goals_scaled_by_the_side():
    env = maze_runner(min_num_goals=2, max_num_goals=3)
    env.reset(seed=1)
    while len(env.goal_positions) != 2:
        env.reset()
    obs, *_ = env.step(NORTH)
    row, column = env.pos
    assert obs.dtype == np.float32
    assert obs.shape == (13,)
    assert obs in env.observation_space
    np.testing.assert_allclose(obs[:2] * 9, [row, column], rtol=1e-6)
    free = []
    for d_row, d_column in MOVES[:4]:
        steps = 1
        while not env.maze[row + steps * d_row, column + steps * d_column]:
            steps += 1
        free.append(steps - 1)
    np.testing.assert_allclose(obs[2:6] * 9, free, atol=1e-6)
    assert free[0] == free[2] == 0  # in the lane
    np.testing.assert_allclose(obs[6], 1 / 200)
    goals = [(-1, -1), *env.goal_positions]
    np.testing.assert_allclose(obs[7:] * 9, np.reshape(goals, -1), rtol=1e-6)
    assert env.goal_sequence().dtype == np.int32
    assert env.goal_sequence().tolist() == np.reshape(goals, -1).tolist()
    assert env.goal_sequence(flatten=False).tolist() == [list(goal) for goal in goals]


def test_goals_are_reached_in_order_and_the_last_one_ends_the_episode():
    env = maze_runner(seed=3)
    first, second = env.goal_positions
    for action in way_to(env, second)[:-1]:
        assert env.step(action)[1] == 0.0
    # Passing the second goal gives nothing before the first is reached.
    for i, goal in enumerate((first, second)):
        actions = way_to(env, goal)
        for action in actions[:-1]:
            assert env.step(action)[1] == 0.0
        obs, reward, terminated, truncated, info = env.step(actions[-1])
        assert (reward, info, truncated) == (1.0, {"success": True}, False)
        assert (env.active_goal_idx, terminated) == (i + 1, i == 1)
        np.testing.assert_allclose(obs[7 : 9 + 2 * i], -1 / 9)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STAY)


def test_standing_on_the_active_goal_reaches_it():
    env = maze_runner()
    env.pos = env.goal_positions[0]
    _, reward, _, _, info = env.step(STAY)
    assert reward == 1.0
    assert info["success"]
    assert env.step(STAY)[1] == 0.0


def test_the_time_limit_terminates_and_truncates():
    env = maze_runner(time_limit=3)
    results = [env.step(STAY) for _ in range(3)]
    assert [result[2:4] for result in results] == [(False, False)] * 2 + [(True, True)]
    np.testing.assert_allclose([result[0][6] for result in results], [1 / 3, 2 / 3, 1])
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STAY)


def test_shuffled_actions_stay_the_same_within_an_episode_and_change_between_episodes():
    env = maze_runner(maze_dim=15, max_num_goals=9, min_num_goals=9, randomized_action_space=True)
    orders = set()
    for _ in range(40):
        env.reset()
        effects = []
        for action in range(5):
            env.pos = (12, 3)  # beside the lane, where every neighbour is free
            env.step(action)
            effects.append((env.pos[0] - 12, env.pos[1] - 3))
        assert sorted(effects) == sorted(MOVES)
        orders.add(tuple(effects))
    assert len(orders) > 25


def test_seeds_fix_maze_goals_and_actions_and_without_a_seed_they_are_fresh():
    def task(env, seed):
        env.reset(seed=seed)
        return env.maze.tobytes(), tuple(env.goal_positions), tuple(env._moves)

    one, other = (MazeRunnerGymEnv(11, 3, 3, 50, randomized_action_space=True) for _ in range(2))
    assert task(one, 5) == task(other, 5)
    assert task(one, None) == task(other, None)  # both continue the stream of seed 5
    assert len({task(one, seed) for seed in range(5)} | {task(one, None) for _ in range(5)}) == 10
    assert task(MazeRunnerGymEnv(11, 3, 3, 50), None) != task(MazeRunnerGymEnv(11, 3, 3, 50), None)


def test_render_returns_an_image_of_maze_goals_and_agent():
    env = maze_runner(render_mode="rgb_array")
    image = env.render()
    assert image.shape == (9, 9, 3)
    assert image.dtype == np.uint8
    assert image[env.pos].tolist() == [220, 0, 0]
    assert image[env.goal_positions[0]].tolist() == [0, 200, 0]
    assert image[env.goal_positions[1]].tolist() == [230, 200, 0]
    assert not image[env.maze == 1].any()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"maze_dim": 5}, "maze_dim"),
        ({"min_num_goals": 0}, "min_num_goals"),
        ({"max_num_goals": 1}, "max_num_goals must be at least 2"),
        ({"max_num_goals": 80}, "larger maze_dim"),
        ({"time_limit": 0}, "time_limit"),
        ({"render_mode": "ansi"}, "render_mode"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        maze_runner(**changes)


def test_an_unknown_action_and_a_step_before_reset_are_refused():
    with pytest.raises(ValueError, match="from 0 to 4, got 5"):
        maze_runner().step(5)
    with pytest.raises(RuntimeError, match="reset"):
        MazeRunnerGymEnv(9, 1, 1, 10).step(0)


def test_the_relabel_wrapper_adds_the_cells_of_agent_and_goals():
    env = RelabelInfoWrapper(maze_runner())
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    goals = env.unwrapped.goal_positions
    assert obs["achieved"].tolist() == [list(env.unwrapped.start)]
    assert obs["goals"].tolist() == [list(goal) for goal in goals]
    for action in way_to(env.unwrapped, goals[0]):
        obs, *_ = env.step(action)
    assert obs in env.observation_space
    assert obs["achieved"].tolist() == [list(goals[0])]
    assert obs["goals"].tolist() == [[-1, -1], list(goals[1])]


def test_the_relabel_wrapper_refuses_other_environments():
    with pytest.raises(TypeError, match="MazeRunnerGymEnv"):
        RelabelInfoWrapper(RelabelInfoWrapper(maze_runner()))


def test_the_amago_env_has_the_three_keys_and_is_named_after_its_arguments():
    env = MazeRunnerAMAGOEnv(maze_dim=10, num_goals=3, time_limit=25, randomized_action_space=False)
    assert env.env_name == "MazeRunner-10x10-k3"
    shapes = {key: (space.shape, space.dtype) for key, space in env.observation_space.spaces.items()}
    assert shapes == {"achieved": ((1, 2), np.int32), "goals": ((3, 2), np.int32), "obs": ((7,), np.float32)}
    timestep, _ = env.reset(seed=0)
    assert timestep.obs["goals"].dtype == np.int32
    for _ in range(25):
        timestep, _, terminated, truncated, _ = env.step(np.array([[STAY]]))
    assert terminated[0]
    assert truncated[0]


def test_it_runs_in_a_vector_environment_that_resets_it():
    envs = make_vector_env(
        [lambda: MazeRunnerAMAGOEnv(9, 2, 10, True)] * 2,
        env_mode="sync",
        exploration_wrapper_type=EpsilonGreedy,
        seed=0,
    )
    assert envs.reset().obs["goals"].shape == (2, 2, 2)
    ended = [envs.step(np.full((2, 1), STAY)).done_rows.tolist() for _ in range(20)]
    assert ended[9] == ended[19] == [0, 1]
    assert envs.env_names == ["MazeRunner-9x9-k2"] * 2
    envs.close()


# Hindsight relabelling.


def stored_episode(cells, goals, actions=None) -> FrozenTraj:
    """The trajectory of an agent that visited `cells` with the list `goals`, as MazeRunnerAMAGOEnv stores it."""
    left, rows, rews = list(goals), [], []
    for i, cell in enumerate(cells):
        met = i > 0 and bool(left) and cell == left[0]
        if met:
            left.pop(0)
        rews.append(float(met))
        rows.append([(-1, -1)] * (len(goals) - len(left)) + left)
    length = len(cells) - 1
    actions = np.eye(5, dtype=np.float32)[np.arange(length) % 5]
    rewards = np.array(rews[1:], np.float32).reshape(-1, 1)
    rl2s = np.concatenate((np.zeros((1, 6), np.float32), np.concatenate((rewards, actions), axis=1)))
    return FrozenTraj(
        obs={
            "obs": np.arange(7 * len(cells), dtype=np.float32).reshape(-1, 7),
            "achieved": np.array(cells, np.int32).reshape(-1, 1, 2),
            "goals": np.array(rows, np.int32),
        },
        rl2s=rl2s,
        time_idxs=np.arange(length + 1).reshape(-1, 1),
        rews=rewards,
        dones=np.arange(length).reshape(-1, 1) == length - 1,
        actions=actions,
    )


def check_is_an_episode_of(traj: FrozenTraj, cells, goals) -> None:
    """Asserts that `traj` is what the environment would have stored for `cells` with the list `goals`."""
    traj.validate()
    cells = cells[: len(traj) + 1]
    expected = stored_episode(cells, goals)
    np.testing.assert_array_equal(traj.obs["goals"], expected.obs["goals"])
    for name in ("rews", "dones", "rl2s", "time_idxs", "actions"):
        np.testing.assert_array_equal(getattr(traj, name), getattr(expected, name))


CELLS = [(5, 5), (4, 5), (3, 5), (3, 6), (3, 7), (3, 7), (3, 8)]
FAR = [(1, 1), (1, 2), (1, 3)]


def test_strategy_none_only_drops_the_achieved_cells():
    before = stored_episode(CELLS, [(3, 5), *FAR[:2]])
    traj = HindsightInstructionReplay(3, "none")(stored_episode(CELLS, [(3, 5), *FAR[:2]]))
    assert sorted(traj.obs) == ["goals", "obs"]
    for name in ("rews", "dones", "rl2s", "time_idxs", "actions"):
        np.testing.assert_array_equal(getattr(traj, name), getattr(before, name))
    np.testing.assert_array_equal(traj.obs["goals"], before.obs["goals"])


def test_strategy_all_makes_every_episode_a_success():
    lengths = set()
    for seed in range(60):
        relabel = HindsightInstructionReplay(3, "all", rng=np.random.default_rng(seed))
        traj = relabel(stored_episode(CELLS, FAR))
        assert traj.rews.sum() == 3
        assert traj.dones[-1]
        assert traj.dones.sum() == 1
        new_goals = [tuple(goal) for goal in traj.obs["goals"][0].tolist()]
        check_is_an_episode_of(traj, CELLS, new_goals)
        assert (traj.obs["goals"][-1] == -1).all()
        lengths.add(len(traj))
    assert lengths == {3, 4, 5, 6}


def test_the_goals_that_were_reached_stay_in_the_list_in_their_order():
    for seed in range(40):
        relabel = HindsightInstructionReplay(3, "all", rng=np.random.default_rng(seed))
        traj = relabel(stored_episode(CELLS, [(3, 5), *FAR[:2]]))
        new_goals = [tuple(goal) for goal in traj.obs["goals"][0].tolist()]
        assert (3, 5) in new_goals
        check_is_an_episode_of(traj, CELLS, new_goals)
        assert traj.rews.sum() == 3


def test_strategy_some_draws_how_many_goals_are_replaced_and_keeps_the_rest_behind_them():
    replaced = []
    for seed in range(200):
        relabel = HindsightInstructionReplay(3, "some", rng=np.random.default_rng(seed))
        traj = relabel(stored_episode(CELLS, FAR))
        new_goals = [tuple(goal) for goal in traj.obs["goals"][0].tolist()]
        kept = [goal for goal in new_goals if goal in FAR]
        assert kept == FAR[: len(kept)]
        assert new_goals[3 - len(kept) :] == kept
        replaced.append(3 - len(kept))
        assert traj.rews.sum() == replaced[-1]
        assert traj.dones.sum() == 1
        assert traj.dones[-1]
        if replaced[-1] < 3:
            assert len(traj) == len(CELLS) - 1
    counts = np.bincount(replaced, minlength=4)
    assert counts.min() > 25  # uniform over 0 to 3


def test_a_goal_where_the_episode_started_is_not_reached_before_the_first_step():
    cells = [(5, 5), (5, 5), (4, 5)]
    for seed in range(20):
        relabel = HindsightInstructionReplay(1, "all", rng=np.random.default_rng(seed))
        traj = relabel(stored_episode(cells, [(1, 1)]))
        goal = tuple(traj.obs["goals"][0, 0].tolist())
        assert len(traj) == {(5, 5): 1, (4, 5): 2}[goal]
        check_is_an_episode_of(traj, cells, [goal])


def test_the_moment_at_which_a_goal_was_reached_is_no_alternative():
    cells = [(5, 5), (4, 5), (3, 5)]
    for seed in range(20):
        relabel = HindsightInstructionReplay(2, "all", rng=np.random.default_rng(seed))
        traj = relabel(stored_episode(cells, [(4, 5), (1, 1)]))
        assert traj.obs["goals"][0].tolist() == [[4, 5], [3, 5]]


def test_an_episode_shorter_than_the_list_takes_all_its_cells():
    cells = [(5, 5), (4, 5), (3, 5)]
    traj = HindsightInstructionReplay(3, "all")(stored_episode(cells, FAR))
    assert traj.obs["goals"][0].tolist() == [[4, 5], [3, 5], [1, 1]]
    assert traj.rews[:, 0].tolist() == [1.0, 1.0]
    assert traj.dones[:, 0].tolist() == [False, True]  # as it was stored: the time limit


def test_a_success_is_left_unchanged():
    goals = [(4, 5), (3, 5), (3, 8)]
    traj = HindsightInstructionReplay(3, "all")(stored_episode(CELLS, goals))
    check_is_an_episode_of(traj, CELLS, goals)
    assert len(traj) == len(CELLS) - 1


def test_a_later_piece_of_an_episode_keeps_the_goals_that_are_behind_it():
    whole = stored_episode(CELLS, [(4, 5), *FAR[:2]])
    piece = FrozenTraj(
        obs={key: array[2:].copy() for key, array in whole.obs.items()},
        rl2s=whole.rl2s[2:].copy(),
        time_idxs=whole.time_idxs[2:].copy(),
        rews=whole.rews[2:].copy(),
        dones=whole.dones[2:].copy(),
        actions=whole.actions[2:].copy(),
    )
    traj = HindsightInstructionReplay(3, "all")(piece)
    traj.validate()
    assert (traj.obs["goals"][:, 0] == -1).all()
    assert traj.rews.sum() == 2
    assert traj.dones[-1]


def test_real_episodes_are_relabelled_to_what_the_environment_would_have_stored():
    env = MazeRunnerAMAGOEnv(9, num_goals=3, time_limit=60, randomized_action_space=False)
    rng = np.random.default_rng(0)
    for seed in range(15):
        timestep, _ = env.reset(seed=seed)
        steps, done = [timestep], False
        while not done:
            timestep, _, terminated, truncated, _ = env.step(rng.integers(5, size=(1, 1)))
            steps.append(timestep)
            done = bool(terminated[0] or truncated[0])
        stored = Trajectory(steps).freeze()
        cells = [tuple(cell) for cell in stored.obs["achieved"][:, 0].tolist()]
        traj = HindsightInstructionReplay(3, "all", rng=rng)(stored)
        traj.validate()
        goals = [tuple(goal) for goal in traj.obs["goals"][0].tolist()]
        expected = stored_episode(cells[: len(traj) + 1], goals)
        np.testing.assert_array_equal(traj.obs["goals"], expected.obs["goals"])
        np.testing.assert_array_equal(traj.rews, expected.rews)
        np.testing.assert_array_equal(traj.rl2s[:, 0], expected.rl2s[:, 0])
        assert traj.rews.sum() == 3
        assert traj.dones[-1]


def test_wrong_arguments_and_trajectories_are_named():
    with pytest.raises(ValueError, match="strategy must be one of 'none', 'some', 'all', got 'most'"):
        HindsightInstructionReplay(3, "most")
    with pytest.raises(ValueError, match="num_goals"):
        HindsightInstructionReplay(0)
    with pytest.raises(ValueError, match=r"shape \(3, 2\), expected \(4, 2\)"):
        HindsightInstructionReplay(4)(stored_episode(CELLS, FAR))
