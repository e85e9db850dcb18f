"""EpisodeBuffer: the steps of all rows that are not written yet, in a few arrays (time, row, ...).

A segment is the unwritten tail of a row's episode. Adding a step takes a few copies of whole batches;
rows are handled one by one only when their segments end. Memory: the longest unfinished
segment, times the rows, at most doubled twice.
"""

from collections.abc import Iterator

import numpy as np

from amago.envs.vector.base import PolicyInput, VectorStep
from amago.hindsight import Array, FrozenTraj

FIRST_CAPACITY = 64


class EpisodeBuffer:
    """Appends one timestep of all rows at a time, and returns segments as trajectories.

    Args:
        inputs: the first timestep of every row.
    """

    def __init__(self, inputs: PolicyInput) -> None:
        num_rows, rl2_width = inputs.rl2s.shape
        self._capacity = FIRST_CAPACITY
        # Index t: the timestep t, and the transition from timestep t to t + 1
        self._obs = {
            key: np.empty((self._capacity, *array.shape), array.dtype) for key, array in inputs.obs.items()
        }
        self._time_idxs = np.empty((self._capacity, num_rows), np.int64)
        self._rewards_actions = np.empty((self._capacity, num_rows, rl2_width), np.float32)
        self._terminated = np.empty((self._capacity, num_rows), np.bool_)
        self._starts = np.zeros(num_rows, np.int64)  # index of each segment's first timestep
        self._first_rl2s = np.empty((num_rows, rl2_width), np.float32)
        self._now = 0  # index of the current timestep
        self.restart_all(inputs)

    def restart_all(self, inputs: PolicyInput) -> None:
        """Clears the buffer; every row begins a segment with the timestep `inputs`."""
        self._now = 0
        self._write_timestep(inputs, 0)
        self._starts[:] = 0
        self._first_rl2s[:] = inputs.rl2s

    def add(self, step: VectorStep) -> None:
        """Appends one transition and the timestep after it to every row."""
        transition = self._rewards_actions[self._now]
        transition[:, 0] = step.rewards
        transition[:, 1:] = step.actions
        self._terminated[self._now] = step.terminated
        if self._now + 1 == self._capacity:
            self._make_room()
        self._write_timestep(step.inputs, self._now + 1)
        self._now += 1

    def _write_timestep(self, inputs: PolicyInput, index: int) -> None:
        for key, array in inputs.obs.items():
            self._obs[key][index] = array
        self._time_idxs[index] = inputs.time_idxs

    def _make_room(self) -> None:
        """Moves unfinished segments to the front, into larger arrays if they fill more than half."""
        oldest = int(self._starts.min())
        capacity = self._capacity if oldest >= self._capacity // 2 else 2 * self._capacity

        def moved(array: Array) -> Array:
            kept = array[oldest : self._now + 1]
            target = (
                array if capacity == self._capacity else np.empty((capacity, *array.shape[1:]), array.dtype)
            )
            # Within one array at least half is free, so source and target do not overlap.
            target[: len(kept)] = kept
            return target

        self._obs = {key: moved(array) for key, array in self._obs.items()}
        self._time_idxs = moved(self._time_idxs)
        self._rewards_actions = moved(self._rewards_actions)
        self._terminated = moved(self._terminated)
        self._starts -= oldest
        self._now -= oldest
        self._capacity = capacity

    @property
    def lengths(self) -> Array:
        """(N,) transitions in each row's segment."""
        lengths: Array = self._now - self._starts
        return lengths

    def begin_episode(self, row: int) -> None:
        """Begins the segment of `row` with its current timestep, the first of an episode."""
        self._starts[row] = self._now
        self._first_rl2s[row] = 0.0

    def continue_episode(self, row: int) -> None:
        """Begins the segment of `row` with its current timestep, the last of the segment before."""
        self._starts[row] = self._now
        self._first_rl2s[row] = self._rewards_actions[self._now - 1, row]

    def replace_current(self, row: int, inputs: PolicyInput) -> None:
        """Replaces the current timestep of `row`, whose segment has no transition yet."""
        assert self._starts[row] == self._now
        for key, array in inputs.obs.items():
            self._obs[key][self._now, row] = array[row]
        self._time_idxs[self._now, row] = inputs.time_idxs[row]
        self._first_rl2s[row] = inputs.rl2s[row]

    def segment(self, row: int) -> FrozenTraj:
        """A copy of the segment of `row` up to its current timestep."""
        start, stop = int(self._starts[row]), self._now + 1
        obs = {key: array[start:stop, row].copy() for key, array in self._obs.items()}
        return self._freeze(row, obs, self._time_idxs[start:stop, row].copy())

    def finished_segments(self, step: VectorStep) -> Iterator[tuple[int, FrozenTraj]]:
        """(row, segment) of the rows whose episodes ended in `step`; a segment ends with the final observation.

        The current timestep of those rows already belongs to the next episode.
        """
        now = self._now
        for k, row in enumerate(step.done_rows.tolist()):
            start = int(self._starts[row])
            obs = {}
            for key, array in self._obs.items():
                obs[key] = np.empty((now + 1 - start, *array.shape[2:]), array.dtype)
                obs[key][:-1] = array[start:now, row]
                obs[key][-1] = step.final_obs[key][k]
            time_idxs = np.empty(now + 1 - start, np.int64)
            time_idxs[:-1] = self._time_idxs[start:now, row]
            time_idxs[-1] = step.final_time_idxs[k]
            yield row, self._freeze(row, obs, time_idxs)

    def _freeze(self, row: int, obs: dict[str, Array], time_idxs: Array) -> FrozenTraj:
        start, now = int(self._starts[row]), self._now
        rl2s = np.empty((now + 1 - start, self._first_rl2s.shape[1]), np.float32)
        rl2s[0] = self._first_rl2s[row]
        rl2s[1:] = self._rewards_actions[start:now, row]
        return FrozenTraj.unchecked(
            obs=obs,
            rl2s=rl2s,
            time_idxs=time_idxs[:, None],
            rews=rl2s[1:, :1].copy(),
            dones=self._terminated[start:now, row, None].copy(),
            actions=rl2s[1:, 1:].copy(),
        )
