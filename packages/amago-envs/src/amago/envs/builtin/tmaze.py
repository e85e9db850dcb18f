"""T-Mazes after Ni et al. 2023, "When Do Transformers Shine in RL? Decoupling Memory from Credit Assignment".

A corridor with a T at its end. An oracle cell at the other end shows once on which side the goal is, so the last
action needs a memory as long as the corridor. The passive maze starts on the oracle and tests memory alone; in the
active one the agent must first step back to the oracle, which also tests credit assignment.
"""

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Le

from amago.envs.arguments import Count, Size, check_arguments
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

FORWARD = 0
# +x, +y, -x, -y
MOVES = ((1, 0), (0, 1), (-1, 0), (0, -1))
SUCCESS_KEY = f"{AMAGO_ENV_LOG_PREFIX} Success"


class TMazeAlt(gym.Env[npt.NDArray[np.float32], int]):
    """A T-Maze with any length of corridor and episode; base of the two mazes below.

    Observation, float32 (3,): (x, y, exposure), where x counts cells from the oracle, y is -1, 0 or 1, and
    exposure is the side of the goal, -1 or 1, on the first visit to the oracle, else 0. Actions, Discrete(4): +x,
    +y, -x, -y; an impossible move does nothing. Reward: `penalty` for a step that is not +x, except in the first
    `oracle_length` steps; in the last step instead `goal_reward` if the agent is on the side of the goal. The
    episode ends after `episode_length` steps, both terminated and truncated, with the metric "Success" in `info`.

    Args:
        episode_length: steps of an episode, at least 1.
        corridor_length: cells from the start to the junction, at least 1.
        oracle_length: cells from the oracle to the start, at least 0.
        goal_reward: reward of ending on the goal's side.
        penalty: added for a step that is not +x; at most 0.
        distract_reward: kept for compatibility; must be 0.
        ambiguous_position: observe (0, exposure) at the oracle, (0, 0) in the corridor and (1, y) at the junction
            and beyond, so that the cells of the corridor look alike.
        expose_goal: observe the side in every step from the first visit to the oracle on, for policies without
            memory. Not together with `ambiguous_position`.
        add_timestep: append the number of the step to the observation.

    Raises:
        ValueError: for an argument out of its range.
    """

    @check_arguments
    def __init__(
        self,
        episode_length: Size = 11,
        corridor_length: Size = 10,
        oracle_length: Count = 0,
        goal_reward: float = 1.0,
        penalty: Annotated[float, Le(0)] = 0.0,
        distract_reward: float = 0.0,
        ambiguous_position: bool = False,
        expose_goal: bool = False,
        add_timestep: bool = False,
    ) -> None:
        self.episode_length = episode_length
        self.corridor_length = corridor_length
        self.oracle_length = oracle_length
        if distract_reward != 0.0:
            raise ValueError(f"distract_reward must be 0 in this maze, got {distract_reward}")
        if ambiguous_position and expose_goal:
            raise ValueError("expose_goal=True needs observed positions: give ambiguous_position=False")
        self.goal_reward = goal_reward
        self.penalty = penalty
        self.ambiguous_position = ambiguous_position
        self.expose_goal = expose_goal
        self.add_timestep = add_timestep
        self.junction_x = self.oracle_length + self.corridor_length
        low = [-1.0, -1.0] if ambiguous_position else [0.0, -1.0, -1.0]
        high = [1.0, 1.0] if ambiguous_position else [self.junction_x, 1.0, 1.0]
        if add_timestep:
            low, high = [*low, 0.0], [*high, self.episode_length]
        self.observation_space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = gym.spaces.Discrete(len(MOVES))  # type: ignore[assignment]
        self._time: int | None = None

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Draws the goal's side and puts the agent at the start."""
        super().reset(seed=seed)
        self._goal_y = 1 if self.np_random.random() < 0.5 else -1
        self._x, self._y = self.oracle_length, 0
        self._oracle_visited = False
        self._time = 0
        return self._obs(), {}

    def _obs(self) -> npt.NDArray[np.float32]:
        first_visit = self._x == 0 and not self._oracle_visited
        self._oracle_visited = self._oracle_visited or first_visit
        shown = self._oracle_visited if self.expose_goal else first_visit
        exposure = self._goal_y if shown else 0
        if not self.ambiguous_position:
            values = [self._x, self._y, exposure]
        elif self._x == self.junction_x:
            values = [1, self._y]
        else:
            values = [0, exposure]
        if self.add_timestep:
            assert self._time is not None
            values.append(self._time)
        return np.array(values, np.float32)

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One move; an impossible one does nothing. The last step is both terminated and truncated."""
        if self._time is None:
            raise RuntimeError(f"{type(self).__name__}.step was called outside an episode: reset() first")
        if not 0 <= action < 4:
            raise ValueError(f"action must be from 0 to 3 (+x, +y, -x, -y), got {action}")
        self._time += 1
        d_x, d_y = MOVES[action]
        if d_y and self._x == self.junction_x:
            self._y = min(max(self._y + d_y, -1), 1)
        elif d_x and self._y == 0:
            self._x = min(max(self._x + d_x, 0), self.junction_x)
        obs = self._obs()
        if self._time < self.episode_length:
            penalised = action != FORWARD and self._time > self.oracle_length
            return obs, self.penalty if penalised else 0.0, False, False, {}
        self._time = None
        success = self._y == self._goal_y
        return obs, self.goal_reward if success else 0.0, True, True, {SUCCESS_KEY: float(success)}

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Prints the maze as text (o oracle, g goal, * agent; +y goes down) and returns that text."""
        width = self.junction_x + 1
        rows = [[" "] * width, ["o", *"." * (width - 1)], [" "] * width]
        rows[0][-1] = rows[2][-1] = "."
        rows[1 + self._goal_y][-1] = "g"
        rows[1 + self._y][self._x] = "*"
        text = "\n".join("".join(row) for row in rows)
        print(text, end="\n\n")
        return text


