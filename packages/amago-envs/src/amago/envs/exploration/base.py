"""ExplorationWrapper, the base class of exploration strategies, and their registry."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.arguments import check_arguments
from amago.envs.gymnasium_compat import ForwardingWrapper, find_attribute
from amago.envs.registry import Registry
from amago.envs.seeding import stream
from amago.hindsight import Array, Timestep


class ExplorationWrapper(ForwardingWrapper, gym.ActionWrapper):
    """Adds noise to the policy's actions in a training environment.

    It wraps an AMAGOEnv inside a vector environment. Noisy actions are executed and recorded. Subclasses
    override `add_exploration_noise` and draw random numbers from `self.rng`.

    Args:
        amago_env: the AMAGOEnv, with E = `batched_envs` environments.

    Attributes:
        global_step: number of steps taken over all episodes.
        rng: random generator of the noise.

    Raises:
        TypeError: if `amago_env` is not an AMAGOEnv or a wrapper of one.
    """

    @check_arguments
    def __init__(self, amago_env: gym.Env[Any, Any]) -> None:
        super().__init__(amago_env)
        try:
            self.batched_envs = int(find_attribute(amago_env, "batched_envs"))
        except AttributeError:
            raise TypeError(
                f"amago_env must be an AMAGOEnv, got {type(amago_env).__name__}: use "
                f"{type(self).__name__}(AMAGOEnv(env))"
            ) from None
        self.global_step = 0
        self.rng = stream(None, "exploration")
        self._seeded = False
        self._local_step = np.zeros(self.batched_envs, dtype=np.int64)

    @property
    def _local_step(self) -> npt.NDArray[np.int64]:
        """(E,) int64, steps since the start of each episode; newly allocated."""
        return self._steps_before + self._steps_counted

    @_local_step.setter
    def _local_step(self, steps: npt.NDArray[np.int64]) -> None:
        self._steps_before = steps
        self._steps_counted = 0  # an int is incremented ten times faster than an array

    def seed_exploration(self, generator: np.random.Generator) -> None:
        """Sets the random generator of the noise."""
        self.rng = generator
        self._seeded = True

    def add_exploration_noise(self, action: Array, local_step: npt.NDArray[np.int64]) -> Array:
        """Returns the action to execute.

        Args:
            action: policy actions with leading dimension E; must not be modified in place.
            local_step: (E,) int64, steps since the start of each episode.

        Returns:
            An action of the same shape in the policy's action space.
        """
        raise NotImplementedError(f"{type(self).__name__} must define add_exploration_noise")

    def action(self, a: Any) -> Array:
        """Returns the noisy action for the policy's action `a`."""
        array = np.asarray(a)
        if array.ndim == 0:
            array = array.reshape(1)
        return self.add_exploration_noise(array, self._local_step)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Timestep, dict[str, Any]]:
        """Resets the environment; `seed` also seeds the noise unless `seed_exploration` was called."""
        if seed is not None and not self._seeded:
            self.rng = stream(seed, "exploration")
        timestep, info = self.env.reset(seed=seed, options=options)
        self._local_step = np.zeros(self.batched_envs, dtype=np.int64)
        self.on_episode_start(np.arange(self.batched_envs))
        return timestep, info

    def step(self, action: Any) -> Any:
        """Executes the noisy action, which becomes the timestep's `prev_action`."""
        result: Any = self.env.step(self.action(action))
        if self.batched_envs == 1:
            # Single environments are reset by the caller.
            self.count_step()
            return result
        self.global_step += 1
        done = result[2] | result[3]
        self._local_step = np.where(done, 0, self._local_step + 1)
        if done.any():
            self.on_episode_start(np.flatnonzero(done))
        return result

    @classmethod
    def batched_actions(cls, wrappers: Sequence["ExplorationWrapper"], actions: Array) -> Array:
        """Calls `action` of n wrappers around single environments, wrapper i with row i of `actions`.

        Subclasses may override it with a vectorized version that draws from the same generators in the same
        order.
        """
        return np.concatenate(
            [wrapper.action(actions[row : row + 1]) for row, wrapper in enumerate(wrappers)]
        )

    def count_step(self) -> None:
        """Counts a step of a single environment that bypassed `step`."""
        self.global_step += 1
        self._steps_counted += 1

    def on_episode_start(self, rows: npt.NDArray[np.int64]) -> None:
        """Hook for the rows that start an episode, after a reset or an autoreset of a batched env."""

    def exploration_state(self) -> dict[str, Any]:
        """JSON-serializable state, with which a resumed run continues the same noise."""
        return {
            "global_step": self.global_step,
            "local_step": self._local_step.tolist(),
            "rng": _plain(self.rng.bit_generator.state),
        }

    def load_exploration_state(self, state: dict[str, Any]) -> None:
        """Restores `exploration_state`; raises ValueError if it belongs to another wrapper."""
        try:
            local_step, rng_state = state["local_step"], dict(state["rng"])
            global_step = int(state["global_step"])
        except KeyError as error:
            raise ValueError(f"the exploration state lacks {error}; it holds {sorted(state)}") from None
        if len(local_step) != self.batched_envs:
            raise ValueError(
                f"the state has {len(local_step)} environments, but this wrapper has {self.batched_envs}"
            )
        bit_generator = getattr(np.random, str(rng_state["bit_generator"]))()
        bit_generator.state = rng_state
        self.rng = np.random.Generator(bit_generator)
        self._seeded = True
        self.global_step = global_step
        self._local_step = np.asarray(local_step, dtype=np.int64)

    @property
    def return_history(self) -> Any:
        """`return_history` of the wrapped environment; exists only with a SequenceWrapper."""
        return find_attribute(self.env, "return_history")

    @property
    def success_history(self) -> Any:
        """`success_history` of the wrapped environment; exists only with a SequenceWrapper."""
        return find_attribute(self.env, "success_history")


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (np.ndarray, np.integer)):
        return state.tolist()
    return state


_Wrapper = TypeVar("_Wrapper", bound=type[ExplorationWrapper])
exploration_registry: Registry[ExplorationWrapper] = Registry("exploration strategy")


def register_exploration(name: str) -> Callable[[_Wrapper], _Wrapper]:
    """Class decorator that registers an exploration wrapper; raises ValueError if the name is registered."""
    return exploration_registry.register(name)


def get_exploration_cls(name: str) -> type[ExplorationWrapper]:
    """Returns the exploration wrapper registered as `name`; raises ValueError if the name is unknown."""
    return exploration_registry.get(name)


def list_registered_explorations() -> list[str]:
    """All registered names, sorted."""
    return exploration_registry.names()
