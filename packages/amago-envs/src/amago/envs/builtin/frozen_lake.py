"""MetaFrozenLake: k attempts to cross a frozen lake that is resampled in every episode.

Holes are not observed, so the agent must remember earlier attempts to improve: a minimal test of in-context
adaptation. Positions are Python integers and the lake is a flat list, because one numpy call takes longer
than a step without numpy.
"""

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Lt

from amago.envs.arguments import Size, check_arguments
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

ICE, HOLE, GOAL = 0, 1, 2
HOLE_CHANCE = 0.2
RECOVER_PENALTY = -0.1
SWAP_CHANCE, NOISY_READING_CHANCE, MELT_CHANCE = 1 / 2, 1 / 4, 1 / 3
# stay, +row, -row, +column, -column
MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
SWAPPED_MOVES = ((0, 0), (0, 1), (-1, 0), (1, 0), (0, -1))

Lake = list[int]


def has_path(lake: Lake, size: int) -> bool:
    """Whether the goal (last cell) can be reached from the start (cell 0) without touching a hole."""
    seen = {0}
    frontier = [0]
    while frontier:
        row, column = divmod(frontier.pop(), size)
        for d_row, d_column in MOVES[1:]:
            next_row, next_column = row + d_row, column + d_column
            if 0 <= next_row < size and 0 <= next_column < size:
                cell = next_row * size + next_column
                if cell not in seen and lake[cell] != HOLE:
                    seen.add(cell)
                    frontier.append(cell)
    return size * size - 1 in seen


def generate_lake(size: int, rng: np.random.Generator) -> Lake:
    """Samples a solvable lake, flat in row-major order, as gymnasium's `generate_random_map(size)` does.

    Each cell except start and goal is a hole with probability 0.2; unsolvable lakes are resampled.
    """
    while True:
        lake: Lake = [HOLE if u < HOLE_CHANCE else ICE for u in rng.random(size * size).tolist()]
        lake[0] = ICE
        lake[-1] = GOAL
        if has_path(lake, size):
            return lake


