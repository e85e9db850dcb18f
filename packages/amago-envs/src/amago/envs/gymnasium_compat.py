"""Compatibility with gymnasium 0.29 and 1.1 up to 2: versions, wrapper attributes, and gymnasium's VectorEnv.

`AMAGOEnv(env, batched_envs=N)` takes a gymnasium VectorEnv through `VectorEnvAdapter`, if it resets a row within
the step that ends its episode (`AutoresetMode.SAME_STEP`, the only mode before 1.0) and reports the final
observation in `info`.
"""

import re
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

# Of vector environments; releases before 1.1 have one mode.
HAS_AUTORESET_MODES = hasattr(gym.vector, "AutoresetMode")


def check_gymnasium_version(version: str) -> None:
    """Raises ImportError, with the remedy, unless this gymnasium release is supported.

    Releases before 0.29 lack parts of the interface, 1.0 has no autoreset within the same step, and 2 is not
    released yet.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if release < (0, 29) or release == (1, 0) or release >= (2, 0):
        raise ImportError(
            f"gymnasium {version} is installed, and amago.envs works with 0.29 and with 1.1 up to 2 (not 1.0): "
            "pip install 'gymnasium>=1.1,<2'"
        )


def find_attribute(env: Any, name: str) -> Any:
    """The attribute `name` of the outermost layer of wrappers that has it itself.

    gymnasium's own wrappers forward attributes before 1.0 (with a warning) and not from 1.0 on.

    Raises:
        AttributeError: if no layer has it.
    """
    owner = find_owner(env, name)
    if owner is None:
        raise AttributeError(
            f"neither {type(env).__name__!r} nor an environment inside it has an attribute {name!r}"
        )
    return getattr(owner, name)


def find_owner(env: Any, name: str) -> Any | None:
    """The outermost layer of wrappers that has the attribute `name` itself, or None."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        # Avoids gymnasium's __getattr__, which would forward and warn.
        if name in layer.__dict__ or hasattr(type(layer), name):
            return layer
        layer = layer.env
    return layer if hasattr(layer, name) else None


class ForwardingWrapper(gym.Wrapper):
    """A wrapper that forwards attributes of the wrapped environments, on every gymnasium release."""

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only. Private names are not forwarded, and `env` is missing only while the
        # object is made or unpickled.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return find_attribute(self.env, name)


class VectorEnvAdapter(gym.Env[Any, Any]):
    """A gymnasium VectorEnv as a `gymnasium.Env` with the spaces of one row.

    Args:
        vector_env: vector environment in autoreset mode SAME_STEP.
        batched_envs: the expected number of rows.

    Raises:
        ValueError: if the number of rows differs or is 1, or the autoreset mode is another one; from `step`, if an
            episode ends without a report of its final observation.
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
        if getattr(mode, "name", mode) != "SAME_STEP" and (HAS_AUTORESET_MODES or mode is not None):
            raise ValueError(
                f"the vector environment has metadata['autoreset_mode']={mode}, and only SAME_STEP is supported: "
                "make it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP (gymnasium.make_vec takes "
                "it in vector_kwargs)"
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
        """Resets every row; the vector environment derives the rows' seeds."""
        result: tuple[Any, dict[str, Any]] = self.vector_env.reset(seed=seed, options=options)
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row."""
        obs, reward, terminated, truncated, info = self.vector_env.step(action)
        reported = "final_obs" in info or "final_observation" in info
        if not reported and np.logical_or(terminated, truncated).any():
            raise ValueError(
                "an episode ended, and the vector environment did not report its final observation: "
                "it must set info['final_obs'], as gymnasium's own vector environments do"
            )
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        return self.vector_env.render()

    def close(self) -> None:
        self.vector_env.close()


def adapt_vector_env(env: Any, batched_envs: int) -> Any:
    """`env` itself, or the adapter around it if it is a gymnasium VectorEnv."""
    return VectorEnvAdapter(env, batched_envs) if isinstance(env, VectorEnv) else env
