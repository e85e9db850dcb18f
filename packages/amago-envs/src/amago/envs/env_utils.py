"""Utilities: space conversions, action wrappers, the number of cores, vector environments as gymnasium ones.

`AlreadyVectorizedEnv` and `DummyAsyncVectorEnv` give `amago.envs.vector` the interface of a gymnasium environment.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import gymnasium as gym
from annotated_types import MinLen

from amago.envs.actions import ContinuousActionWrapper, DiscreteActionWrapper, MultiBinaryActionWrapper
from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import check_arguments
from amago.envs.observations import extend_box_obs_space_by, space_convert
from amago.envs.vector import PolicyInput, VectorEnv, make_vector_env
from amago.envs.vector.make import available_cores
from amago.hindsight import Array

__all__ = [
    "AlreadyVectorizedEnv",
    "ContinuousActionWrapper",
    "DiscreteActionWrapper",
    "DummyAsyncVectorEnv",
    "MultiBinaryActionWrapper",
    "available_cores",
    "extend_box_obs_space_by",
    "space_convert",
]

Inputs = tuple[dict[str, Array], Array, Array]


class _VectorAdapter(gym.Env[Inputs, Array]):
    """A vector environment with the interface of a gymnasium environment."""

    def __init__(self, vector_env: VectorEnv) -> None:
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        self.observation_space = vector_env.observation_space  # type: ignore[assignment] # of one row
        self.action_space = vector_env.action_space

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Inputs, dict[str, Any]]:
        """Starts an episode in every row; takes `seed`. Returns `((obs, rl2s, time_idxs), {})`."""
        seed = kwargs.get("seed", args[0] if args else None)
        return _as_tuple(self.vector_env.reset(seed=seed)), {}

    def render(self) -> None:
        """Renders the first environment."""
        self.vector_env.render()

    def step(self, action: Array) -> Any:
        """Steps all rows; rows whose episode ends are reset in the same step.

        Args:
            action: (N, ...) policy actions, one row for each environment.

        Returns:
            `((obs, rl2s (N, 1 + A), time_idxs (N, 1)), rewards (N,), terminated (N,), truncated (N,), info)` with
            the whole `VectorStep` as `info["step"]`. The arrays are valid until the next step.
        """
        step = self.vector_env.step(action)
        return _as_tuple(step.inputs), step.rewards, step.terminated, step.truncated, {"step": step}

    def close(self) -> None:
        """Closes every environment."""
        self.vector_env.close()


def _as_tuple(inputs: PolicyInput) -> Inputs:
    return inputs.obs, inputs.rl2s, inputs.time_idxs.reshape(-1, 1)


class AlreadyVectorizedEnv(_VectorAdapter):
    """One environment that steps many rows itself (`AMAGOEnv(env, batched_envs=N)`).

    Args:
        env_funcs: one callable that makes the environment.

    Raises:
        ValueError: unless there is exactly one.
    """

    @check_arguments
    def __init__(self, env_funcs: Sequence[Callable[[], AMAGOEnv]]) -> None:
        if len(env_funcs) != 1:
            raise ValueError(
                f"env_funcs has {len(env_funcs)} callables; a vectorized environment is made by one"
            )
        super().__init__(make_vector_env(env_funcs, env_mode="already_vectorized"))


class DummyAsyncVectorEnv(_VectorAdapter):
    """Steps its environments sequentially in this process, for debugging and for very fast environments.

    Args:
        env_funcs: callables that make one environment each.
    """

    @check_arguments
    def __init__(self, env_funcs: Annotated[Sequence[Callable[[], AMAGOEnv]], MinLen(1)]) -> None:
        super().__init__(make_vector_env(env_funcs, env_mode="sync"))
