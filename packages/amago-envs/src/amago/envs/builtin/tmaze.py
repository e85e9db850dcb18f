"""T-Mazes after Ni et al. 2023, "When Do Transformers Shine in RL? Decoupling Memory from Credit Assignment".

A corridor with a T at its end. An oracle cell at the other end shows once on which side the goal is, so the last
action needs a memory as long as the corridor. The passive maze starts on the oracle and tests memory alone; in the
active one the agent must first step back to the oracle, which also tests credit assignment.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.builtin.arguments import whole_number
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

FORWARD = 0
# +x, +y, -x, -y
MOVES = ((1, 0), (0, 1), (-1, 0), (0, -1))
SUCCESS_KEY = f"{AMAGO_ENV_LOG_PREFIX} Success"


class _TMaze(gym.Env[npt.NDArray[np.float32], int]):
    """Base of both variants, which set `start_x` and `first_penalised_step`."""

    start_x: int
    first_penalised_step: int

    def __init__(
        self,
        corridor_length: int,
        goal_reward: float = 1.0,
        penalty: float = 0.0,
        distract_reward: float = 0.0,
    ) -> None:
        corridor_length = whole_number("corridor_length", corridor_length, 1)
        if penalty > 0.0:
            raise ValueError(f"penalty is added to the reward and must be at most 0, got {penalty}")
        if distract_reward != 0.0:
            raise ValueError(f"distract_reward must be 0 in this maze, got {distract_reward}")
        self.corridor_length = corridor_length
        self.goal_reward = goal_reward
        self.penalty = penalty
        self.junction_x = corridor_length + self.start_x
        # out to the oracle and back to the start, along the corridor, one turn
        self.episode_length = 2 * self.start_x + corridor_length + 1
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))  # type: ignore[assignment]
        self._time: int | None = None

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Draws the goal's side and puts the agent at the start."""
        super().reset(seed=seed)
        self._goal_y = 1 if self.np_random.random() < 0.5 else -1
        self._x, self._y = self.start_x, 0
        self._oracle_unread = True
        self._time = 0
        return self._obs(), {}

    def _obs(self) -> npt.NDArray[np.float32]:
        if self._x == self.junction_x:
            return np.array((1, self._y), np.float32)
        if self._x == 0 and self._oracle_unread:
            self._oracle_unread = False
            return np.array((0, self._goal_y), np.float32)
        return np.zeros(2, np.float32)

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
            penalised = action != FORWARD and self._time >= self.first_penalised_step
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


class TMazeAltPassive(_TMaze):
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

    start_x = 0
    first_penalised_step = 1


class TMazeAltActive(_TMaze):
    """Starts one cell right of the oracle and lasts corridor_length + 3 steps, just enough to visit it first.

    As `TMazeAltPassive`, except that the first step is never penalised.
    """

    start_x = 1
    first_penalised_step = 2
