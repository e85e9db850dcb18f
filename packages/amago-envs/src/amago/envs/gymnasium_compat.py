"""Compatibility with gymnasium 0.29 and 1.1 up to 2: versions, wrapper attributes, and gymnasium's VectorEnv.

`AMAGOEnv(env, batched_envs=N)` takes a gymnasium VectorEnv through `VectorEnvAdapter`.
"""

import re
import warnings
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate

# Releases before 1.1 have one autoreset mode and no name for it.
HAS_AUTORESET_MODES = hasattr(gym.vector, "AutoresetMode")
AUTORESET_MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")
# Key of `info`: (E,) bool, rows that this step reset and did not step, because their episode had ended before.
RESET_ROWS = "amago_reset_rows"


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

    What `step` returns for a row whose episode ended depends on the autoreset mode:

    - SAME_STEP: the first observation of the next episode; `info["final_obs"]` has the final one.
    - DISABLED: the same. The adapter resets the row, by `reset(options={"reset_mask": mask})`.
    - NEXT_STEP: the final observation. The next step resets the row, whatever its action. It is no transition: the
      adapter returns it as the end, at time 0, of an episode without steps. `info[RESET_ROWS]` tells these rows.

    With one row it is an ordinary environment without the leading axis, which its user resets.

    Args:
        vector_env: the vector environment. Without `metadata["autoreset_mode"]` its mode is NEXT_STEP, as in
            gymnasium's wrappers, and SAME_STEP with gymnasium 0.29.
        batched_envs: the expected number of rows.

    Raises:
        ValueError: if the number of rows differs, or the autoreset mode is unknown; from `step`, if an episode
            ends in mode SAME_STEP without a report of its final observation.
    """

    def __init__(self, vector_env: Any, batched_envs: int) -> None:
        if vector_env.num_envs != batched_envs:
            raise ValueError(
                f"batched_envs is {batched_envs}, but the vector environment has {vector_env.num_envs}: "
                f"pass batched_envs={vector_env.num_envs}"
            )
        self.vector_env = vector_env
        self.autoreset_mode = _autoreset_mode(vector_env)
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space
        self.spec = vector_env.spec
        self.metadata = vector_env.metadata
        self.render_mode = getattr(vector_env, "render_mode", None)
        self._ended = np.zeros(batched_envs, np.bool_)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only; `vector_env` is missing while the object is made or unpickled.
        if name.startswith("_") or name == "vector_env":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.vector_env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets every row; the vector environment makes the rows' seeds from the seed."""
        self._ended = np.zeros_like(self._ended)
        obs, info = self.vector_env.reset(seed=seed, options=options)
        return (self._only_row(obs) if len(self._ended) == 1 else obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row."""
        if len(self._ended) == 1:
            return self._step_only_row(action)
        obs, reward, terminated, truncated, info = self.vector_env.step(action)
        ended = np.logical_or(terminated, truncated)
        if self.autoreset_mode == "NEXT_STEP":
            was_reset, self._ended = self._ended, ended
            reward = np.where(was_reset, 0.0, reward)
            terminated = np.logical_and(terminated, ~was_reset)
            truncated = np.logical_or(truncated, was_reset)
            return obs, reward, terminated, truncated, {**info, RESET_ROWS: was_reset}
        if self.autoreset_mode == "DISABLED" and ended.any():
            # Copied, as the reset may write into the same arrays
            info = {**info, "final_obs": deepcopy(obs)}
            obs, _ = self.vector_env.reset(options={"reset_mask": ended})
        if ended.any():
            _final_observation(info)
        return obs, reward, terminated, truncated, info

    def _step_only_row(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.vector_env.step(np.asarray(action)[None])
        row = self._only_row(obs)
        if self.autoreset_mode == "SAME_STEP" and np.logical_or(terminated, truncated).any():
            final = _final_observation(info)
            is_list = isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype == object)
            row = final[0] if is_list else self._only_row(final)
            final_info = info.get("final_info") or {}
            info = {**info, **(final_info if isinstance(final_info, dict) else final_info[0])}
        return row, reward, terminated, truncated, info

    def _only_row(self, obs: Any) -> Any:
        return next(iter(iterate(self.vector_env.observation_space, obs)))

    def render(self) -> Any:
        return self.vector_env.render()

    def close(self) -> None:
        self.vector_env.close()


def _final_observation(info: dict[str, Any]) -> Any:
    """The reported final observations; raises ValueError if there are none."""
    for key in ("final_obs", "final_observation"):
        if key in info:
            return info[key]
    raise ValueError(
        "an episode ended, and the vector environment did not report its final observation: "
        "it must set info['final_obs'], as gymnasium's own vector environments do"
    )


def _autoreset_mode(vector_env: Any) -> str:
    """The name of the autoreset mode, one of `AUTORESET_MODES`."""
    # gymnasium's own vector environments share `metadata` with all environments of the class inside.
    mode = getattr(getattr(vector_env, "unwrapped", vector_env), "autoreset_mode", None)
    if mode is None:
        mode = (getattr(vector_env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None and HAS_AUTORESET_MODES:
        warnings.warn(
            f"{type(vector_env).__name__} has no metadata['autoreset_mode']; NEXT_STEP is assumed, which is "
            "gymnasium's default",
            stacklevel=4,
        )
        return "NEXT_STEP"
    name = "SAME_STEP" if mode is None else getattr(mode, "name", mode)
    if name not in AUTORESET_MODES:
        raise ValueError(
            f"the vector environment has metadata['autoreset_mode']={mode!r}, not one of "
            f"{', '.join(AUTORESET_MODES)} of gymnasium.vector.AutoresetMode"
        )
    return str(name)


def adapt_vector_env(env: Any, batched_envs: int) -> Any:
    """`env` itself, or the adapter around it if it is a gymnasium VectorEnv."""
    return VectorEnvAdapter(env, batched_envs) if isinstance(env, VectorEnv) else env
