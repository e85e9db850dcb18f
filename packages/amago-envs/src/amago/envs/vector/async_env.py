"""Environments in worker processes: several per process, shared memory, one round trip per step.

The workers form two parts, which can be stepped in turns: while the environments of one take their step, a policy
acts for those of the other (double buffering).
"""

import pickle
from collections.abc import Sequence
from multiprocessing.context import BaseContext

from amago.envs.vector.base import Part
from amago.envs.vector.group_spec import ExplorationSetup, MakeEnv, StepNotes
from amago.envs.vector.types import ExplorationState, PolicyInput, VectorStep
from amago.envs.vector.worker import GET_EXPLORATION, RENDER, RESET, SET_EXPLORATION, STEP
from amago.envs.vector.workers import WorkerProcesses
from amago.hindsight.timestep import Array

Notes = list[tuple[int, StepNotes]]
"""What the groups of environments tell beside their arrays, each with the first row of the group."""


class AsyncVectorEnv(WorkerProcesses):
    """A `PartedVectorEnv` over worker processes; arguments as in `WorkerProcesses`.

    The parts are the rows of the first half of the workers and those of the others; one worker makes one part.
    Whatever else is asked while a part is in flight waits until that step is done; `receive` still returns it,
    unless a reset came in between.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[MakeEnv]],
        exploration: ExplorationSetup,
        context: BaseContext,
        *,
        seed: int | None,
        rank: int,
        role: str,
        env_timeout: float | None = None,
    ) -> None:
        super().__init__(
            groups, exploration, context, seed=seed, rank=rank, role=role, env_timeout=env_timeout
        )
        workers = len(groups)
        bounds = [0, workers // 2, workers] if workers > 1 else [0, workers]
        self._workers_of = [range(*bounds[i : i + 2]) for i in range(len(bounds) - 1)]
        starts = [*self._first_rows, self.num_envs]
        self._parts = [
            Part(slice(starts[of.start], starts[of.stop]), self._arrays) for of in self._workers_of
        ]
        self.parts = tuple(part.rows for part in self._parts)
        # By number of the part that is in flight: what its workers answered, None as long as nobody has looked
        self._in_flight: dict[int, Notes | None] = {}

    def reset(self, seed: int | None = None) -> PolicyInput:
        self._finish_steps()
        self._in_flight.clear()
        seeds = self._seeds(seed)
        self._doing = "resetting"
        names: list[str] = []
        try:
            for i, part in enumerate(self._by_worker(seeds)):
                self._send(i, RESET + pickle.dumps(part))
            for i in range(len(self._conns)):
                names += self._receive(i)
        except BaseException:
            # As in step.
            self.close()
            raise
        return self._after_reset(names)

    def step(self, actions: Array) -> VectorStep:
        if self._in_flight:
            raise RuntimeError(
                f"part {min(self._in_flight)} is in flight: receive its step before the next step"
            )
        self._check_actions(actions)
        self._arrays.policy_actions[...] = actions
        everyone = range(len(self._conns))
        try:
            self._ask_to_step(everyone)
            notes = self._notes_of(everyone)
        except BaseException:
            # Interrupted between question and answer, the next call would take this step's answers for its own.
            self.close()
            raise
        return self._read_step(notes)

    def inputs_of(self, part: int) -> PolicyInput:
        return self._parts[part].inputs

    def send(self, part: int, actions: Array) -> None:
        if part in self._in_flight:
            raise RuntimeError(
                f"part {part} is in flight: receive its step before it is sent the next actions"
            )
        target = self._parts[part].arrays.policy_actions
        self._check_actions(actions, target)
        target[...] = actions
        try:
            self._in_flight[part] = None
            self._ask_to_step(self._workers_of[part])
        except BaseException:
            self.close()
            raise

    def receive(self, part: int) -> VectorStep:
        self._check_open()
        if part not in self._in_flight:
            raise RuntimeError(f"part {part} is not in flight: send it actions first")
        try:
            notes = self._in_flight[part]
            if notes is None:
                notes = self._notes_of(self._workers_of[part])
            del self._in_flight[part]
        except BaseException:
            self.close()
            raise
        return self._read_step(notes, self._parts[part])

    def _ask_to_step(self, workers: range) -> None:
        self._doing = "stepping"
        for i in workers:
            self._send(i, STEP)

    def _notes_of(self, workers: range) -> Notes:
        """What the workers answer to their step."""
        notes: Notes = []
        for i in workers:
            if (note := self._receive(i)) is not None:
                notes.append((self._first_rows[i], note))
        return notes

    def _finish_steps(self) -> None:
        """Lets the parts in flight arrive, so that the next answers are those to the next question."""
        self._check_open()
        try:
            for part, notes in self._in_flight.items():
                if notes is None:
                    self._in_flight[part] = self._notes_of(self._workers_of[part])
        except BaseException:
            self.close()
            raise

    def render(self) -> None:
        self._finish_steps()
        self._doing = "rendering"
        self._send(0, RENDER)
        self._receive(0)

    def exploration_state(self) -> list[ExplorationState]:
        self._finish_steps()
        for i in range(len(self._conns)):
            self._send(i, GET_EXPLORATION)
        return [state for i in range(len(self._conns)) for state in self._receive(i)]

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        self._finish_steps()
        self._check_states(states, len(self._rows_per_env) if self._has_exploration else 0)
        if not states:
            return
        for i, part in enumerate(self._by_worker(states)):
            self._send(i, SET_EXPLORATION + pickle.dumps(part))
        for i in range(len(self._conns)):
            self._receive(i)
