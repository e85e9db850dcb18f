"""EnvGroup: steps environments sequentially and writes their results to rows of the step arrays.

SyncVectorEnv has one group, AsyncVectorEnv one per worker process; so both return the same numbers.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.amago_env import AMAGOEnv
from amago.envs.gymnasium_compat import find_attribute
from amago.envs.metrics import extract_metrics, extract_vector_metrics
from amago.envs.seeding import stream
from amago.envs.vector.autoreset import autoreset
from amago.envs.vector.base import ExplorationState
from amago.envs.vector.batched_stepper import BatchedStepper, can_be_batched, overridden_methods
from amago.envs.vector.env_slot import EnvSlot
from amago.envs.vector.shared_arrays import StepArrays, layout
from amago.hindsight import Array

MakeEnv = Callable[[], AMAGOEnv]
NameChange = tuple[int, int, str]  # rows [start, stop) and their new name


@dataclass(slots=True, kw_only=True)
class StepNotes:
    """Results of a step that do not fit into arrays; row indices are relative to the group.

    Args:
        metrics: (row, {name: value}) of reported metrics.
        names_in_step: names that changed during the step, so that its transitions already have them.
        names_after_reset: names that changed with the reset after an episode's end.
    """

    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    names_in_step: list[NameChange] = field(default_factory=list)
    names_after_reset: list[NameChange] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GroupSpec:
    """Spaces, numbers of rows and names of the environments of a group.

    `overridden` names the methods, such as "MyEnv.step", because of which environments are stepped one by one.
    """

    observation_space: gym.spaces.Dict
    rl2_space: gym.spaces.Box
    action_space: gym.Space[Any]
    rows_per_env: list[int]
    names: list[str]
    overridden: list[str] = field(default_factory=list)


def merge_specs(specs: Sequence[GroupSpec], first_index: int) -> GroupSpec:
    """Merges the specs of several groups into one; environment indices start at `first_index`.

    Raises:
        ValueError: if observations differ in keys, shapes or dtypes, or the action spaces differ.
    """
    first = specs[0]
    fields = layout(first.observation_space, first.rl2_space, first.action_space)
    index = first_index
    for spec in specs:
        for name, same in (
            ("action_space", spec.action_space == first.action_space),
            (
                "observation_space",
                layout(spec.observation_space, spec.rl2_space, spec.action_space) == fields,
            ),
        ):
            if not same:
                raise ValueError(
                    f"environments {first_index} and {index} differ in their {name}, {getattr(first, name)} and "
                    f"{getattr(spec, name)}: environments that are stepped together must share their spaces"
                )
        index += len(spec.names)
    return GroupSpec(
        observation_space=first.observation_space,
        rl2_space=first.rl2_space,
        action_space=first.action_space,
        rows_per_env=[rows for spec in specs for rows in spec.rows_per_env],
        names=[name for spec in specs for name in spec.names],
        overridden=list(dict.fromkeys(name for spec in specs for name in spec.overridden)),
    )


@dataclass(slots=True, kw_only=True)
class ExplorationSetup:
    """The exploration wrapper of every environment and the seed of its random streams."""

    wrapper_type: type[Any] | None = None
    seed: int | None = None
    rank: int = 0


class EnvGroup:
    """Environments that one process steps; call `make`, then `attach`, then the other methods.

    Args:
        first_index: number of the first environment, for its random stream and error messages.
    """

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.active = 0  # slot of the environment that was used last, for error messages
        self._slots: list[EnvSlot] = []
        self._batched: BatchedStepper | None = None

    def make(self, make_envs: Sequence[MakeEnv], exploration: ExplorationSetup) -> None:
        """Makes the environments, one per callable; if one fails, those made before it are closed.

        Raises:
            TypeError: if a callable does not return an AMAGOEnv.
        """
        try:
            for make_env in make_envs:
                self.active = len(self._slots)
                self._slots.append(self._make_slot(make_env, exploration))
        except BaseException:
            self.close()
            raise

    def _make_slot(self, make_env: MakeEnv, exploration: ExplorationSetup) -> EnvSlot:
        index = self.first_index + self.active
        amago_env = make_env()
        if not isinstance(amago_env, AMAGOEnv):
            raise TypeError(
                f"the callable of environment {index} returned {type(amago_env).__name__}; "
                "it must return the environment wrapped in AMAGOEnv(env, env_name=...)"
            )
        env: Any = amago_env
        if exploration.wrapper_type is not None:
            env = exploration.wrapper_type(amago_env)
            env.seed_exploration(stream(exploration.seed, "exploration", exploration.rank, index))
        start = self._slots[-1].stop if self._slots else 0
        return EnvSlot(self.active, amago_env, env, start, start + amago_env.batched_envs, amago_env.env_name)

    @property
    def spec(self) -> GroupSpec:
        """The spec of all environments; raises ValueError if their spaces differ."""
        return merge_specs(
            [
                GroupSpec(
                    observation_space=slot.amago_env.mapped_observation_space,
                    rl2_space=slot.amago_env.rl2_space,
                    action_space=slot.amago_env.action_space,
                    rows_per_env=[slot.stop - slot.start],
                    names=[slot.name],
                    overridden=overridden_methods(slot.env) if len(self._slots) > 1 else [],
                )
                for slot in self._slots
            ],
            self.first_index,
        )

    @property
    def active_name(self) -> str:
        """Number and name of the environment that was used last, for error messages."""
        index = self.first_index + self.active
        return (
            f"{index} ({self._slots[self.active].name!r})" if self.active < len(self._slots) else f"{index}"
        )

    def active_rows(self, actions: Array) -> Array:
        """The rows of `actions` that the environment used last received."""
        slot = self._slots[self.active]
        return actions[slot.start : slot.stop]

    def attach(self, arrays: StepArrays) -> None:
        """Sets the rows that the environments write into."""
        self._arrays = arrays
        for slot in self._slots:
            slot.arrays = arrays.rows(slot.start, slot.stop)
        envs = [slot.env for slot in self._slots]
        self._batched = BatchedStepper(envs, arrays) if can_be_batched(envs) else None
        self._slot_of_row = [slot for slot in self._slots for _ in range(slot.start, slot.stop)]
        self._renamable = [slot for slot in self._slots if not slot.amago_env.name_is_fixed]

    def reset(self, seeds: Sequence[int | None]) -> list[str]:
        """Starts a new episode everywhere; `seeds` has one per environment. Returns the name of each."""
        for i, (slot, seed) in enumerate(zip(self._slots, seeds, strict=True)):
            self.active = i
            slot.reset(seed)
            slot.name = slot.amago_env.env_name
        for name in ("rl2s", "actions", "rewards", "terminated", "truncated"):
            getattr(self._arrays, name)[:] = 0
        return [slot.name for slot in self._slots]

    def step(self, actions: Array) -> StepNotes | None:
        """Steps every environment with its rows of `actions`; resets those whose episode ended."""
        arrays = self._arrays
        metrics = self._step_one_by_one(actions) if self._batched is None else self._step_batched(actions)
        in_step = self._changed_names(self._renamable)
        after_reset: list[NameChange] = []
        arrays.rl2s[:, 0] = arrays.rewards
        arrays.rl2s[:, 1:] = arrays.actions
        done = arrays.terminated | arrays.truncated
        if np.count_nonzero(done):
            after_reset = self._changed_names(self._autoreset(done))
        if metrics or in_step or after_reset:
            return StepNotes(metrics=metrics, names_in_step=in_step, names_after_reset=after_reset)
        return None

    def _changed_names(self, slots: Sequence[EnvSlot]) -> list[NameChange]:
        changes = []
        for slot in slots:
            self.active = slot.number
            name = slot.amago_env.env_name
            if name is not slot.name and name != slot.name:
                slot.name = name
                changes.append((slot.start, slot.stop, name))
        return changes

    def _step_batched(self, actions: Array) -> list[tuple[int, dict[str, float]]]:
        assert self._batched is not None
        try:
            infos = self._batched.step(actions)
        except BaseException:
            self.active = self._batched.active
            raise
        metrics = []
        for row, info in infos:
            self.active = row
            if found := extract_metrics(info):
                metrics.append((row, found))
        return metrics

    def _step_one_by_one(self, actions: Array) -> list[tuple[int, dict[str, float]]]:
        metrics: list[tuple[int, dict[str, float]]] = []
        for slot in self._slots:
            self.active = slot.number
            info = slot.step(actions[slot.start : slot.stop])
            if slot.resets_itself:
                by_row = extract_vector_metrics(info, slot.stop - slot.start)
                metrics += [(slot.start + row, found) for row, found in by_row]
            elif found := extract_metrics(info):
                metrics.append((slot.start, found))
        return metrics

    def _autoreset(self, done: Array) -> list[EnvSlot]:
        """Resets the rows whose episode ended; returns the slots whose names may have changed with it."""
        finished: dict[EnvSlot, list[int]] = {}
        for row in np.flatnonzero(done).tolist():
            slot = self._slot_of_row[row]
            finished.setdefault(slot, []).append(row - slot.start)
        was_reset = []
        for slot, rows in finished.items():
            self.active = slot.number
            if autoreset(slot, rows):
                was_reset.append(slot)
        return was_reset

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Calls the method `name` of every environment, or reads the attribute; one result per environment.

        Raises:
            AttributeError: if an environment does not have it.
        """
        results = []
        for slot in self._slots:
            self.active = slot.number
            attribute = find_attribute(slot.env, name)
            results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return results

    def render(self) -> None:
        """Renders the first environment of the group."""
        self._slots[0].env.render()

    def exploration_state(self) -> list[ExplorationState]:
        """One state per environment; [] without exploration."""
        return [slot.env.exploration_state() for slot in self._slots if slot.env is not slot.amago_env]

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        """Restores `exploration_state`."""
        for slot, state in zip(self._slots, states, strict=True):
            slot.env.load_exploration_state(state)

    def close(self) -> None:
        """Closes the environments, the last one first."""
        with contextlib.ExitStack() as stack:
            for slot in self._slots:
                stack.callback(slot.env.close)
            self._slots = []
