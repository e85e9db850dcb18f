"""Steps single environments as a batch: one after the other, but with everything around them done once for all.

At a microsecond or two per environment, checking an action, scaling it, drawing noise and filling arrays of one
number each would cost several times what stepping does. The results are those of the environments' own `step`, to
the bit.

n = environments, K = numbers in a policy action, A = width of the action representation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from amago.envs.action_codecs import DiscreteCodec, make_action_codec
from amago.envs.amago_env import AMAGOEnv, single_value
from amago.envs.exploration.base import ExplorationWrapper
from amago.envs.vector.buffers import StepArrays
from amago.hindsight.timestep import Array


def can_step_together(envs: Sequence[Any]) -> bool:
    """Whether `SingleEnvs` may step these, each an AMAGOEnv or an exploration wrapper around one.

    It may unless they hold several rows, differ in their action space or kind of exploration, or are of a class
    that defines steps or action representations of its own.
    """
    if len(envs) < 2 or len({type(env) for env in envs}) > 1:
        return False
    inner = envs
    if isinstance(envs[0], ExplorationWrapper):
        if type(envs[0]).step is not ExplorationWrapper.step:
            return False
        inner = [env.env for env in envs]
    return all(_is_plain(env) and env.env.action_space == inner[0].env.action_space for env in inner)


def _is_plain(env: Any) -> bool:
    return (
        isinstance(env, AMAGOEnv)
        and env.batched_envs == 1
        and type(env).step is AMAGOEnv.step
        and type(env).make_action_rep is AMAGOEnv.make_action_rep
    )


class SingleEnvs:
    """n environments for which `can_step_together` holds.

    Args:
        envs: AMAGOEnvs or exploration wrappers around them.
        arrays: their n rows.

    Attributes:
        active: number of the environment that was used last, for error messages.
    """

    def __init__(self, envs: Sequence[Any], arrays: StepArrays) -> None:
        self.active = 0
        self._arrays = arrays
        self._explorers: list[ExplorationWrapper] = []
        if isinstance(envs[0], ExplorationWrapper):
            self._explorers = list(envs)
        self._envs: list[AMAGOEnv] = [env.env for env in envs] if self._explorers else list(envs)
        # Asking the environment itself saves a call, if nobody overrides what stands between.
        self._step_env: list[Callable[[Any], Any]] = [
            env.env.step if type(env).inner_step is AMAGOEnv.inner_step else env.inner_step
            for env in self._envs
        ]
        self._write_obs = [
            env.observation_writer({key: array[row : row + 1] for key, array in arrays.obs.items()})
            for row, env in enumerate(self._envs)
        ]
        num_envs = len(envs)
        self._codec = make_action_codec(self._envs[0].env.action_space, num_envs)
        self._rewards: list[Any] = [0.0] * num_envs
        self._terminated: list[Any] = [False] * num_envs
        self._truncated: list[Any] = [False] * num_envs
        self._env_actions: Any = None

    def take(self, actions: Array) -> None:
        """Takes the policy's actions (n, K) for the next step; exploration adds its noise."""
        if self._explorers:
            actions = type(self._explorers[0]).actions_together(self._explorers, actions)
        self._env_actions = self._checked(actions)

    def step(self, rows: slice, arrays: StepArrays) -> list[tuple[int, dict[str, Any]]]:
        """Steps some environments with the actions that were taken, and fills their rows, except for `rl2s`.

        Args:
            rows: which ones.
            arrays: those rows.

        Returns:
            (row, info) where info is not empty.
        """
        env_actions = self._env_actions
        rewards, terminated, truncated = self._rewards, self._terminated, self._truncated
        step_envs, write_obs, infos = self._step_env, self._write_obs, []
        for row in range(rows.start, rows.stop):
            self.active = row
            result = step_envs[row](env_actions[row])
            if type(result) is not tuple or len(result) != 5:
                result = self._envs[row].step_parts(result)
            obs, rewards[row], terminated[row], truncated[row], info = result
            write_obs[row](obs)
            if info:
                infos.append((row, info))
        for explorer in self._explorers[rows]:
            explorer.count_step()
        self._fill(rows, arrays)
        return infos

    def _checked(self, actions: Array) -> Any:
        """Notes the actions and returns them as the environments receive them, one entry each."""
        codec = self._codec
        try:
            checked = codec.check(actions)
        except (ValueError, TypeError):
            for row, env in enumerate(self._envs):
                self.active = row
                env.make_action_rep(actions[row : row + 1])
            raise
        self._arrays.actions[...] = codec.represent(checked)
        env_actions = codec.to_env(checked)
        return env_actions.tolist() if isinstance(codec, DiscreteCodec) else env_actions

    def _fill(self, rows: slice, arrays: StepArrays) -> None:
        arrays.time_idxs += 1
        for name, array, values in (
            ("reward", arrays.rewards, self._rewards[rows]),
            ("terminated", arrays.terminated, self._terminated[rows]),
            ("truncated", arrays.truncated, self._truncated[rows]),
        ):
            try:
                array[:] = values
            except (ValueError, TypeError):
                # Some environments return arrays of one number.
                for i, value in enumerate(values):
                    self.active = rows.start + i
                    array[i] = single_value(name, value, array.dtype)
        finite = np.isfinite(arrays.rewards)
        if not finite.all():
            i = int(finite.argmin())
            self.active = row = rows.start + i
            self._envs[row].raise_nonfinite(self._rewards[row], arrays.time_idxs[i : i + 1])
