"""What every kind of vector environment takes, returns and raises.

Shapes: N = rows (actors), A = width of the action representation, K = rows that finished in a step. An
environment with `batched_envs` E fills E consecutive rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.hindsight.timestep import Array

ExplorationState = dict[str, Any]
NO_ROWS: Array = np.empty(0, np.int64)


@dataclass(slots=True, kw_only=True, eq=False)
class PolicyInput:
    """What a policy acts on. The arrays are used again: they hold until the next step or reset.

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
    """One step of all rows. Arrays over N rows are used again: they hold until the next step or reset.

    Args:
        inputs: what the policy acts on next; finished rows hold the first timestep of their next episode.
        actions: (N, A) float32 in [-1, 1], the representation of what was executed, exploration noise
            included.
        rewards: (N,) float32.
        terminated: (N,) bool.
        truncated: (N,) bool.
        done_rows: (K,) int64, rows whose episode ended in this step, ascending.
        final_obs: last observation of those episodes by key, each (K, *shape).
        final_time_idxs: (K,) int64, the time index of that observation.
        metrics: (row, {name: value}) for every row whose `info` reported metrics in this step.
        env_names: N names, of the episodes that the transitions belong to.
        reset_rows: (K',) int64, rows that were not stepped but reset, by a gymnasium VectorEnv in NEXT_STEP mode:
            what stands in them is no transition, and their episode begins with `inputs`.
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
    reset_rows: Array = field(default_factory=lambda: NO_ROWS)


class VectorEnv(Protocol):
    """Steps N rows of environments together; episodes that end start anew within the same step.

    `observation_space`, `rl2_space` and `action_space` are those of one row, as `AMAGOEnv` has them;
    `env_names` are the N current names.
    """

    num_envs: int
    observation_space: gym.spaces.Dict
    rl2_space: gym.spaces.Box
    action_space: gym.Space[Any]
    env_names: list[str]

    def reset(self, seed: int | None = None) -> PolicyInput:
        """Starts a new episode in every row.

        Args:
            seed: environment i is seeded from the stream of (seed, role, rank, i). None keeps the streams
                that the environments have; the first reset then takes the seed that the vector environment
                was made with.
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

    def render(self) -> None:
        """Renders the first environment."""

    def exploration_state(self) -> list[ExplorationState]:
        """The state of every environment's exploration, for checkpoints; [] without exploration."""

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        """Restores what `exploration_state` gave; raises ValueError if the number of environments differs."""

    def close(self) -> None:
        """Closes every environment and ends every process; may be called again."""


Ready = Callable[[slice, npt.NDArray[np.bool_] | None], None]
"""Called with R rows that hold what the policy acts on next, and those, (R,), where an episode begins, or None."""


@runtime_checkable
class PartedVectorEnv(VectorEnv, Protocol):
    """A vector environment whose rows can also be stepped in parts, each on its own.

    A part is in flight from `send` to `receive`. `parts` are the rows of each, all of them together.
    """

    parts: tuple[slice, ...]

    def inputs_of(self, part: int) -> PolicyInput:
        """What a policy acts on in the rows of a part, as views of the arrays that `reset` and `step` return."""

    def send(self, part: int, actions: Array) -> None:
        """Begins a step of the part's rows and does not wait for it; `actions` as in `step`.

        Raises:
            RuntimeError: if the part is in flight.
            ValueError, TypeError, EnvWorkerError: as in `step`.
        """

    def receive(self, part: int) -> VectorStep:
        """Waits for the step that was sent; its rows are numbered from 0.

        Raises:
            RuntimeError: if the part is not in flight.
            EnvWorkerError: as in `step`.
        """


class EnvWorkerError(RuntimeError):
    """An environment raised in its worker process, or the process died.

    The vector environment is closed then. The message holds the environment's number and name, the action, and
    the traceback of the worker.
    """
