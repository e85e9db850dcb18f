"""EnvSlot: one environment of an `EnvGroup` and its rows of the step arrays."""

from dataclasses import dataclass, field
from typing import Any

from amago.envs.amago_env import AMAGOEnv
from amago.envs.vector.shared_arrays import StepArrays
from amago.hindsight import Array, Timestep


@dataclass(slots=True, eq=False)
class EnvSlot:
    """One environment and the rows of the step arrays that it writes to.

    Args:
        number: index of the environment in its group.
        amago_env: the environment.
        env: the exploration wrapper around `amago_env`, or `amago_env` itself.
        start, stop: range of the environment's rows in the group.
        name: current name of the environment.

    Attributes:
        arrays: views of the environment's rows, created once because slicing takes as long as a copy.
        info: info dict of the last step.
        warned: whether the warning about missing final observations was issued.
    """

    number: int
    amago_env: AMAGOEnv
    env: Any
    start: int
    stop: int
    name: str
    arrays: StepArrays = field(init=False)
    info: dict[str, Any] = field(default_factory=dict)
    warned: bool = False

    @property
    def resets_itself(self) -> bool:
        """Whether the environment is batched and autoresets its rows."""
        return self.stop - self.start > 1

    def reset(self, seed: int | None = None) -> None:
        """Resets the environment, starting an episode in every row."""
        timestep, _ = self.env.reset(seed=seed)
        self._write_observation(timestep)
        self.arrays.time_idxs[...] = 0

    def step(self, actions: Array) -> dict[str, Any]:
        """Steps every row and returns the environment's `info`."""
        arrays = self.arrays
        timestep, reward, terminated, truncated, self.info = self.env.step(actions)
        self._write_observation(timestep)
        arrays.actions[...] = timestep.prev_action
        arrays.time_idxs[...] = timestep.time_idx
        arrays.rewards[...] = reward
        arrays.terminated[...] = terminated
        arrays.truncated[...] = truncated
        return self.info

    def _write_observation(self, timestep: Timestep) -> None:
        for key, rows in self.arrays.obs.items():
            rows[...] = timestep.obs[key]
