"""What all vector environments share: one block of arrays, and how a step is read from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from amago.envs.seeding import stream_seed
from amago.envs.vector.buffers import StepArrays
from amago.envs.vector.group_spec import GroupSpec, NameChange, StepNotes
from amago.envs.vector.types import NO_ROWS, ExplorationState, PolicyInput, VectorStep
from amago.hindsight.timestep import Array


def rows_that_are(true: Array) -> Array:
    """The numbers of the rows with True in `true` (N,); quick where there are none, as in most steps."""
    return np.flatnonzero(true) if np.count_nonzero(true) else NO_ROWS


class Part:
    """Consecutive rows that can be stepped without the others, and how their steps are read.

    Args:
        rows: which ones.
        arrays: of all rows.
    """

    def __init__(self, rows: slice, arrays: StepArrays) -> None:
        self.rows = rows
        self.arrays = arrays.rows(rows.start, rows.stop)
        self.inputs = self.arrays.policy_input()
        self._all_names: list[str] = []
        self._names: list[str] = []

    def names(self, all_names: list[str]) -> list[str]:
        """The names of these rows: the same list as before unless one of them has changed."""
        if all_names is not self._all_names:
            self._all_names = all_names
            names = all_names[self.rows]
            if names != self._names:
                self._names = names
        return self._names


class BufferedVectorEnv:
    """The main process's side of a vector environment; subclasses let the environments fill the arrays.

    Args:
        spec: of all environments.
        arrays: the whole block.
        seed, rank, role: name the random streams of the environments.
    """

    def __init__(
        self, spec: GroupSpec, arrays: StepArrays, *, seed: int | None, rank: int, role: str
    ) -> None:
        self.observation_space = spec.observation_space
        self.rl2_space = spec.rl2_space
        self.action_space = spec.action_space
        self.num_envs = sum(spec.rows_per_env)
        self._rows_per_env = spec.rows_per_env
        self._arrays = arrays
        self._inputs = arrays.policy_input()
        self._no_final_obs = {key: array[:0].copy() for key, array in arrays.obs.items()}
        self._no_final_time_idxs = arrays.time_idxs[:0].copy()
        self._seed, self._rank, self._role = seed, rank, role
        self._was_reset = False
        self._closed = False
        self.env_names: list[str] = self._spread_names(spec.names)

    def _spread_names(self, names: Sequence[str]) -> list[str]:
        return [name for name, rows in zip(names, self._rows_per_env, strict=True) for _ in range(rows)]

    def _seeds(self, seed: int | None) -> list[int | None]:
        """The seed of every environment for a reset; all None keeps their streams."""
        if seed is None and not self._was_reset:
            seed = self._seed
        self._was_reset = True
        num = len(self._rows_per_env)
        if seed is None:
            return [None] * num
        return [stream_seed(seed, self._role, self._rank, i) for i in range(num)]

    def _after_reset(self, names: Sequence[str]) -> PolicyInput:
        self.env_names = self._spread_names(names)
        return self._inputs

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the vector environment is closed: make a new one")

    def _check_actions(self, actions: Array, expected: Array | None = None) -> None:
        """Raises unless `actions` fit the rows that they are for and the environments were reset.

        Args:
            expected: where they will be written; by default those of all rows.
        """
        self._check_open()
        if not self._was_reset:
            raise RuntimeError("step was called before the first reset: call reset() first")
        if expected is None:
            expected = self._arrays.policy_actions
        actions = np.asarray(actions)
        if actions.shape != expected.shape:
            raise ValueError(
                f"actions have shape {actions.shape}, expected {expected.shape} "
                f"({len(expected)} rows of {self.action_space})"
            )
        if (
            expected.dtype.kind == "i"
            and actions.dtype.kind not in "iub"
            and (actions != np.rint(actions)).any()
        ):
            raise TypeError(
                f"actions of {self.action_space} must be whole numbers, got dtype {actions.dtype}"
            )

    def _read_step(self, notes: Sequence[tuple[int, StepNotes]], part: Part | None = None) -> VectorStep:
        """The step that the environments of all rows, or of a part, have just written.

        Args:
            notes: each with the first row of its group, among all rows.
            part: the step is of its rows alone.
        """
        if part is None:
            arrays, inputs, offset = self._arrays, self._inputs, 0
        else:
            arrays, inputs, offset = part.arrays, part.inputs, part.rows.start
        metrics: list[tuple[int, dict[str, float]]] = []
        if notes:
            for first_row, note in notes:
                metrics += [(first_row - offset + row, found) for row, found in note.metrics]
            self._rename([(first_row, note.names_in_step) for first_row, note in notes])
        names = self.env_names if part is None else part.names(self.env_names)
        if notes:
            self._rename([(first_row, note.names_after_reset) for first_row, note in notes])
        done_rows = rows_that_are(arrays.terminated | arrays.truncated)
        if done_rows.size:
            final_obs = {key: array[done_rows] for key, array in arrays.final_obs.items()}
            final_time_idxs = arrays.final_time_idxs[done_rows]
        else:
            final_obs, final_time_idxs = self._no_final_obs, self._no_final_time_idxs
        return VectorStep(
            inputs=inputs,
            actions=arrays.actions,
            rewards=arrays.rewards,
            terminated=arrays.terminated,
            truncated=arrays.truncated,
            done_rows=done_rows,
            final_obs=final_obs,
            final_time_idxs=final_time_idxs,
            metrics=metrics,
            env_names=names,
            reset_rows=rows_that_are(arrays.only_reset),
        )

    def _rename(self, changes: Sequence[tuple[int, Sequence[NameChange]]]) -> None:
        # A step that was returned keeps its list, so names change in a copy.
        if any(group_changes for _, group_changes in changes):
            self.env_names = list(self.env_names)
        for first_row, group_changes in changes:
            for start, stop, name in group_changes:
                self.env_names[first_row + start : first_row + stop] = [name] * (stop - start)

    def _check_states(self, states: Sequence[ExplorationState], expected: int) -> None:
        if len(states) != expected:
            raise ValueError(
                f"states has {len(states)} entries, but {expected} environments have exploration: "
                "load them into a vector environment of the same size and exploration"
            )

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every environment; may be called again."""
        raise NotImplementedError