class MetaFrozenLake(gym.Env[npt.NDArray[np.float32], int]):
    """k attempts to cross the same random lake; each reset samples a new lake.

    Observation, float32 (4,) in [0, 1]: row / size, column / size, 1 on the first step of an attempt,
    attempt / k_episodes. Actions: 0 stays, 1 to 4 move by +row, -row, +column, -column. The goal gives reward
    1 and ends the attempt. The step that ends an attempt returns the first observation of the next attempt,
    except that the last entry still counts the ended attempt; `info` reports "Episode {i} Success", i from 0,
    under the log prefix.

    Args:
        size: side of the square lake, at least 2.
        k_episodes: attempts per lake; the episode terminates after the last.
        hard_mode: with probability 1/2, a lake swaps +row and +column; with probability 1/4, each coordinate
            of an observed position is off by up to one cell; with probability 1/3, the cell that a move
            leaves becomes a hole for the rest of the attempt, before the move is judged: in recover mode an agent
            that a hole turns back may then be on another one, where staying costs 0.1 as well.
        recover_mode: if True, a hole gives reward -0.1 and the agent does not move; if False, a hole gives
            reward 0 and ends the attempt.
        max_episode_steps: maximum number of steps per attempt; defaults to size², doubled in hard mode,
            divided by 1 - slip_chance and rounded down.
        show_k_progress: if False, the last entry of the observation is 0.
        slip_chance: probability in [0, 1) that a move becomes "stay".

    Raises:
        ValueError: if a size, count or probability is out of range.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        size: Annotated[Size, Ge(2)],
        k_episodes: Size = 10,
        hard_mode: bool = False,
        recover_mode: bool = False,
        max_episode_steps: Size | None = None,
        show_k_progress: bool = True,
        slip_chance: Annotated[float, Ge(0), Lt(1)] = 0.0,
    ) -> None:
        if max_episode_steps is None:
            max_episode_steps = int(size * size * (2 if hard_mode else 1) / (1.0 - slip_chance))
        self.size = size
        self.k_episodes = k_episodes
        self.hard_mode = hard_mode
        self.recover_mode = recover_mode
        self.max_episode_steps = max_episode_steps
        self.show_k_progress = show_k_progress
        self.slip_chance = slip_chance
        self.observation_space = gym.spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))  # type: ignore[assignment]
        self._success_keys = [f"{AMAGO_ENV_LOG_PREFIX} Episode {i} Success" for i in range(k_episodes)]
        self._running = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Samples a new lake and starts the first attempt."""
        super().reset(seed=seed)
        rng = self.np_random
        self._lake = generate_lake(self.size, rng)
        self._moves = SWAPPED_MOVES if self.hard_mode and rng.random() < SWAP_CHANCE else MOVES
        self._attempt = 0
        self._running = True
        return self.soft_reset(), {}

    def soft_reset(self) -> npt.NDArray[np.float32]:
        """Starts a new attempt on the original lake; returns its first observation."""
        self._row = self._column = 0
        self._attempt_steps = 0
        # only hard mode changes the lake during an attempt
        self._now = self._lake.copy() if self.hard_mode else self._lake
        return self.make_obs(True)

    def make_obs(self, reset_signal: bool) -> npt.NDArray[np.float32]:
        """Returns the current observation; in hard mode each call resamples the position error."""
        row, column, size = self._row, self._column, self.size
        if self.hard_mode and self.np_random.random() < NOISY_READING_CHANCE:
            d_row, d_column = self.np_random.integers(-1, 2, 2).tolist()
            row = min(max(row + d_row, 0), size - 1)
            column = min(max(column + d_column, 0), size - 1)
        progress = self._attempt / self.k_episodes if self.show_k_progress else 0.0
        return np.array((row / size, column / size, reset_signal, progress), np.float32)

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Executes one action. The class docstring describes the observation at the end of an attempt."""
        if not self._running:
            raise RuntimeError("MetaFrozenLake.step needs a running episode: call reset() first")
        action = int(action)
        if not 0 <= action < 5:
            raise ValueError(f"action must be 0 (stay) or a move from 1 to 4, got {action}")
        reward, over = self._move(action)
        self._attempt_steps += 1
        if not over and self._attempt_steps < self.max_episode_steps:
            return self.make_obs(False), reward, False, False, {}
        info = {self._success_keys[self._attempt]: float(reward == 1.0)}
        obs = self.soft_reset()
        self._attempt += 1
        self._running = self._attempt < self.k_episodes
        return obs, reward, not self._running, False, info

    def _move(self, action: int) -> tuple[float, bool]:
        """Applies one action to the position and, in hard mode, to the lake: (reward, end of the attempt)."""
        if action and self.slip_chance and self.np_random.random() < self.slip_chance:
            action = 0
        d_row, d_column = self._moves[action]
        size = self.size
        row = min(max(self._row + d_row, 0), size - 1)
        column = min(max(self._column + d_column, 0), size - 1)
        left, entered = self._row * size + self._column, row * size + column
        if self.hard_mode and entered != left and self.np_random.random() < MELT_CHANCE:
            self._now[left] = HOLE
        cell = self._now[entered]
        if cell == HOLE and self.recover_mode:
            return RECOVER_PENALTY, False
        self._row, self._column = row, column
        return float(cell == GOAL), cell != ICE

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Prints the lake as text (S start, F ice, H hole, G goal, * agent) and returns that text."""
        cells = ["FHG"[cell] for cell in self._now]
        cells[0] = "S"
        cells[self._row * self.size + self._column] = "*"
        rows = ("".join(cells[i : i + self.size]) for i in range(0, len(cells), self.size))
        text = "\n".join(rows)
        print(text, end="\n\n")
        return text
