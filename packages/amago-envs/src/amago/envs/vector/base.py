"""VectorEnv, the base class of vector environments, and its inputs and results.

Shapes: N = environment rows, A = width of the action representation, K = rows whose episode ended in a step.
An environment with `batched_envs` = E fills E consecutive rows.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np

from amago.envs.seeding import stream_seed
from amago.hindsight import Array

if TYPE_CHECKING:
    from amago.envs.vector.env_group import GroupSpec, NameChange, StepNotes
    from amago.envs.vector.shared_arrays import StepArrays

ExplorationState = dict[str, Any]
Self = TypeVar("Self", bound="VectorEnv")


@dataclass(slots=True, kw_only=True, eq=False)
class PolicyInput:
    """Inputs of the policy. The next step or reset overwrites the arrays.

    Args:
        obs: observations by key, each (N, *shape) in the dtype of its space.
        rl2s: (N, 1 + A) float32, previous reward and previous action.
        time_idxs: (N,) int64, steps since the start of the row's episode.
    """

    obs: dict[str, Array]
    rl2s: Array
    time_idxs: Array


@dataclass(slots=True, kw_only=True, eq=False)
class VectorStep:
    """Results of one step of all rows. The next step or reset overwrites the arrays of N rows.

    Args:
        inputs: the policy's next inputs; finished rows hold the first timestep of their next episode.
        actions: (N, A) float32 in [-1, 1], representation of the executed actions, including exploration
            noise.
        rewards: (N,) float32.
        terminated: (N,) bool.
        truncated: (N,) bool.
        done_rows: (K,) int64, rows whose episode ended in this step, ascending.
        final_obs: final observations of the done rows by key, each (K, *shape).
        final_time_idxs: (K,) int64, time indices of the final observations. 0: the row was reset in this step and
            made no transition. Either its episode had ended in the step before (gymnasium's autoreset mode
            NEXT_STEP), or an AMAGOEnv subclass has reset a broken environment.
        metrics: (row, {name: value}) for every row whose `info` reported metrics in this step.
        env_names: N names of the environments before any autoreset in this step.
    """

    inputs: PolicyInput
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    done_rows: Array
    final_obs: dict[str, Array]
    final_time_idxs: Array
    metrics: list[tuple[int, dict[str, float]]]
    env_names: list[str]

    @property
    def reset_rows(self) -> Array:
        """(R,) int64, the done rows that were reset in this step and made no transition."""
        rows: Array = self.done_rows[self.final_time_idxs == 0]
        return rows


class EnvWorkerError(RuntimeError):
    """A worker process raised an exception, timed out or died.

    The vector environment is closed before the error is raised. The message contains the environment's index
    and name, the action, and the worker's traceback if available.
    """


class VectorEnv(ABC):
    """Base class of vector environments: steps N rows; a row whose episode ends is reset in the same step.

    Args:
        spec: spaces, row counts and names of all environments.
        arrays: step arrays of N rows that the environments write to.
        first_index: global index of the first environment, which selects its random stream.
        seed, rank, role: select the environments' random streams.

    Attributes:
        num_envs: number of rows N.
        observation_space, rl2_space, action_space: spaces of one row, as in `AMAGOEnv`.
        env_names: current environment name of each row.
    """

    def __init__(
        self,
        spec: "GroupSpec",
        arrays: "StepArrays",
        *,
        first_index: int,
        seed: int | None,
        rank: int,
        role: str,
    ) -> None:
        self.observation_space: gym.spaces.Dict = spec.observation_space
        self.rl2_space: gym.spaces.Box = spec.rl2_space
        self.action_space: gym.Space[Any] = spec.action_space
        self.num_envs = sum(spec.rows_per_env)
        self._rows_per_env = spec.rows_per_env
        self._arrays = arrays
        self._inputs = arrays.policy_input()
        self._first_index, self._seed, self._rank, self._role = first_index, seed, rank, role
        self._was_reset = self._warned = False
        self._closed = False
        self._pending: str | None = None
        self.env_names: list[str] = self._names_by_row(spec.names)
        if spec.overridden:
            warnings.warn(
                "environments are stepped one by one, which is slower, because they override "
                f"{' and '.join(spec.overridden)}; the results are the same",
                stacklevel=2,
            )

    @abstractmethod
    def reset(self, seed: int | None = None) -> PolicyInput:
        """Starts a new episode in every row and discards a pending step or call.

        Args:
            seed: seeds environment i from the stream (seed, role, rank, i). None keeps the current streams;
                in the first reset, None uses the seed passed to the constructor.
        """

    def step(self, actions: Array) -> VectorStep:
        """Steps every row.

        Args:
            actions: (N, 1) integers (Discrete), (N, K) integers (MultiDiscrete), (N, A) zeros and ones
                (MultiBinary) or (N, A) floats in [-1, 1] (Box).

        Raises:
            ValueError, TypeError: if the actions have the wrong shape or dtype.
            EnvWorkerError: if a worker process raised an exception, timed out or died.
        """
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def step_async(self, actions: Array) -> None:
        """Starts a step without waiting for it; call `step_wait` next. Arguments and errors as in `step`."""

    @abstractmethod
    def step_wait(self) -> VectorStep:
        """Waits for the step started by `step_async`; raises RuntimeError if no step is pending."""

    @abstractmethod
    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Calls a method of every environment, on the outermost wrapper that has it; call `call_wait` next.

        Args:
            name: name of a method or attribute. The result of a non-callable attribute is its value.
            args, kwargs: arguments of the method, the same for every environment.
        """

    @abstractmethod
    def call_wait(self) -> list[Any]:
        """Returns one result of `call_async` per environment; raises RuntimeError if no call is pending."""

    @abstractmethod
    def render(self) -> None:
        """Renders the first environment."""

    @abstractmethod
    def exploration_state(self) -> list[ExplorationState]:
        """Returns the exploration state of every environment, for checkpoints; [] without exploration."""

    @abstractmethod
    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        """Restores `exploration_state`; raises ValueError if the number of environments differs."""

    @abstractmethod
    def close(self) -> None:
        """Closes every environment and stops every worker process; may be called more than once."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Helpers for subclasses

    def _names_by_row(self, names: Sequence[str]) -> list[str]:
        return [name for name, rows in zip(names, self._rows_per_env, strict=True) for _ in range(rows)]

    def _seeds(self, seed: int | None) -> list[int | None]:
        """Returns the reset seed of every environment; None keeps its current stream."""
        if seed is None and not self._was_reset:
            seed = self._seed
        self._was_reset = True
        indices = range(self._first_index, self._first_index + len(self._rows_per_env))
        return [None if seed is None else stream_seed(seed, self._role, self._rank, i) for i in indices]

    def _first_inputs(self) -> PolicyInput:
        """The inputs after a reset; warns once of an observation that is not finite."""
        for key, array in self._inputs.obs.items():
            if array.dtype.kind == "f" and not self._warned and not np.isfinite(array).all():
                self._warned = True
                row = int(np.argwhere(~np.isfinite(array))[0, 0])
                warnings.warn(
                    f"environment {self._first_index + row} ({self.env_names[row]!r}) returned NaN or infinity in "
                    f"its first observation {key!r}: networks cannot learn from it, so replace such values",
                    stacklevel=3,
                )
        return self._inputs

    def _check_ready(self) -> None:
        """Raises RuntimeError if the environment is closed or an asynchronous call is pending."""
        if self._closed:
            raise RuntimeError("the vector environment is closed: make a new one")
        if self._pending is not None:
            raise RuntimeError(f"{self._pending}_async was called: call {self._pending}_wait() first")

    def _finish_pending(self, name: str) -> None:
        if self._closed:
            raise RuntimeError("the vector environment is closed: make a new one")
        if self._pending != name:
            raise RuntimeError(f"{name}_wait was called without {name}_async: call {name}_async() first")
        self._pending = None

    def _check_actions(self, actions: Array) -> None:
        """Raises unless the environments were reset and `actions` have the expected shape and dtype."""
        self._check_ready()
        if not self._was_reset:
            raise RuntimeError("step was called before the first reset: call reset() first")
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

    def _read_step(self, notes: Sequence[tuple[int, "StepNotes"]]) -> VectorStep:
        """Builds the VectorStep from the arrays that the environments have written.

        Args:
            notes: (first row of the group, notes) of each environment group with notes.
        """
        arrays = self._arrays
        metrics: list[tuple[int, dict[str, float]]] = []
        if notes:
            for first_row, note in notes:
                metrics += [(first_row + row, found) for row, found in note.metrics]
            self._rename([(first_row, note.names_in_step) for first_row, note in notes])
        names = self.env_names
        if notes:
            self._rename([(first_row, note.names_after_reset) for first_row, note in notes])
        done_rows = np.flatnonzero(arrays.terminated | arrays.truncated)
        return VectorStep(
            inputs=self._inputs,
            actions=arrays.actions,
            rewards=arrays.rewards,
            terminated=arrays.terminated,
            truncated=arrays.truncated,
            done_rows=done_rows,
            final_obs={key: array[done_rows] for key, array in arrays.final_obs.items()},
            final_time_idxs=arrays.final_time_idxs[done_rows],
            metrics=metrics,
            env_names=names,
        )

    def _rename(self, changes: Sequence[tuple[int, Sequence["NameChange"]]]) -> None:
        # Copied because earlier VectorSteps reference the current list.
        if any(group_changes for _, group_changes in changes):
            self.env_names = list(self.env_names)
        for first_row, group_changes in changes:
            for start, stop, name in group_changes:
                self.env_names[first_row + start : first_row + stop] = [name] * (stop - start)

    def _check_states(self, states: Sequence[ExplorationState], has_exploration: bool) -> None:
        expected = len(self._rows_per_env) if has_exploration else 0
        if len(states) != expected:
            raise ValueError(
                f"states has {len(states)} entries, but {expected} environments have exploration: "
                "use a vector environment with the same number of environments and the same exploration"
            )
