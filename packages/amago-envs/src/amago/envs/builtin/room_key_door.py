"""RoomKeyDoor: find a key, then a door, in a dark room; again and again in the same room.

The room stays the same within a rollout, so an agent with memory walks straight to the key and the door from its
second visit on.
"""

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from amago.envs.arguments import Size, check_arguments

Location = tuple[int, int]
# -y, -x, +y, +x, stay
MOVES = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))


class RoomKeyDoor(gym.Env[npt.NDArray[np.float32], int]):
    """Visits to one square room: 1 for reaching the key, then 1 for reaching the door.

    Observation, float32 in [0, 1]: x / size, y / size, whether the key is held, time in this visit / limit;
    in the light also the door's and the key's x / size and y / size. After the door, or `max_episode_steps`,
    the next step puts the agent back at the start of the same room, whatever its action, with reward 0. The
    rollout ends, both terminated and truncated, after `meta_rollout_horizon` steps. Every reset draws a new
    room.

    Args:
        dark: False adds the positions of door and key to the observation: (8,) in place of (4,).
        size: side of the room, at least 2.
        max_episode_steps: steps of one visit.
        meta_rollout_horizon: steps of the whole rollout, moves back to the start included.
        start_location, key_location, goal_location: "random" (drawn per room, apart from the others), or the
            cell (x, y).
        randomize_actions: shuffle the meaning of the five actions (-y, -x, +y, +x, stay) in each room.

    Raises:
        ValueError: for a size or limit out of its range, or a location outside the room.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        dark: bool = True,
        size: Annotated[Size, Ge(2)] = 9,
        max_episode_steps: Size = 50,
        meta_rollout_horizon: Size = 500,
        start_location: str | Location = "random",
        key_location: str | Location = "random",
        goal_location: str | Location = "random",
        randomize_actions: bool = False,
    ) -> None:
        self.dark = dark
        self.size = size
        self.max_episode_steps = max_episode_steps
        self.meta_rollout_horizon = meta_rollout_horizon
        self.H, self.H_meta = max_episode_steps, meta_rollout_horizon
        self.randomize_actions = randomize_actions
        self._fixed = (
            self._check_location("start_location", start_location),
            self._check_location("key_location", key_location),
            self._check_location("goal_location", goal_location),
        )
        self.observation_space = gym.spaces.Box(0.0, 1.0, (4 if dark else 8,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))  # type: ignore[assignment]
        self._rollout_steps: int | None = None

    def _check_location(self, name: str, location: str | Location) -> Location | None:
        if isinstance(location, str):
            if location != "random":
                raise ValueError(f'{name} must be "random" or a pair (x, y), got {location!r}')
            return None
        x, y = (int(coordinate) for coordinate in location)
        if not (0 <= x < self.size and 0 <= y < self.size):
            raise ValueError(f"{name} must lie in a room of {self.size} by {self.size}, got {location!r}")
        return x, y

    def generate_task(self) -> None:
        """Draws start, key and door, in different cells, and the meaning of the actions."""
        taken = [location for location in self._fixed if location is not None]
        drawn: list[Location] = []
        for location in self._fixed:
            while location is None:
                x, y = self.np_random.integers(self.size, size=2).tolist()
                if (x, y) not in taken:
                    location = (x, y)
                    taken.append(location)
            drawn.append(location)
        self._start, self._key, self._door = drawn
        order = (
            self.np_random.permutation(len(MOVES)).tolist() if self.randomize_actions else range(len(MOVES))
        )
        self._moves = [MOVES[i] for i in order]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Draws a new room and starts a rollout in it."""
        super().reset(seed=seed)
        self.generate_task()
        self._rollout_steps = 0
        return self.reset_same_task(), {}

    def reset_same_task(self) -> npt.NDArray[np.float32]:
        """Puts the agent back at the start, without the key; returns the observation there."""
        self._x, self._y = self._start
        self._has_key = False
        self._visit_over = False
        self._visit_steps = 0
        return self.obs()

    def obs(self) -> npt.NDArray[np.float32]:
        """The observation of the current state."""
        size = self.size
        values = [self._x / size, self._y / size, self._has_key, self._visit_steps / self.max_episode_steps]
        if not self.dark:
            values += [coordinate / size for coordinate in (*self._door, *self._key)]
        return np.array(values, np.float32)

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Executes one move; returns to the start after a visit ends."""
        if self._rollout_steps is None:
            raise RuntimeError("RoomKeyDoor.step was called outside an episode: call reset() first")
        if not 0 <= action < 5:
            raise ValueError(f"action must be from 0 to 4, got {action}")
        self._rollout_steps += 1
        done = self._rollout_steps >= self.meta_rollout_horizon
        if done:
            self._rollout_steps = None
        if self._visit_over:
            return self.reset_same_task(), 0.0, done, done, {}
        reward = self._move(int(action))
        self._visit_steps += 1
        self._visit_over = self._visit_over or self._visit_steps >= self.max_episode_steps
        return self.obs(), reward, done, done, {}

    def _move(self, action: int) -> float:
        """Applies one action; returns 1 when it reached the key, or the door with the key in hand."""
        d_x, d_y = self._moves[action]
        self._x = min(max(self._x + d_x, 0), self.size - 1)
        self._y = min(max(self._y + d_y, 0), self.size - 1)
        here = (self._x, self._y)
        if not self._has_key:
            self._has_key = here == self._key
            return float(self._has_key)
        self._visit_over = here == self._door
        return float(self._visit_over)

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Prints the room as text (* agent, k key, d door; +y goes down) and returns that text."""
        rows = [["."] * self.size for _ in range(self.size)]
        rows[self._door[1]][self._door[0]] = "d"
        if not self._has_key:
            rows[self._key[1]][self._key[0]] = "k"
        rows[self._y][self._x] = "*"
        text = "\n".join("".join(row) for row in rows)
        print(text, end="\n\n")
        return text
