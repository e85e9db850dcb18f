"""EnvPoolEnv: environments of EnvPool, which steps many of them in threads of its own.

EnvPool's gymnasium interface is a gymnasium VectorEnv in autoreset mode NEXT_STEP. This module gives it seeds at
reset, spaces of one row and of all, and a name. Needs envpool; tested with envpool 1.0.0.

N = `num_envs`.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from amago.envs.arguments import Count, Size, check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.gymnasium_compat import HAS_AUTORESET_MODES


class EnvPoolEnv(VectorEnv):
    """N copies of one of EnvPool's environments.

        AMAGOEnv(EnvPoolEnv("Pong-v5", num_envs=64, frame_skip=4), batched_envs=64)

    Spaces, rewards, ends and `info` are those of the task, see EnvPool's documentation; there are no metrics. The
    step after an episode's end resets the row (autoreset mode NEXT_STEP). EnvPool reports an end at its time limit
    as a truncation, even if the task also ends there.

    EnvPool seeds its environments when it makes them. A reset with a seed therefore makes a new pool, and one
    without a seed resets the running one.

    Args:
        task_id: EnvPool's name of the environment, such as "Pong-v5" or "CartPole-v1".
        num_envs: N.
        seed: seed of the first reset, if that is given none. None draws one.
        kwargs: other settings of `envpool.make`, such as `num_threads`, `frame_skip` or `max_episode_steps`.

    Attributes:
        env_name: `task_id`.
        pool: EnvPool's environment.

    Raises:
        ImportError: if envpool is not installed.
        ValueError: if `num_envs` is below 1, or `kwargs` has a setting of which this class takes care.
    """

    metadata = {  # noqa: RUF012
        "autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP if HAS_AUTORESET_MODES else "NEXT_STEP"
    }

    @check_arguments
    def __init__(self, task_id: str, num_envs: Size, seed: Count | None = None, **kwargs: Any) -> None:
        self._envpool: Any = optional_import("envpool", extra="envpool")
        for name in ("env_type", "batch_size"):
            if name in kwargs:
                raise ValueError(
                    f"{name} cannot be set: the environments are gymnasium's, and all step together"
                )
        self.task_id = self.env_name = task_id
        self.num_envs = num_envs
        self._settings = kwargs
        self._rng = np.random.default_rng(seed)
        self.pool = self._make_pool()
        self.single_observation_space = self.pool.observation_space
        self.single_action_space = self.pool.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.spec = None
        self.render_mode = None

    def _make_pool(self) -> Any:
        seed = int(self._rng.integers(2**31))
        return self._envpool.make(
            self.task_id, env_type="gymnasium", num_envs=self.num_envs, seed=seed, **self._settings
        )

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets every row; with a seed, in a new pool."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            self.pool.close()
            self.pool = self._make_pool()
        obs, info = self.pool.reset()
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row; resets those whose episode had ended."""
        obs, reward, terminated, truncated, info = self.pool.step(np.asarray(actions))
        return obs, reward, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        """Ends the pool's threads."""
        self.pool.close()
