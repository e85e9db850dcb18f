"""KShot: any gymnasium environment as a meta-RL one, with k attempts at the same task.

AMAGOEnv(KShot(gym.make("CartPole-v1"), k=3), env_name="cart_pole_3_shot")
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.arguments import Size, check_arguments
from amago.envs.gymnasium_compat import ForwardingWrapper
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

ATTEMPT_KEY = "attempt"
SUCCESS_KEYS = ("success", "is_success")
SampleTask = Callable[[gym.Env[Any, Any], np.random.Generator], Mapping[str, Any]]


class KShot(ForwardingWrapper):
    """k attempts at one task are one episode; every reset draws a new task.

    A task is a seed for the environment's `reset`, the same for all attempts, so that whatever it draws is the
    same in each of them: the layout, the start, and also the noise while the same actions are taken.
    `sample_task` makes tasks of another kind.

    - Observation: a Dict of the environment's observation (its own keys if it is a Dict, else "observation") and
      "attempt", float32 (2,) in [0, 1]: 1 on the first observation of an attempt, else 0; attempt / k, from 0.
    - Actions and rewards are the environment's.
    - The step that ends an attempt, by termination or by the environment's own time limit, returns the attempt's
      last observation. The next step starts the next attempt, whatever its action: reward 0,
      `info["soft_reset"]` True. An episode therefore has k - 1 steps more than its attempts together.
    - `terminated` after attempt k, also if a time limit ended it, because no reward can follow. Never `truncated`.
    - Metrics at the end of attempt i, from 0: `Episode {i} Return`, and `Episode {i} Success` if the `info` of one
      of its steps had "success" or "is_success": the largest value of the attempt.

    Args:
        env: the environment. Its time limit counts the steps of one attempt.
        k: number of attempts, at least 1.
        sample_task: called as `sample_task(env, rng)` at every reset. It returns the keyword arguments of
            `env.reset` for every attempt, such as `{"options": {"goal": ...}}`, and may also set the task in the
            environment itself. None draws `{"seed": ...}`.
        show_attempt: False leaves the observation as it is.

    Raises:
        TypeError: if `env` is not a gymnasium environment, or `k` not a whole number.
        ValueError: if `k` is below 1, or the environment already has an observation "attempt".
    """

    @check_arguments
    def __init__(
        self,
        env: gym.Env[Any, Any],
        k: Size,
        sample_task: SampleTask | None = None,
        show_attempt: bool = True,
    ) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(f"env must be a gymnasium environment, got {env!r}")
        super().__init__(env)
        self.k = k
        self.show_attempt = show_attempt
        self._sample_task = _sample_seed if sample_task is None else sample_task
        self._rng = np.random.default_rng()
        self._running = False
        if show_attempt:
            space = env.observation_space
            parts = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"observation": space}
            if ATTEMPT_KEY in parts:
                raise ValueError(
                    f"the environment already has an observation {ATTEMPT_KEY!r}: rename it in an "
                    "ObservationWrapper, or pass show_attempt=False"
                )
            parts[ATTEMPT_KEY] = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
            self.observation_space = gym.spaces.Dict(parts)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draws a new task and starts the first attempt.

        Args:
            seed: seed of the tasks of this and all later episodes; None continues their random stream.
            options: for the `reset` of every attempt, unless the task has options.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._task = {"options": options, **self._sample_task(self.env, self._rng)}
        self.attempt = 0
        self._running = True
        return self._start_attempt()

    def _start_attempt(self) -> tuple[Any, dict[str, Any]]:
        self._attempt_over = False
        self._return = 0.0
        self._success: float | None = None
        obs, info = self.env.reset(**self._task)
        return self._with_attempt(obs, 1.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the attempt, or starts the next one if it is over.

        Raises:
            RuntimeError: if no episode is running.
        """
        if not self._running:
            raise RuntimeError("KShot.step needs a running episode: call reset() first")
        if self._attempt_over:
            self.attempt += 1
            obs, info = self._start_attempt()
            return obs, 0.0, False, False, {**info, "soft_reset": True}
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        for key in SUCCESS_KEYS:
            if key in info:
                self._success = max(float(info[key]), self._success or 0.0)
        if terminated or truncated:
            self._attempt_over = True
            self._running = self.attempt + 1 < self.k
            info = {**info, **self._metrics()}
        return self._with_attempt(obs, 0.0), reward, not self._running, False, info

    def _metrics(self) -> dict[str, float]:
        prefix = f"{AMAGO_ENV_LOG_PREFIX} Episode {self.attempt}"
        metrics = {f"{prefix} Return": self._return}
        if self._success is not None:
            metrics[f"{prefix} Success"] = self._success
        return metrics

    def _with_attempt(self, obs: Any, is_first: float) -> Any:
        if not self.show_attempt:
            return obs
        parts = dict(obs) if isinstance(self.env.observation_space, gym.spaces.Dict) else {"observation": obs}
        parts[ATTEMPT_KEY] = np.array((is_first, self.attempt / self.k), np.float32)
        return parts


def make_kshot(env: str, k: int = 3, **arguments: Any) -> KShot:
    """`KShot` on a Gymnasium id; further arguments are those of `gymnasium.make`."""
    return KShot(gym.make(env, **arguments), k)


def _sample_seed(env: gym.Env[Any, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    return {"seed": int(rng.integers(2**31))}
