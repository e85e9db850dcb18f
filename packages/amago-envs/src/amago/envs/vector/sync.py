"""Environments stepped in the main process, one after the other or as one that is vectorized already.

The quickest choice for environments that take microseconds, and the easiest to debug: exceptions arrive as
they are.
"""

from collections.abc import Sequence

from amago.envs.vector.base import BufferedVectorEnv
from amago.envs.vector.buffers import block_size, carve, layout
from amago.envs.vector.group import EnvGroup
from amago.envs.vector.group_spec import ExplorationSetup, MakeEnv, StepNotes
from amago.envs.vector.types import ExplorationState, PolicyInput, Ready, VectorStep
from amago.hindsight.timestep import Array


class SyncVectorEnv(BufferedVectorEnv):
    """A `VectorEnv` without processes; arguments as in `make_vector_env`."""

    def __init__(
        self,
        make_envs: Sequence[MakeEnv],
        exploration: ExplorationSetup,
        *,
        seed: int | None,
        rank: int,
        role: str,
    ) -> None:
        self._group = EnvGroup(0, in_stages=True)
        self._group.make(make_envs, exploration)
        self._has_exploration = exploration.wrapper_type is not None
        try:
            spec = self._group.spec
            fields = layout(spec.observation_space, spec.rl2_space, spec.action_space)
            num_rows = sum(spec.rows_per_env)
            arrays = carve(fields, num_rows, bytearray(block_size(fields, num_rows)))
            self._group.attach(arrays)
            super().__init__(spec, arrays, seed=seed, rank=rank, role=role)
        except BaseException:
            self._group.close()
            raise

    def reset(self, seed: int | None = None) -> PolicyInput:
        self._check_open()
        return self._after_reset(self._group.reset(self._seeds(seed)))

    def step(self, actions: Array) -> VectorStep:
        return self._step(actions, None)

    @property
    def has_stages(self) -> bool:
        """Whether `step_in_stages` does what `step` does: not where a subclass or a patch has changed that."""
        return type(self).step is _STEP and "step" not in vars(self)

    def step_in_stages(self, actions: Array, ready: Ready) -> VectorStep:
        """`step`, with `ready` called whenever further rows have taken theirs; first rows first, each once."""
        return self._step(actions, ready)

    def _step(self, actions: Array, ready: Ready | None) -> VectorStep:
        self._check_actions(actions)
        notes: StepNotes | None = self._group.step(actions, ready)
        return self._read_step([(0, notes)] if notes is not None else ())

    def render(self) -> None:
        self._check_open()
        self._group.render()

    def exploration_state(self) -> list[ExplorationState]:
        self._check_open()
        return self._group.exploration_state()

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        self._check_open()
        self._check_states(states, len(self._rows_per_env) if self._has_exploration else 0)
        if states:
            self._group.load_exploration_state(states)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._group.close()


_STEP = SyncVectorEnv.step  # the original, so that what is put in its place is noticed
