"""The interface of vector environments, and the arrays and checks that all of them share.

Shapes: N = rows (actors), A = width of the action representation, K = rows whose episode ended in a step. An
environment with `batched_envs` E fills E consecutive rows.
"""

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
    """The inputs of a policy's action. The arrays are reused: they are valid until the next step or reset.

    Args:
        obs: observation by key, each (N, *shape) in the dtype of its space.
        rl2s: (N, 1 + A) float32, previous reward and previous action.
        time_idxs: (N,) int64, steps since the start of the row's episode.
    """

    obs: dict[str, Array]
    rl2s: Array
    time_idxs: Array


@dataclass(slots=True, kw_only=True, eq=False)
class VectorStep:
    """One step of all rows. Arrays over N rows are reused: they are valid until the next step or reset.

    Args:
        inputs: the policy's next inputs; finished rows hold the first timestep of their next episode.
        actions: (N, A) float32 in [-1, 1], the representation of the executed actions, exploration noise included.
        rewards: (N,) float32.
        terminated: (N,) bool.
        truncated: (N,) bool.
        done_rows: (K,) int64, rows whose episode ended in this step, ascending.
        final_obs: last observation of those episodes by key, each (K, *shape).
        final_time_idxs: (K,) int64, the time index of that observation.
        metrics: (row, {name: value}) for every row whose `info` reported metrics in this step.
        env_names: N names, of the episodes that the transitions belong to.
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


class EnvWorkerError(RuntimeError):
    """An environment raised in its worker process, did not answer in time, or the process died.

    The vector environment is closed then. The message holds the environment's number and name, the action, and
    the worker's traceback if there is one.
    """


class VectorEnv(ABC):
    """Steps N rows of environments together; a row whose episode ends is reset within the same step.

    Args:
        spec: of all environments.
        arrays: N rows that the environments write into.
        first_index: number of the first environment, for its random stream.
        seed, rank, role: of the environments' random streams.

    Attributes:
        num_envs: N.
        observation_space, rl2_space, action_space: of one row, as `AMAGOEnv` has them.
        env_names: the N current names.
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
        self._was_reset = False
        self._closed = False
        self._pending: str | None = None
        self.env_names: list[str] = self._names_by_row(spec.names)

    @abstractmethod
    def reset(self, seed: int | None = None) -> PolicyInput:
        """Starts a new episode in every row; discards a step or call that was begun and not waited for.

        Args:
            seed: environment i is seeded from the stream of (seed, role, rank, i). None keeps the environments'
                current streams; the first reset then takes the seed that the vector environment was made with.
        """

    def step(self, actions: Array) -> VectorStep:
        """Steps every row.

        Args:
            actions: (N, 1) integers (Discrete), (N, K) integers (MultiDiscrete), (N, A) zeros and ones
                (MultiBinary) or (N, A) floats in [-1, 1] (Box).

        Raises:
            ValueError, TypeError: if the actions have another shape or kind.
            EnvWorkerError: if an environment raised in its worker process, or the process died.
        """
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def step_async(self, actions: Array) -> None:
        """Begins a step; arguments and errors as in `step`. `step_wait` must be called next."""

    @abstractmethod
    def step_wait(self) -> VectorStep:
        """Waits for the step that `step_async` began; raises RuntimeError if there is none."""

    @abstractmethod
    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Calls a method of every environment, on the outermost wrapper that has it; `call_wait` must be next.

        Args:
            name: of the method. The value of any other attribute is returned as it is.
            args, kwargs: passed to every environment's method.
        """

    @abstractmethod
    def call_wait(self) -> list[Any]:
        """The results of `call_async`, one per environment; raises RuntimeError if there is no call."""

    @abstractmethod
    def render(self) -> None:
        """Renders the first environment."""

    @abstractmethod
    def exploration_state(self) -> list[ExplorationState]:
        """The state of every environment's exploration, for checkpoints; [] without exploration."""

    @abstractmethod
    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        """Restores `exploration_state`; raises ValueError if the number of environments differs."""

    @abstractmethod
    def close(self) -> None:
        """Closes every environment and ends every worker process; may be called again."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Helpers of the subclasses

    def _names_by_row(self, names: Sequence[str]) -> list[str]:
        return [name for name, rows in zip(names, self._rows_per_env, strict=True) for _ in range(rows)]

    def _seeds(self, seed: int | None) -> list[int | None]:
        """The seed of every environment for a reset; all None keeps their streams."""
        if seed is None and not self._was_reset:
            seed = self._seed
        self._was_reset = True
        indices = range(self._first_index, self._first_index + len(self._rows_per_env))
        return [None if seed is None else stream_seed(seed, self._role, self._rank, i) for i in indices]

    def _check_ready(self) -> None:
        """Raises RuntimeError if the environment is closed or an asynchronous call has not been waited for."""
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
        """Raises unless `actions` have the right shape and kind and the environments were reset."""
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
        """The step that the environments have just written into the arrays.

        Args:
            notes: of groups of environments, each with the first row of its group.
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
        # A returned step keeps its list, so names change in a copy.
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
                "load them into a vector environment of the same size and exploration"
            )
