"""HalfCheetah with the reward of a hidden target velocity: adaptation within one episode (Finn et al. 2017).

Needs gymnasium[mujoco]; tested with gymnasium 1.3.0 and mujoco 3.3.0, whose HalfCheetah v4 simulates.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.arguments import NonNegative, check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

Observation = npt.NDArray[np.float64]
LAST_STEPS = 50  # their mean is the final velocity


class HalfCheetahV4LogVelocity(gym.Env[Observation, npt.NDArray[np.float32]]):
    """HalfCheetah that reports its velocities and truncates after 1000 steps.

    Observation, float64 (17,), unbounded: 8 positions without x, then 9 velocities. Actions: Box(-1, 1, (6,)).
    A step takes 0.05 s. Reward: `velocity_reward_term(x_velocity)`, here forward_reward_weight * x_velocity, minus
    ctrl_cost_weight times the sum of squared actions. Truncated after 1000 steps, never terminated. `info` has
    x_position, x_velocity, reward_run and reward_ctrl; the last step reports the metrics "Mean Velocity",
    "Max Velocity" and "Avg. Last 50 Timestep Velocity".

    Subclasses may override `velocity_reward_term`, `control_cost` and `_get_obs`. Attributes and methods that this
    class lacks (`model`, `data`, `dt`, `set_state`, ...) are those of gymnasium's environment, `mujoco_env`.
    Copies, also of subclasses with other arguments, have the settings of the original and must be reset.

    Args:
        forward_reward_weight, ctrl_cost_weight: weights of velocity and control cost.
        reset_noise_scale: of the first positions and velocities.
        exclude_current_positions_from_observation: leave x out; with x, the observation has 18 numbers.
        kwargs: passed to gymnasium's environment: render_mode, width, height, camera_id, camera_name.

    Raises:
        ImportError: if mujoco is not installed.
    """

    max_episode_steps = 1000

    @check_arguments
    def __init__(
        self,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        reset_noise_scale: NonNegative = 0.1,
        exclude_current_positions_from_observation: bool = True,
        **kwargs: Any,
    ) -> None:
        optional_import("mujoco", extra="mujoco")
        half_cheetah = optional_import("gymnasium.envs.mujoco.half_cheetah_v4", extra="mujoco")
        self.mujoco_env: Any = half_cheetah.HalfCheetahEnv(
            forward_reward_weight=forward_reward_weight,
            ctrl_cost_weight=ctrl_cost_weight,
            reset_noise_scale=reset_noise_scale,
            exclude_current_positions_from_observation=exclude_current_positions_from_observation,
            **kwargs,
        )
        self.forward_reward_weight = forward_reward_weight
        self.observation_space = self.mujoco_env.observation_space
        self.action_space = self.mujoco_env.action_space
        self.metadata = self.mujoco_env.metadata
        self.render_mode = self.mujoco_env.render_mode
        self._velocities = np.zeros(self.max_episode_steps)
        self._steps: int | None = None

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only; mujoco_env itself is missing while a copy is made.
        if name == "mujoco_env" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.mujoco_env, name)

    def __getstate__(self) -> dict[str, Any]:
        # gymnasium rebuilds the simulation from its arguments, without its state.
        return {**self.__dict__, "_steps": None}

    def velocity_reward_term(self, x_velocity: float) -> float:
        """The reward of a velocity in m/s."""
        return self.forward_reward_weight * x_velocity

    def control_cost(self, action: npt.NDArray[np.float32]) -> float:
        """The cost of an action, which is subtracted from the reward."""
        return float(self.mujoco_env.control_cost(action))

    def _get_obs(self) -> Observation:
        observation: Observation = self.mujoco_env._get_obs()
        return observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode near the initial posture."""
        super().reset(seed=seed)
        self.mujoco_env.np_random = self.np_random
        _, info = self.mujoco_env.reset(options=options)
        self._steps = 0
        return self._get_obs(), info

    def step(self, action: npt.NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Applies six torques for 0.05 s."""
        if self._steps is None:
            raise RuntimeError(f"{type(self).__name__}.step needs a running episode: call reset() first")
        env = self.mujoco_env
        x_before = float(env.data.qpos[0])
        env.do_simulation(action, env.frame_skip)
        x_after = float(env.data.qpos[0])
        x_velocity = (x_after - x_before) / env.dt
        reward_run = float(self.velocity_reward_term(x_velocity))
        reward_ctrl = -self.control_cost(action)
        info = {
            "x_position": x_after,
            "x_velocity": x_velocity,
            "reward_run": reward_run,
            "reward_ctrl": reward_ctrl,
        }
        self._velocities[self._steps] = x_velocity
        self._steps += 1
        truncated = self._steps >= self.max_episode_steps
        if truncated:
            info |= {f"{AMAGO_ENV_LOG_PREFIX} {name}": value for name, value in self._final_metrics().items()}
            self._steps = None
        if self.render_mode == "human":
            env.render()
        return self._get_obs(), reward_run + reward_ctrl, False, truncated, info

    def _final_metrics(self) -> dict[str, float]:
        """Metrics of a finished episode by name."""
        velocities = self._velocities
        return {
            "Mean Velocity": float(velocities.mean()),
            "Max Velocity": float(velocities.max()),
            "Avg. Last 50 Timestep Velocity": float(velocities[-LAST_STEPS:].mean()),
        }

    def render(self) -> Any:
        return self.mujoco_env.render()

    def close(self) -> None:
        self.mujoco_env.close()


class HalfCheetahV4_MetaVelocity(HalfCheetahV4LogVelocity):
    """HalfCheetah that is to run at a velocity that it does not observe, drawn in every episode.

    As `HalfCheetahV4LogVelocity`, but with the velocity term -velocity_reward_weight * |x_velocity - target|, so
    that 0 is the best return. The first target is drawn at construction and a new one by each reset; the metric
    "Target Velocity Error at Final 50 Timesteps" is |target - mean of the last 50 velocities|. Override
    `sample_target_velocity` for another distribution.

    Args:
        ctrl_cost_weight, velocity_reward_weight: weights of control cost and velocity term.
        task_min_velocity, task_max_velocity: range of the uniform target, in m/s.
        kwargs: as `HalfCheetahV4LogVelocity`.

    Attributes:
        target_velocity: of the current episode.

    Raises:
        ImportError: if mujoco is not installed.
        ValueError: if the range is empty or not finite.
    """

    @check_arguments
    def __init__(
        self,
        ctrl_cost_weight: float = 0.05,
        velocity_reward_weight: float = 1.0,
        task_min_velocity: float = 0.0,
        task_max_velocity: float = 3.0,
        **kwargs: Any,
    ) -> None:
        if task_min_velocity > task_max_velocity:
            raise ValueError(
                "task_min_velocity must be at most task_max_velocity, got "
                f"{task_min_velocity} and {task_max_velocity}"
            )
        super().__init__(ctrl_cost_weight=ctrl_cost_weight, **kwargs)
        self.velocity_reward_weight = velocity_reward_weight
        self.task_min_velocity = task_min_velocity
        self.task_max_velocity = task_max_velocity
        self.target_velocity = self.sample_target_velocity()

    def sample_target_velocity(self) -> float:
        """A target velocity in m/s, from `np_random`."""
        return float(self.np_random.uniform(self.task_min_velocity, self.task_max_velocity))

    def velocity_reward_term(self, x_velocity: float) -> float:
        return -self.velocity_reward_weight * abs(x_velocity - self.target_velocity)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode with a new target; a seed fixes it as well as the first posture."""
        _, info = super().reset(seed=seed, options=options)
        self.target_velocity = self.sample_target_velocity()
        return self._get_obs(), info

    def _final_metrics(self) -> dict[str, float]:
        metrics = super()._final_metrics()
        final = metrics["Avg. Last 50 Timestep Velocity"]
        metrics["Target Velocity Error at Final 50 Timesteps"] = abs(self.target_velocity - final)
        return metrics