class TMazeAltPassive(TMazeAlt):
    """Starts on the oracle and lasts corridor_length + 1 steps, just enough to reach the goal.

    Observation, float32 (2,) in [-1, 1]: (0, side of the goal) on the first visit to the oracle and (0, 0)
    after it and in the corridor, (1, y) at the junction and beyond. Actions: +x, +y, -x, -y.

    Args:
        corridor_length: cells from the start to the junction, at least 1.
        goal_reward: reward of ending on the goal's side.
        penalty: added for every step but the last that is not +x; at most 0.
        distract_reward: kept for compatibility; must be 0.

    Raises:
        ValueError: for an argument out of its range.
    """

    @check_arguments
    def __init__(
        self,
        corridor_length: Size,
        goal_reward: float = 1.0,
        penalty: Annotated[float, Le(0)] = 0.0,
        distract_reward: float = 0.0,
    ) -> None:
        super().__init__(
            episode_length=corridor_length + 1,
            corridor_length=corridor_length,
            oracle_length=0,
            goal_reward=goal_reward,
            penalty=penalty,
            distract_reward=distract_reward,
            ambiguous_position=True,
        )


class TMazeAltActive(TMazeAlt):
    """Starts one cell right of the oracle and lasts corridor_length + 3 steps, just enough to visit it first.

    As `TMazeAltPassive`, except that the first step is never penalised.
    """

    @check_arguments
    def __init__(
        self,
        corridor_length: Size,
        goal_reward: float = 1.0,
        penalty: Annotated[float, Le(0)] = 0.0,
        distract_reward: float = 0.0,
    ) -> None:
        super().__init__(
            episode_length=corridor_length + 3,
            corridor_length=corridor_length,
            oracle_length=1,
            goal_reward=goal_reward,
            penalty=penalty,
            distract_reward=distract_reward,
            ambiguous_position=True,
        )
