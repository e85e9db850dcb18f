"""Lets `AMAGOEnv(env, batched_envs=N)` take a gymnasium VectorEnv as it is.

An `AMAGOEnv` expects the spaces of one environment, and a `gymnasium.Env`; a VectorEnv has batched spaces
beside those of one, and from gymnasium 1.0 on is no `Env`.
"""

from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv


class VectorEnvAdapter(gym.Env[Any, Any]):
    """A gymnasium VectorEnv as an environment that has the spaces of one row.

    Args:
        vector_env: resets its environments within the step that ends an episode.
        batched_envs: the number of rows it is said to have.

    Raises:
        ValueError: if the number of rows differs or is 1, or environments are reset in another step.
    """

    def __init__(self, vector_env: Any, batched_envs: int) -> None:
        if vector_env.num_envs != batched_envs:
            raise ValueError(
                f"batched_envs is {batched_envs}, but the vector environment has {vector_env.num_envs}: "
                f"pass batched_envs={vector_env.num_envs}"
            )
        if batched_envs == 1:
            raise ValueError(
                "a vector environment of num_envs=1 is not batched: pass the environment inside it"
            )
        mode = (getattr(vector_env, "metadata", None) or {}).get("autoreset_mode")
        # Before 1.0 there is no choice: environments reset themselves in the same step.
        if mode is not None and getattr(mode, "name", str(mode)) != "SAME_STEP":
            raise ValueError(
                f"the vector environment has autoreset mode {getattr(mode, 'name', mode)}, which puts a step "
                "without meaning between episodes or leaves resets to others: make it with "
                "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP "
                "(gymnasium.make_vec takes it in vector_kwargs)"
            )
        self.vector_env = vector_env
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space
        self.spec = vector_env.spec
        self.metadata = vector_env.metadata
        self.render_mode = getattr(vector_env, "render_mode", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets every row; a seed is spread over the rows by the vector environment."""
        obs, info = self.vector_env.reset(seed=seed, options=options)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row."""
        obs, reward, terminated, truncated, info = self.vector_env.step(action)
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        return self.vector_env.render()

    def close(self) -> None:
        self.vector_env.close()


def adapt_vector_env(env: Any, batched_envs: int) -> Any:
    """`env` itself, or the adapter around it if it is a gymnasium VectorEnv."""
    return VectorEnvAdapter(env, batched_envs) if isinstance(env, VectorEnv) else env
