"""SyncVectorEnv: steps its environments sequentially in the calling process.

It is the fastest choice for environments whose steps take microseconds, and the easiest to debug: exceptions
propagate unchanged.
"""

from collections.abc import Sequence
from typing import Any

from amago.envs.vector.base import ExplorationState, PolicyInput, VectorEnv, VectorStep
from amago.envs.vector.env_group import EnvGroup, ExplorationSetup, MakeEnv
from amago.envs.vector.shared_arrays import StepArrays, carve, layout, required_bytes
from amago.hindsight import Array


class SyncVectorEnv(VectorEnv):
    """A `VectorEnv` without worker processes. `make_vector_env` documents the arguments."""

    def __init__(
        self,
        make_envs: Sequence[MakeEnv],
        exploration: ExplorationSetup,
        *,
        seed: int | None,
        rank: int,
        role: str,
        first_index: int = 0,
    ) -> None:
        self._group = EnvGroup(first_index)
        self._group.make(make_envs, exploration)
        self._has_exploration = exploration.wrapper_type is not None
        try:
            spec = self._group.spec
            super().__init__(
                spec, self._make_arrays(), first_index=first_index, seed=seed, rank=rank, role=role
            )
        except BaseException:
            self._group.close()
            raise

    def _make_arrays(self) -> StepArrays:
        spec = self._group.spec
        fields = layout(spec.observation_space, spec.rl2_space, spec.action_space)
        num_rows = sum(spec.rows_per_env)
        arrays = carve(fields, num_rows, bytearray(required_bytes(fields, num_rows)))
        self._group.attach(arrays)
        return arrays

    def reset(self, seed: int | None = None) -> PolicyInput:
        self._pending = None
        self._check_ready()
        self.env_names = self._names_by_row(self._group.reset(self._seeds(seed)))
        return self._first_inputs()

    def step_async(self, actions: Array) -> None:
        self._check_actions(actions)
        self._actions = actions
        self._pending = "step"

    def step_wait(self) -> VectorStep:
        self._finish_pending("step")
        notes = self._group.step(self._actions)
        return self._read_step([(0, notes)] if notes is not None else ())

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        self._check_ready()
        self._results = self._group.call(name, args, kwargs)
        self._pending = "call"

    def call_wait(self) -> list[Any]:
        self._finish_pending("call")
        return self._results

    def render(self) -> None:
        self._check_ready()
        self._group.render()

    def exploration_state(self) -> list[ExplorationState]:
        self._check_ready()
        return self._group.exploration_state()

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        self._check_ready()
        self._check_states(states, self._has_exploration)
        if states:
            self._group.load_exploration_state(states)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._group.close()
