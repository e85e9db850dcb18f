"""GymnaxCompatibility: gymnax environments, which step many rows inside jax, on a GPU if jax has one.

gymnax environments are pure functions of a state and a random key. The wrapper holds both, so that `AMAGOEnv` can
step them with `batched_envs=num_envs`. Needs gymnax 1.0 or later, which installs jax; tested with gymnax 1.0.1 and
jax 0.10.2.

jax allocates most of a GPU's memory when it starts. If torch shares that GPU, set the environment variable
XLA_PYTHON_CLIENT_PREALLOCATE=false, or limit jax with XLA_PYTHON_CLIENT_MEM_FRACTION
(https://docs.jax.dev/en/latest/gpu_memory_allocation.html). jax is not safe in forked processes, so collect with
env_mode="already_vectorized".

N = `num_envs`.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.arguments import Count, Size, check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.registry import did_you_mean

STEP_RESULTS = 6  # termination and truncation are separate; releases before 1.0 return 5


class GymnaxCompatibility(gym.Env[Any, Any]):
    """N copies of a gymnax environment that step together and reset themselves.

        env, params = gymnax.make("Pendulum-v1")
        AMAGOEnv(GymnaxCompatibility(env, num_envs=512, params=params), "Pendulum", batched_envs=512)

    The spaces, with their dtypes and bounds, are those of one copy: Discrete, Box, Dict or Tuple. Actions and
    results have the leading axis N, and `info["final_obs"]` holds the final observations of ended episodes. With
    `num_envs=1` it is an ordinary environment without that axis, which its user resets. Rewards and `terminated`
    are gymnax's, its time limit is `truncated`, and there are no metrics.

    Args:
        env: a gymnax environment, or a wrapper of gymnax around one.
        num_envs: N.
        params: parameters of the environment; None uses its defaults.
        seed: seed of the first reset, if that is given none. None draws fresh episodes.

    Raises:
        ImportError: if jax or gymnax is not installed, or gymnax is older than 1.0.
        TypeError: if `env` is not a gymnax environment, or has a space other than Discrete, Box, Dict and Tuple.
        ValueError: if `num_envs` is less than 1.
    """

    @check_arguments
    def __init__(self, env: Any, num_envs: Size = 1, params: Any = None, seed: Count | None = None) -> None:
        optional_import("gymnax", extra="gymnax")
        jax: Any = optional_import("jax", extra="gymnax")
        for name in ("reset", "step", "observation_space", "action_space", "default_params"):
            if not hasattr(env, name):
                raise TypeError(
                    f"env must be a gymnax environment, which has {name!r}, got {type(env).__name__}: "
                    "env, params = gymnax.make(...) returns one"
                )
        self.num_envs = num_envs
        self.params = env.default_params if params is None else params
        self.observation_space = _gymnasium_space(env.observation_space(self.params))
        self.action_space = _gymnasium_space(env.action_space(self.params))
        self._seed = seed
        self._jax = jax
        self._reset = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
        self._step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
        self._split_keys = jax.jit(lambda key: _first_and_rest(jax.random.split(key, self.num_envs + 1)))
        self._key: Any = None
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every row; a seed makes everything after it reproducible."""
        if self._key is None and seed is None:
            seed = self._seed
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            self._key = self._jax.random.key(int(self.np_random.integers(2**32)))
        self._key, keys = self._split_keys(self._key)
        obs, self._state = self._reset(keys, self.params)
        return _nest_like(self.observation_space, self._fetch(obs)), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row; rows whose episode ends return the first observation of the next one."""
        if self._state is None:
            raise RuntimeError("step was called before the first reset: call reset() first")
        actions = np.asarray(action, self.action_space.dtype)
        actions = actions.reshape(self.num_envs, *(self.action_space.shape or ()))
        self._key, keys = self._split_keys(self._key)
        results = self._step(keys, self._state, actions, self.params)
        if len(results) != STEP_RESULTS:
            raise ImportError(
                f"step() of this gymnax environment returns {len(results)} results, and that of gymnax 1.0 "
                f"{STEP_RESULTS}: pip install 'gymnax>=1.0'"
            )
        obs, self._state, reward, terminated, truncated, info = results
        info = dict(info)
        final_obs = info.pop("final_observation", None)
        if self.num_envs == 1:
            # The caller resets it, and needs the final observation.
            obs = obs if final_obs is None else final_obs
            info = self._jax.tree.map(lambda rows: rows[0], info)
        obs, reward, terminated, truncated = self._fetch((obs, reward, terminated, truncated))
        if self.num_envs > 1 and final_obs is not None and (terminated | truncated).any():
            info["final_obs"] = _nest_like(self.observation_space, self._fetch(final_obs))
        return _nest_like(self.observation_space, obs), reward, terminated, truncated, info

    def _fetch(self, arrays: Any) -> Any:
        """Device arrays as numpy arrays, in one transfer; without their first axis if N is 1."""
        fetched = self._jax.device_get(arrays)
        return fetched if self.num_envs > 1 else self._jax.tree.map(lambda rows: rows[0], fetched)


GymnaxCompatability = GymnaxCompatibility  # the reference's spelling


def make_gymnax(env_id: str, num_envs: int = 1) -> GymnaxCompatibility:
    """gymnax's environment `env_id` with its default parameters; ValueError for an unknown one."""
    gymnax = optional_import("gymnax", extra="gymnax")
    if env_id not in gymnax.registered_envs:
        raise ValueError(
            f"gymnax has no environment {env_id!r}.{did_you_mean(env_id, gymnax.registered_envs)}"
        )
    env, params = gymnax.make(env_id)
    return GymnaxCompatibility(env, num_envs=num_envs, params=params)


def _first_and_rest(keys: Any) -> tuple[Any, Any]:
    return keys[0], keys[1:]


def _gymnasium_space(space: Any) -> gym.Space[Any]:
    """The gymnasium space of the same kind, by class name, so that gymnax's modules need not be imported."""
    kind = type(space).__name__
    if kind == "Discrete":
        return gym.spaces.Discrete(int(space.n))
    if kind == "Box":
        dtype, shape = np.dtype(space.dtype), tuple(int(size) for size in space.shape)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high))
        return gym.spaces.Box(low, high, shape, dtype.type)
    if kind == "Dict":
        return gym.spaces.Dict({key: _gymnasium_space(child) for key, child in space.spaces.items()})
    if kind == "Tuple":
        return gym.spaces.Tuple([_gymnasium_space(child) for child in space.spaces])
    raise TypeError(f"a gymnax space must be Discrete, Box, Dict or Tuple, got {space}")


def _nest_like(space: gym.Space[Any], obs: Any) -> Any:
    """`obs` as nested dicts, tuples and arrays; gymnax has dataclasses or other mappings for Dict spaces."""
    if isinstance(space, gym.spaces.Dict):
        values = obs if isinstance(obs, Mapping) else vars(obs)
        return {key: _nest_like(child, values[key]) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_nest_like(child, each) for child, each in zip(space.spaces, obs, strict=True))
    return np.asarray(obs)
