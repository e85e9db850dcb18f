"""MazeRunner: visit a list of goals in a random maze, in the given order (Grigsby et al. 2024, "AMAGO").

`MazeRunnerAMAGOEnv` is the environment as agents see it; `HindsightInstructionReplay` relabels its episodes. No
package is needed but matplotlib, to show a window. Cells are pairs (row, column).
"""

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import NonNegative, Size, check_arguments, check_value
from amago.envs.builtin.mazerunner_relabeling import REACHED, HindsightInstructionReplay
from amago.envs.builtin.optional import optional_import

__all__ = [
    "HindsightInstructionReplay",
    "MazeRunnerAMAGOEnv",
    "MazeRunnerGymEnv",
    "RelabelInfoWrapper",
    "random_maze",
]

Cell = tuple[int, int]
WEST, NORTH, EAST, SOUTH, STAY = MOVES = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))
SMALLEST_MAZE = 7  # the area around the start takes four rows and five columns


def random_maze(
    width: int = 11,
    height: int = 11,
    complexity: float = 0.75,
    density: float = 0.75,
    rng: np.random.Generator | None = None,
) -> npt.NDArray[np.int64]:
    """A random maze, (rows, columns) int64, 1 for walls; its free cells are connected.

    Walls grow from random points whose coordinates are even, in steps of two cells and never into another wall.

    Args:
        width, height: sides, at least 3; an even side is made odd by adding 1.
        complexity: length of the walls: each tries to grow `int(complexity * 5 * (height + width))` times.
        density: number of walls, `int(density * (height // 2) * (width // 2))`.
        rng: generator; None uses fresh entropy.

    Raises:
        ValueError: if a side is less than 3, or `complexity` or `density` is negative.
    """
    for name, side in (("width", width), ("height", height)):
        check_value("generate_maze", name, side, Annotated[Size, Ge(3)])
    for name, value in (("complexity", complexity), ("density", density)):
        check_value("generate_maze", name, value, NonNegative)
    width, height = width // 2 * 2 + 1, height // 2 * 2 + 1
    rng = np.random.default_rng() if rng is None else rng
    maze = np.zeros((height, width), np.int64)
    maze[[0, -1]] = maze[:, [0, -1]] = 1
    walls = maze.tolist()
    tries = int(complexity * 5 * (height + width))
    for _ in range(int(density * (height // 2) * (width // 2))):
        row = 2 * int(rng.integers(height // 2 + 1))
        column = 2 * int(rng.integers(width // 2 + 1))
        walls[row][column] = 1
        for chance in rng.random(tries).tolist():
            neighbours = [
                (row + 2 * d_row, column + 2 * d_column)
                for d_row, d_column in MOVES[:4]
                if 0 <= row + 2 * d_row < height and 0 <= column + 2 * d_column < width
            ]
            if all(walls[i][j] for i, j in neighbours):
                break  # later tries cannot grow either
            i, j = neighbours[int(chance * len(neighbours))]
            if not walls[i][j]:
                walls[i][j] = walls[(row + i) // 2][(column + j) // 2] = 1
                row, column = i, j
    return np.array(walls, np.int64)


class MazeRunnerGymEnv(gym.Env[npt.NDArray[np.float32], int]):
    """Visits goals in order; each reset draws a new maze and new goals. Needs no third-party package.

    Observation, float32 (7,): row / n, column / n, number of free cells to the west, north, east and south, each
    / n, and steps / time_limit, where n is the side. With `goal_in_obs`, `2 * max_num_goals` more numbers: row / n
    and column / n of the goals in order. Goals already reached are (-1, -1) / n; a shorter list is filled with
    those at its front. Actions: 0 to 4 move west, north, east, south or stay; walls block. Reward 1 for reaching
    the active goal, the first that is left; standing on it counts. The episode terminates with the last goal, and
    is both terminated and truncated after `time_limit` steps. `info["success"]` tells whether this step reached a
    goal. No metrics: the return counts the goals.

    Args:
        maze_dim: side of the maze, at least 6; an even side is made odd by adding 1.
        min_num_goals, max_num_goals: the number of goals is drawn from this range, bounds included.
        time_limit: maximum number of steps.
        goal_in_obs: append the goals to the observation.
        randomized_action_space: shuffle the meaning of the actions in every episode.
        render_mode: "rgb_array" makes `render` return an image; None and "human" show it in a window.

    Attributes:
        pos, start: cells of the agent and of its start.
        maze: (n, n) int64, 1 for walls.
        goal_positions: cells of the episode's goals; `active_goal_idx` is the index of the active one.

    Raises:
        ValueError: if a number is out of range, or the smallest mazes have fewer cells than `max_num_goals`.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        maze_dim: Annotated[Size, Ge(SMALLEST_MAZE - 1)],
        min_num_goals: Size,
        max_num_goals: Size,
        time_limit: Size,
        goal_in_obs: bool = True,
        randomized_action_space: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.maze_dim = maze_dim // 2 * 2 + 1
        self.min_num_goals = min_num_goals
        if max_num_goals < min_num_goals:
            raise ValueError(
                f"max_num_goals must be at least {min_num_goals}, which is min_num_goals, got {max_num_goals}"
            )
        self.max_num_goals = max_num_goals
        self.time_limit = time_limit
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f'render_mode must be None, "human" or "rgb_array", got {render_mode!r}')
        self.goal_in_obs = goal_in_obs
        self.randomized_action_space = randomized_action_space
        self.render_mode = render_mode
        self.start: Cell = (self.maze_dim - 2, self.maze_dim // 2)
        fewest = self._fewest_goal_cells()
        if self.max_num_goals > fewest:
            raise ValueError(
                f"max_num_goals is {max_num_goals}, but a maze of side {self.maze_dim} may have only {fewest} "
                "free cells besides the start: use a larger maze_dim"
            )
        size = 7 + 2 * self.max_num_goals * bool(goal_in_obs)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))  # type: ignore[assignment]
        self.active_goal_idx = 0
        self.goal_positions: list[Cell] = []
        self._running = False

    def _fewest_goal_cells(self) -> int:
        """Free cells, the start not counted, of a maze with every wall that can grow."""
        maze = np.ones((self.maze_dim, self.maze_dim), np.int64)
        maze[1::2, 1::2] = 0
        self._clear_start(maze)
        return int((maze == 0).sum()) - 1

    def _clear_start(self, maze: npt.NDArray[np.int64]) -> None:
        """Frees the last four rows, and walls in the lane that leads from the start to the first of them."""
        n = self.maze_dim
        maze[n - 5 : n - 1, 1 : n - 1] = 0
        maze[n - 4 : n - 1, [n // 2 - 1, n // 2 + 1]] = 1

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Draws a maze, goals, and the meaning of the actions. A seed fixes this and all later draws."""
        super().reset(seed=seed)
        rng = self.np_random
        self.maze = random_maze(self.maze_dim, self.maze_dim, rng=rng)
        self._clear_start(self.maze)
        self._walls: list[list[int]] = self.maze.tolist()
        free = np.argwhere(self.maze == 0)
        free = free[(free != self.start).any(axis=1)]
        count = rng.integers(self.min_num_goals, self.max_num_goals, endpoint=True)
        goals = free[rng.choice(len(free), count, replace=False)].tolist()
        self.goal_positions = [(row, column) for row, column in goals]
        order = rng.permutation(len(MOVES)).tolist() if self.randomized_action_space else range(len(MOVES))
        self._moves = [MOVES[i] for i in order]
        self.active_goal_idx = 0
        self._timer = 0
        self._running = True
        self.go_back_to_start()
        self._update_goals()
        return self._observe(), {}

    def go_back_to_start(self) -> None:
        """Puts the agent back at the start."""
        self.pos = self.start

    def goal_sequence(self, flatten: bool = True) -> npt.NDArray[np.int32]:
        """The goals in order, -1 where reached: (2 * max_num_goals,), or (max_num_goals, 2) without `flatten`."""
        goals: npt.NDArray[np.int32] = self._goals.copy()
        return goals.reshape(-1) if flatten else goals

    def _update_goals(self) -> None:
        left = self.goal_positions[self.active_goal_idx :]
        self._goals = np.array([REACHED] * (self.max_num_goals - len(left)) + left, np.int32)
        self._goal_numbers = (self._goals.reshape(-1) / self.maze_dim).tolist() if self.goal_in_obs else []

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Moves, and reaches at most one goal."""
        if not self._running:
            raise RuntimeError("MazeRunnerGymEnv.step needs a running episode: call reset() first")
        if not 0 <= action < len(MOVES):
            raise ValueError(f"action must be from 0 to {len(MOVES) - 1}, got {action}")
        d_row, d_column = self._moves[int(action)]
        row, column = self.pos[0] + d_row, self.pos[1] + d_column
        if not self._walls[row][column]:
            self.pos = (row, column)
        self._timer += 1
        success = self.pos == self.goal_positions[self.active_goal_idx]
        if success:
            self.active_goal_idx += 1
            self._update_goals()
        truncated = self._timer >= self.time_limit
        terminated = truncated or self.active_goal_idx == len(self.goal_positions)
        self._running = not terminated
        return self._observe(), float(success), terminated, truncated, {"success": success}

    def _observe(self) -> npt.NDArray[np.float32]:
        n = self.maze_dim
        row, column = self.pos
        values = [row / n, column / n]
        for d_row, d_column in MOVES[:4]:
            i, j, free = row + d_row, column + d_column, 0
            while not self._walls[i][j]:
                i, j, free = i + d_row, j + d_column, free + 1
            values.append(free / n)
        values.append(self._timer / self.time_limit)
        return np.array(values + self._goal_numbers, np.float32)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """An image (n, n, 3) uint8, returned or shown: agent red, active goal green, later goals yellow."""
        image = np.where(self.maze[..., None] == 1, np.uint8(0), np.uint8(255)).repeat(3, axis=2)
        for index in range(len(self.goal_positions) - 1, self.active_goal_idx - 1, -1):
            image[self.goal_positions[index]] = (
                (0, 200, 0) if index == self.active_goal_idx else (230, 200, 0)
            )
        image[self.pos] = (220, 0, 0)
        if self.render_mode == "rgb_array":
            return image
        pyplot = optional_import("matplotlib.pyplot", install="pip install matplotlib")
        pyplot.figure("MazeRunner").clear()
        pyplot.imshow(image)
        pyplot.pause(0.01)
        return None


class RelabelInfoWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Observations of a MazeRunnerGymEnv with what hindsight relabelling needs.

    Observation, a Dict: "obs", the array of the environment; "achieved" (1, 2) int32, the cell of the agent;
    "goals" (max_num_goals, 2) int32, the goals in order, -1 where reached. Cells are not scaled.

    Raises:
        TypeError: if `env` is not a MazeRunnerGymEnv.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not isinstance(env, MazeRunnerGymEnv):
            raise TypeError(f"env must be a MazeRunnerGymEnv, got {type(env).__name__}")
        super().__init__(env)
        self.maze_env = env
        n = env.maze_dim
        self.observation_space = gym.spaces.Dict(
            {
                "obs": env.observation_space,
                "achieved": gym.spaces.Box(0, n, (1, 2), np.int32),
                "goals": gym.spaces.Box(-1, n, (env.max_num_goals, 2), np.int32),
            }
        )

    def reset(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Resets the environment; arguments are those of its own `reset`."""
        obs, info = self.env.reset(*args, **kwargs)
        return self._add_cells(obs), info

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.maze_env.step(action)
        return self._add_cells(obs), reward, terminated, truncated, info

    def _add_cells(self, obs: npt.NDArray[np.float32]) -> dict[str, Any]:
        achieved = np.array([self.maze_env.pos], np.int32)
        return {"obs": obs, "achieved": achieved, "goals": self.maze_env.goal_sequence(flatten=False)}


class MazeRunnerAMAGOEnv(AMAGOEnv):
    """MazeRunner with `num_goals` goals for agents whose episodes are relabelled: see `RelabelInfoWrapper`.

    Args:
        maze_dim, time_limit, randomized_action_space: as MazeRunnerGymEnv.
        num_goals: k.
    """

    @check_arguments
    def __init__(
        self,
        maze_dim: Annotated[Size, Ge(SMALLEST_MAZE - 1)],
        num_goals: Size,
        time_limit: Size,
        randomized_action_space: bool,
    ) -> None:
        env = MazeRunnerGymEnv(
            maze_dim,
            min_num_goals=num_goals,
            max_num_goals=num_goals,
            time_limit=time_limit,
            goal_in_obs=False,
            randomized_action_space=randomized_action_space,
        )
        super().__init__(RelabelInfoWrapper(env), f"MazeRunner-{maze_dim}x{maze_dim}-k{num_goals}")
