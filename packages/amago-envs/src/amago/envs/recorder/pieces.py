"""The steps of all rows whose piece of an episode is not written yet, in a few arrays (time, row, ...).

A step is a handful of copies of whole batches, whatever the number of rows; a row is only looked at when its
piece ends. Where rows are stepped in two parts, one of them may be a step ahead of the other. Memory is that of
the longest unfinished piece, times the rows, at most doubled twice.
"""

from collections.abc import Iterator

import numpy as np

from amago.envs.vector.types import PolicyInput, VectorStep
from amago.hindsight.timestep import Array
from amago.hindsight.trajectory import FrozenTraj

FIRST_CAPACITY = 64
NONE_AHEAD = slice(0, 0)


class UnfinishedPieces:
    """Grows by one timestep of all rows at a time and gives out finished pieces.

    Args:
        inputs: the first timestep of every row.
    """

    def __init__(self, inputs: PolicyInput) -> None:
        num_rows, rl2_width = inputs.rl2s.shape
        self._capacity = FIRST_CAPACITY
        # Row t: the timestep at slot t, and the transition from slot t to slot t + 1
        self._obs = {
            key: np.empty((self._capacity, *array.shape), array.dtype) for key, array in inputs.obs.items()
        }
        self._time_idxs = np.empty((self._capacity, num_rows), np.int64)
        self._rewards_actions = np.empty((self._capacity, num_rows, rl2_width), np.float32)
        self._terminated = np.empty((self._capacity, num_rows), np.bool_)
        self._starts = np.zeros(num_rows, np.int64)  # slot of each piece's first timestep
        self._first_rl2s = np.empty((num_rows, rl2_width), np.float32)
        self._now = 0  # slot of the current timestep
        self._ahead = NONE_AHEAD  # rows whose current timestep is one slot further
        self.restart_all(inputs)

    def restart_all(self, inputs: PolicyInput) -> None:
        """Forgets everything; every row begins a piece with the timestep `inputs`."""
        self._now = 0
        self._ahead = NONE_AHEAD
        self._write_timestep(inputs, 0)
        self._starts[:] = 0
        self._first_rl2s[:] = inputs.rl2s

    def add(self, step: VectorStep, rows: slice | None = None) -> None:
        """Appends one transition and the timestep after it to every row, or to `rows`, which `step` is of.

        Raises:
            RuntimeError: if some rows are a step ahead and `rows` are not the others.
            ValueError: if `rows` are neither the first ones nor the last ones.
        """
        now, in_step = self._now, self._ahead is NONE_AHEAD
        if rows is not None or not in_step:
            self._check_turn(rows)
        here = now if rows is None else (now, rows)
        transition = self._rewards_actions[here]
        transition[:, 0] = step.rewards
        transition[:, 1:] = step.actions
        self._terminated[here] = step.terminated
        if now + 1 == self._capacity:
            self._make_room()
            now = self._now
        self._write_timestep(step.inputs, now + 1 if rows is None else (now + 1, rows))
        if in_step and rows is not None and rows != slice(0, len(self._starts)):
            self._ahead = rows
        else:
            self._now, self._ahead = now + 1, NONE_AHEAD

    def _check_turn(self, rows: slice | None) -> None:
        ahead, num_rows = self._ahead, len(self._starts)
        if self.in_step:
            if rows is not None and rows.start > 0 and rows.stop < num_rows:
                raise ValueError(
                    f"rows are {rows}, must be the first or the last ones of {num_rows}: there are two parts"
                )
        elif rows != (slice(0, ahead.start) if ahead.start else slice(ahead.stop, num_rows)):
            raise RuntimeError(
                f"rows {ahead.start} to {ahead.stop - 1} of {num_rows} are a step ahead: add the step of the "
                f"others first, not that of {'all rows' if rows is None else rows}"
            )

    @property
    def in_step(self) -> bool:
        """Whether no rows are ahead of others."""
        return self._ahead is NONE_AHEAD

    def _slot(self, row: int) -> int:
        """Of the current timestep of a row."""
        return self._now + (self._ahead.start <= row < self._ahead.stop)

    def _write_timestep(self, inputs: PolicyInput, here: int | tuple[int, slice]) -> None:
        for key, array in inputs.obs.items():
            self._obs[key][here] = array
        self._time_idxs[here] = inputs.time_idxs

    def _make_room(self) -> None:
        """Moves the unfinished pieces to the front, into larger arrays if they fill more than half."""
        oldest = int(self._starts.min())
        capacity = self._capacity if oldest >= self._capacity // 2 else 2 * self._capacity

        def moved(array: Array) -> Array:
            kept = array[oldest : self._now + 1]
            target = (
                array if capacity == self._capacity else np.empty((capacity, *array.shape[1:]), array.dtype)
            )
            # Within one array at least as much was finished as is kept, so the two parts do not overlap.
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
        """(N,) transitions in each row's piece."""
        lengths: Array = self._now - self._starts
        lengths[self._ahead] += 1
        return lengths

    def begin_episode(self, row: int) -> None:
        """Lets the piece of `row` begin with its current timestep, the first of an episode."""
        self._starts[row] = self._slot(row)
        self._first_rl2s[row] = 0.0

    def continue_episode(self, row: int) -> None:
        """Lets the piece of `row` begin with its current timestep, the last of the piece before."""
        slot = self._slot(row)
        self._starts[row] = slot
        self._first_rl2s[row] = self._rewards_actions[slot - 1, row]

    def replace_current(self, row: int, inputs: PolicyInput) -> None:
        """Lets the piece of `row`, which has no transition yet, begin with another timestep."""
        now = self._slot(row)
        assert self._starts[row] == now
        for key, array in inputs.obs.items():
            self._obs[key][now, row] = array[row]
        self._time_idxs[now, row] = inputs.time_idxs[row]
        self._first_rl2s[row] = inputs.rl2s[row]

    def piece(self, row: int) -> FrozenTraj:
        """The piece of `row` up to its current timestep, in memory of its own."""
        start, now = int(self._starts[row]), self._slot(row)
        return self._freeze(
            row,
            obs={key: array[start : now + 1, row].copy() for key, array in self._obs.items()},
            time_idxs=self._time_idxs[start : now + 1, row].copy(),
        )

    def finished_pieces(self, step: VectorStep, rows: Array) -> Iterator[tuple[int, FrozenTraj]]:
        """(row, piece) of the `rows` whose episodes ended in `step`; a piece ends with its final observation.

        The current timestep of those rows already belongs to the next episode.
        """
        for k, row in enumerate(rows.tolist()):
            start, now = int(self._starts[row]), self._slot(row)
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
        start, now = int(self._starts[row]), self._slot(row)
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
