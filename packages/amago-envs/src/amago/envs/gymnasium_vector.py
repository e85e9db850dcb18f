"""Lets `AMAGOEnv(env, batched_envs=N)` take a gymnasium VectorEnv as it is.

An `AMAGOEnv` expects the spaces of one environment, and a `gymnasium.Env`; a VectorEnv has batched spaces
beside those of one, and from gymnasium 1.0 on is no `Env`.

When a row's episode ends, the vector environment says in `metadata["autoreset_mode"]` who begins the next one:

- SAME_STEP (and releases before 1.0, which have no choice): the same step, which returns the new episode's first
  observation and reports the last one of the old episode in `info`. One that reports none is an error.
- NEXT_STEP: the step after it, which ignores the action of that row. It is no transition of any episode; the
  adapter marks it in `reset_rows`, and recording, statistics and the policy's memory pass over it.
- DISABLED: the caller. Nobody would, so it is refused, as is any mode that is not known, and one that is not told.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from amago.envs.compat import HAS_AUTORESET_MODES


class VectorEnvAdapter(gym.Env[Any, Any]):
    """A gymnasium VectorEnv as an environment that has the spaces of one row.

    Args:
        vector_env: resets its environments within the step that ends an episode, or in the one after it.
        batched_envs: the number of rows it is said to have.

    Attributes:
        reset_rows: (N,) bool, rows that the last step only reset; None if that never happens.

    Raises:
        ValueError: if the number of rows differs or is 1, or the environment does not reset its rows itself, or
            does not say when; from `step`, if it resets a row and does not report its last observation.
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
        if mode is None and HAS_AUTORESET_MODES:
            raise ValueError(
                "the vector environment does not say who resets its rows: set its metadata['autoreset_mode'] to "
                "what it does, gymnasium.vector.AutoresetMode.SAME_STEP or NEXT_STEP"
            )
        mode_name = "SAME_STEP" if mode is None else str(getattr(mode, "name", mode))
        if mode_name not in ("SAME_STEP", "NEXT_STEP"):
            raise ValueError(
                f"the vector environment has autoreset mode {mode_name}, and nobody else would reset its rows: "
                "make it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP or NEXT_STEP "
                "(gymnasium.make_vec takes it in vector_kwargs)"
            )
        self.reset_rows: npt.NDArray[np.bool_] | None = None
        self._resets_in_next_step = mode_name == "NEXT_STEP"
        self._finished: npt.NDArray[np.bool_] = np.zeros(batched_envs, np.bool_)
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
        self._finished = np.zeros_like(self._finished)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row."""
        obs, reward, terminated, truncated, info = self.vector_env.step(action)
        if not isinstance(info, dict):
            raise TypeError(
                f"the vector environment's info is a {type(info).__name__}, must be a dict: take wrappers such "
                "as DictInfoToList off"
            )
        if self._resets_in_next_step:
            self.reset_rows = self._finished
            self._finished = np.logical_or(terminated, truncated)
        elif "final_obs" not in info and "final_observation" not in info:
            _check_none_ended(terminated, truncated)
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        return self.vector_env.render()

    def close(self) -> None:
        self.vector_env.close()


def adapt_vector_env(env: Any, batched_envs: int) -> Any:
    """`env` itself, or the adapter around it if it is a gymnasium VectorEnv."""
    return VectorEnvAdapter(env, batched_envs) if isinstance(env, VectorEnv) else env


def _check_none_ended(terminated: Any, truncated: Any) -> None:
    if np.logical_or(terminated, truncated).any():
        raise ValueError(
            "an episode ended, and the vector environment reset the row in the same step without telling the last "
            "observation: have it set info['final_obs'], as gymnasium's own do, or reset in the next step"
        )
