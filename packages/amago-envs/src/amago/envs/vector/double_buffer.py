"""SplitVectorEnv: two asynchronous vector environments for double buffering: a policy acts for one while the other
steps.
"""

from collections.abc import Sequence
from typing import Any

from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.base import ExplorationState


class SplitVectorEnv:
    """Two vector environments with equal spaces. They are stepped one at a time, through `halves`.

    Everything else acts on both and has the meaning that it has in `VectorEnv`, with the rows of the first half
    before those of the second.

    Args:
        first, second: the halves.

    Raises:
        ValueError: if the halves differ in their spaces.
    """

    def __init__(self, first: AsyncVectorEnv, second: AsyncVectorEnv) -> None:
        for name in ("observation_space", "rl2_space", "action_space"):
            if getattr(first, name) != getattr(second, name):
                raise ValueError(
                    f"the two halves differ in their {name}, {getattr(first, name)} and {getattr(second, name)}: "
                    "environments that are stepped together must share their spaces"
                )
        self.halves = (first, second)
        self.num_envs = first.num_envs + second.num_envs
        self.observation_space = first.observation_space
        self.rl2_space = first.rl2_space
        self.action_space = first.action_space

    @property
    def env_names(self) -> list[str]:
        """The current names of all rows."""
        return self.halves[0].env_names + self.halves[1].env_names

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Calls a method of every environment; `call_wait` must be next."""
        for half in self.halves:
            half.call_async(name, *args, **kwargs)

    def call_wait(self) -> list[Any]:
        """The results of `call_async`, one per environment."""
        return [result for half in self.halves for result in half.call_wait()]

    def render(self) -> None:
        """Renders the first environment."""
        self.halves[0].render()

    def exploration_state(self) -> list[ExplorationState]:
        """The exploration state of every environment; [] without exploration."""
        return [state for half in self.halves for state in half.exploration_state()]

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        """Restores `exploration_state`; raises ValueError if the number of environments differs."""
        count = len(self.halves[0].exploration_state())
        for half, half_states in zip(self.halves, (states[:count], states[count:]), strict=True):
            half.load_exploration_state(half_states)

    def close(self) -> None:
        """Closes both halves; may be called more than once."""
        for half in self.halves:
            half.close()
