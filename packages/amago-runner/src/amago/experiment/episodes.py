"""The episodes of a rollout: those in progress, and how many of them end it.

Shapes: N actors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amago.envs.metrics import EpisodeStats
from amago.envs.vector import VectorStep


class Limits:
    """When a rollout ends.

    Args:
        timesteps: steps per actor; None for no limit.
        episodes: episodes of all actors together, of which each contributes as many as others, give or take one;
            None for no limit.
        num_envs: N.

    Attributes:
        done: steps of all actors so far; whoever steps them counts.
        remaining: (N,) episodes that each actor still contributes, None for no limit.
    """

    def __init__(self, timesteps: int | None, episodes: int | None, num_envs: int) -> None:
        self.timesteps = timesteps
        self.done = 0
        self.remaining: npt.NDArray[np.int64] | None = None
        if episodes is not None:
            share, rest = divmod(episodes, num_envs)
            self.remaining = np.where(np.arange(num_envs) < rest, share + 1, share).astype(np.int64)

    def reached(self) -> bool:
        """Whether the rollout is over."""
        if self.timesteps is not None and self.done >= self.timesteps:
            return True
        return self.remaining is not None and not self.remaining.any()

    def outlast(self, ends: int) -> bool:
        """Whether the step that is counted next is surely not the last, if it ends so many episodes."""
        if self.timesteps is not None and self.done + 1 >= self.timesteps:
            return False
        return self.remaining is None or int(self.remaining.sum()) > ends

    def next_may_be_last(self, others: slice) -> bool:
        """Whether the rollout may be over with the step that only the actors `others` have still to take."""
        if self.timesteps is not None and self.done + 1 >= self.timesteps:
            return True
        if self.remaining is None or self.remaining.sum() > self.remaining[others].sum():
            return False
        return bool((self.remaining[others] <= 1).all())


class RunningEpisodes:
    """Return, length and reported metrics of the N episodes in progress."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._reported: dict[int, list[dict[str, float]]] = {}
        self._first_row = 0

    def of(self, rows: slice) -> RunningEpisodes:
        """Those of some rows, which are numbered from 0: a view, as both change together."""
        view = RunningEpisodes(0)
        view._returns, view._lengths = self._returns[rows], self._lengths[rows]
        view._reported, view._first_row = self._reported, rows.start
        return view

    def clear(self) -> None:
        """Begins all of them anew."""
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._reported.clear()

    def clear_row(self, row: int) -> None:
        """Begins one of them anew."""
        self._returns[row] = 0.0
        self._lengths[row] = 0
        self._reported.pop(self._first_row + row, None)

    def add(self, step: VectorStep) -> None:
        """Adds a step to each."""
        self._returns += step.rewards
        self._lengths += 1
        for row, metrics in step.metrics:
            self._reported.setdefault(self._first_row + row, []).append(metrics)

    def finish(self, row: int, env_name: str, stats: EpisodeStats) -> None:
        """Adds one of them to the statistics."""
        stats.add_episode(env_name, float(self._returns[row]), int(self._lengths[row]))
        for metrics in self._reported.get(self._first_row + row, ()):
            stats.add_metrics(env_name, metrics)
