"""DMControl: the tasks of the DeepMind Control Suite (Tassa et al. 2018) as gymnasium environments.

Tested with dm_control 1.0.28 and mujoco 3.3.0; images with MUJOCO_GL=egl.
"""

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.arguments import Positive, Size, check_arguments
from amago.envs.builtin.images import Frame, image_space, order_axes
from amago.envs.builtin.optional import optional_import
from amago.envs.registry import did_you_mean

PREFIX = "dm_control/"
PIXELS = "pixels"
# MuJoCo's stand-in for no bound
UNBOUNDED = 1e10


class DMControl(gym.Env[Any, Any]):
    """A task of the DeepMind Control Suite, such as `DMControl("cheetah", "run")` or `DMControl("cheetah-run")`.

    Observation: all quantities of the task in one vector (n,) float32, unbounded; with `flat=False` a Dict with
    one vector each, such as "position" and "velocity"; with `pixels` the image (3, H, W) uint8, 0 to 255, which is
    the key "pixels" if `flat` is False. Actions: Box in the bounds of the task, mostly [-1, 1], float32. Reward:
    in [0, 1] per control step, summed over `action_repeat` of them; most episodes have 1000 control steps.
    Truncated at the time limit, as the discount stays 1; terminated if a task ends with discount 0.

    Attributes:
        dt: seconds of simulated time per step.

    Args:
        domain: name of the domain, or an id, "dm_control/DOMAIN-TASK" or "DOMAIN-TASK".
        task: name of the task; None if `domain` is an id.
        pixels: observe images. Needs OpenGL: on a machine without a display set the environment variable
            MUJOCO_GL to egl (GPU, or slowly Mesa) or osmesa before Python starts. A process that has drawn
            images cannot fork workers that draw; constructing draws none.
        flat: one array; False gives a Dict.
        action_repeat: control steps per step.
        time_limit: seconds of simulated time per episode; None uses that of the task.
        resolution: (H, W) of images.
        camera_id: camera of images, number or name.
        channels_last: images (H, W, 3).
        render_mode: None or "rgb_array".

    Raises:
        ImportError: if dm_control is not installed.
        ValueError: for an unknown task or a number out of its range.
        RuntimeError: from `reset` or `render`, if OpenGL cannot draw images.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        domain: str,
        task: str | None = None,
        pixels: bool = False,
        *,
        flat: bool = True,
        action_repeat: Size = 1,
        time_limit: Positive | None = None,
        resolution: tuple[Size, Size] = (84, 84),
        camera_id: int | str = 0,
        channels_last: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if task is None:
            domain, _, task = domain.removeprefix(PREFIX).partition("-")
        self.pixels = pixels
        self.flat = flat
        self.action_repeat = action_repeat
        self.resolution = (resolution[0], resolution[1])
        self.camera_id = camera_id
        self.channels_last = channels_last
        self.render_mode = render_mode
        self._suite_env = _load(domain, task, time_limit)
        self.env_name = f"{domain}-{task}"
        self.dt = float(self._suite_env.control_timestep() * self.action_repeat)
        actions = self._suite_env.action_spec()
        low, high = (
            np.where(np.abs(bound) < UNBOUNDED, bound, np.sign(bound) * np.inf).astype(np.float32)
            for bound in (actions.minimum, actions.maximum)
        )
        self.action_space = gym.spaces.Box(low, high, actions.shape, np.float32)
        self.observation_space = self._make_observation_space()
        self._running = False

    def _make_observation_space(self) -> gym.Space[Any]:
        image = image_space(3, self.resolution, self.channels_last)
        if self.pixels and self.flat:
            return image
        sizes = {name: math.prod(spec.shape) for name, spec in self._suite_env.observation_spec().items()}
        if self.flat:
            return gym.spaces.Box(-np.inf, np.inf, (sum(sizes.values()),), np.float32)
        spaces: dict[str, gym.Space[Any]] = {
            name: gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()
        }
        return gym.spaces.Dict({**spaces, PIXELS: image} if self.pixels else spaces)

    def _observation(self, timestep: Any) -> Any:
        if self.pixels and self.flat:
            return self._image()
        vectors = {name: np.ravel(values) for name, values in timestep.observation.items()}
        if self.flat:
            return np.concatenate(list(vectors.values()), dtype=np.float32)
        observation = {name: vector.astype(np.float32) for name, vector in vectors.items()}
        return {**observation, PIXELS: self._image()} if self.pixels else observation

    def _image(self) -> Frame:
        return order_axes(self._draw(), self.channels_last)

    def _draw(self) -> Frame:
        height, width = self.resolution
        try:
            frame: Frame = self._suite_env.physics.render(height, width, camera_id=self.camera_id)
        except Exception as error:  # of another type with every OpenGL library
            raise RuntimeError(
                f"OpenGL cannot draw images here ({error}): set the environment variable MUJOCO_GL to egl or "
                "osmesa before Python starts, and install that library"
            ) from error
        return frame

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the seed makes its initial state and those of later episodes reproducible."""
        super().reset(seed=seed)
        if seed is not None:
            self._suite_env.task.random.seed(int(self.np_random.integers(2**32)))
        self._running = True
        return self._observation(self._suite_env.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeats one action for `action_repeat` control steps, or until the end."""
        if not self._running:
            raise RuntimeError("DMControl.step needs a running episode: call reset() first")
        reward = 0.0
        for _ in range(self.action_repeat):
            timestep = self._suite_env.step(action)
            reward += float(timestep.reward or 0.0)
            if timestep.last():
                self._running = False
                break
        terminated = not self._running and timestep.discount == 0.0
        truncated = not self._running and not terminated
        return self._observation(timestep), reward, terminated, truncated, {}

    def render(self) -> Frame | None:
        """The image of the camera, uint8 (H, W, 3); None without a render mode."""
        return self._draw() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self._suite_env.close()


def _load(domain: str, task: str, time_limit: float | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glfw warns of the missing display
        suite = optional_import("dm_control.suite", extra="dm-control")
    if (domain, task) not in suite.ALL_TASKS:
        tasks = [f"{each_domain}-{each_task}" for each_domain, each_task in suite.ALL_TASKS]
        name = f"{domain}-{task}"
        raise ValueError(
            f"the Control Suite has no task {name!r}.{did_you_mean(name, tasks)} Its tasks are {', '.join(tasks)}"
        )
    return suite.load(domain, task, task_kwargs=None if time_limit is None else {"time_limit": time_limit})
