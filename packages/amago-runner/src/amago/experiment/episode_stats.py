"""The episodes of a rollout: the limits that end it, and the returns of episodes in progress.

Shapes: N actors (rows of the vector environment).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from amago.envs.metrics import EpisodeStats
from amago.envs.vector import VectorStep


class RolloutLimits:
    """The end of a rollout.

    Args:
        timesteps: steps per actor; None for no limit.
        episodes: episodes of all actors together, divided evenly (give or take one); None for no limit.
        num_envs: N.
        stop: asked after every step whether the rollout ends early; None never does.

    Attributes:
        done: steps per actor so far; the caller counts them.
        remaining: (N,) episodes that each actor still contributes; None for no limit.

    Raises:
        ValueError: if neither limit is given.
    """

    def __init__(
        self,
        timesteps: int | None,
        episodes: int | None,
        num_envs: int,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        if timesteps is None and episodes is None:
            raise ValueError("give timesteps or episodes: a rollout without a limit would never end")
        self.timesteps = timesteps
        self._stop = stop
        self.done = 0
        self.remaining: npt.NDArray[np.int64] | None = None
        if episodes is not None:
            share, rest = divmod(episodes, num_envs)
            self.remaining = np.where(np.arange(num_envs) < rest, share + 1, share).astype(np.int64)

    def reached(self) -> bool:
        """Whether the rollout is over."""
        if self._stop is not None and self._stop():
            return True
        if self.timesteps is not None and self.done >= self.timesteps:
            return True
        return self.remaining is not None and not self.remaining.any()

    def next_step_is_certain(self) -> bool:
        """Whether another step follows the running one, however many episodes that one ends."""
        if self._stop is not None and self._stop():
            return False
        return self.remaining is None and self.timesteps is not None and self.done + 1 < self.timesteps

    def rows(self, rows: slice) -> npt.NDArray[np.int64] | None:
        """A view of `remaining` for some actors."""
        return None if self.remaining is None else self.remaining[rows]


class RunningEpisodes:
    """Return, length and reported metrics of the N episodes in progress."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._reported: dict[int, list[dict[str, float]]] = {}

    def clear(self) -> None:
        """Begins new episodes in all rows."""
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._reported.clear()

    def add(
        self, step: VectorStep, stats: EpisodeStats, remaining: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Adds a step, and the episodes that it ends to `stats`.

        Args:
            step: step results of all rows.
            stats: receives finished episodes.
            remaining: (N,) episodes that each row still contributes, decremented; None for no limit.
        """
        self._returns += step.rewards
        self._lengths += 1
        if step.done_rows.size:
            self._lengths[step.reset_rows] -= 1
        for row, metrics in step.metrics:
            self._reported.setdefault(row, []).append(metrics)
        for row in step.done_rows.tolist():
            if remaining is None or remaining[row] > 0:
                self._finish(row, step.env_names[row], stats)
            if remaining is not None and remaining[row] > 0 and self._lengths[row] > 0:
                remaining[row] -= 1
            self._returns[row] = 0.0
            self._lengths[row] = 0
            self._reported.pop(row, None)

    def _finish(self, row: int, env_name: str, stats: EpisodeStats) -> None:
        if self._lengths[row] > 0:  # else the row was only reset
            stats.add_episode(env_name, float(self._returns[row]), int(self._lengths[row]))
        for metrics in self._reported.get(row, ()):
            stats.add_metrics(env_name, metrics)
