"""BatchedStepper: steps single environments sequentially and batches the processing of actions and results.

Per-environment action checks, action scaling, noise sampling and writes to one-element arrays would take
several times as long as a step of one to two microseconds. The results are bit-identical to those of
`env.step`.

Shapes: n environments, K numbers per policy action, A width of the action representation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from amago.envs.actions import DiscreteCodec, make_action_codec
from amago.envs.amago_env import AMAGOEnv, single_value
from amago.envs.exploration.base import ExplorationWrapper
from amago.envs.vector.shared_arrays import StepArrays
from amago.hindsight import Array

_BOOLS = frozenset((bool, np.bool_))


def can_be_batched(envs: Sequence[Any]) -> bool:
    """Whether `BatchedStepper` supports `envs`, a list of AMAGOEnvs or of exploration wrappers around them.

    It does not support batched environments, different action spaces, different exploration classes, or
    subclasses that override a method which it would not call, see `overridden_methods`.
    """
    if len(envs) < 2 or len({type(env) for env in envs}) > 1:
        return False
    if any(overridden_methods(env) for env in envs):
        return False
    inner = [env.env for env in envs] if isinstance(envs[0], ExplorationWrapper) else envs
    return all(
        isinstance(env, AMAGOEnv)
        and env.batched_envs == 1
        and env.env.action_space == inner[0].env.action_space
        for env in inner
    )


def overridden_methods(env: Any) -> list[str]:
    """Overridden methods of an AMAGOEnv, or of exploration around it, that `BatchedStepper` would not call."""
    methods = []
    if isinstance(env, ExplorationWrapper):
        methods += _overridden(env, ExplorationWrapper, "step")
        env = env.env
    if isinstance(env, AMAGOEnv) and env.batched_envs == 1:
        methods += _overridden(env, AMAGOEnv, "step", "make_action_rep")
    return methods


def _overridden(env: Any, base: type[Any], *names: str) -> list[str]:
    return [
        f"{type(env).__name__}.{name}"
        for name in names
        if getattr(type(env), name) is not getattr(base, name)
    ]


class BatchedStepper:
    """Steps n environments for which `can_be_batched` holds.

    Args:
        envs: AMAGOEnvs or exploration wrappers around them.
        arrays: the n rows that the environments write to.

    Attributes:
        active: index of the last environment used, for error messages.
    """

    def __init__(self, envs: Sequence[Any], arrays: StepArrays) -> None:
        self.active = 0
        self._arrays = arrays
        self._explorers: list[ExplorationWrapper] = []
        if isinstance(envs[0], ExplorationWrapper):
            self._explorers = list(envs)
        self._envs: list[AMAGOEnv] = [env.env for env in envs] if self._explorers else list(envs)
        for row, env in enumerate(self._envs):
            env.shared_step_count = arrays.time_idxs[row : row + 1]
        # If `inner_step` is not overridden, a direct call of `env.step` saves one function call.
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

    def step(self, actions: Array) -> list[tuple[int, dict[str, Any]]]:
        """Adds exploration noise, steps every environment and fills all arrays except `rl2s`.

        Args:
            actions: (n, K) policy actions.

        Returns:
            (row, info) of each environment with a non-empty info.
        """
        if self._explorers:
            actions = type(self._explorers[0]).batched_actions(self._explorers, actions)
        env_actions = self._checked(actions)
        rewards, terminated, truncated = self._rewards, self._terminated, self._truncated
        write_obs, infos = self._write_obs, []
        for row, step_env in enumerate(self._step_env):
            self.active = row
            result = step_env(env_actions[row])
            if type(result) is not tuple or len(result) != 5:
                result = self._envs[row].check_step_result(result)
            obs, rewards[row], terminated[row], truncated[row], info = result
            write_obs[row](obs)
            if info:
                infos.append((row, info))
        for explorer in self._explorers:
            explorer.count_step()
        self._fill()
        return infos

    def _checked(self, actions: Array) -> Any:
        """Writes the action representations; returns the actions in the environments' format."""
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

    def _fill(self) -> None:
        arrays = self._arrays
        arrays.time_idxs += 1
        for name, array, values in (
            ("reward", arrays.rewards, self._rewards),
            ("terminated", arrays.terminated, self._terminated),
            ("truncated", arrays.truncated, self._truncated),
        ):
            try:
                if array is not arrays.rewards and not _BOOLS.issuperset(map(type, values)):
                    raise TypeError(f"{name} are not booleans")
                array[:] = values
            except (ValueError, TypeError):
                # Some environments return one-element arrays or numbers.
                for row, value in enumerate(values):
                    self.active = row
                    array[row] = single_value(name, value, array.dtype.type)
        finite = np.isfinite(arrays.rewards)
        if not finite.all():
            self.active = row = int(finite.argmin())
            self._envs[row].raise_nonfinite(self._rewards[row], arrays.time_idxs[row : row + 1])
