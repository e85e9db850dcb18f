"""Epsilon-greedy exploration: a random action with probability epsilon, or noise of that scale on a Box.

Epsilon decreases linearly over an actor's training steps. The bilevel schedule (AMAGO, Grigsby et al. 2023,
appendix A) also changes it within each rollout, from much exploration at the start of an unknown task to little at
its end.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import gin
import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Ge, MultipleOf

from amago.envs.arguments import NonNegative, Size, check_arguments
from amago.envs.exploration.base import ExplorationWrapper, register_exploration
from amago.hindsight import Array


@register_exploration("bilevel")
@gin.configurable(module="amago.envs.exploration")
class BilevelEpsilonGreedy(ExplorationWrapper):
    """Epsilon that changes linearly both over training and within each rollout.

    In a rollout it changes from a start value to an end value over `rollout_horizon` steps and stays there; each
    of the two values changes from its first to its second setting over `steps_anneal` steps of this actor.

    Args:
        amago_env: the AMAGOEnv.
        rollout_horizon: steps of a rollout, at least 1.
        eps_start_start: epsilon at the start of a rollout at the start of training.
        eps_start_end: epsilon at the start of a rollout after `steps_anneal`.
        eps_end_start: epsilon at the end of a rollout at the start of training.
        eps_end_end: epsilon at the end of a rollout after `steps_anneal`.
        steps_anneal: steps of this actor over which the schedule runs, at least 1.
        randomize_eps: multiply epsilon by a uniform random number in [0, 1) for each episode, so that the schedule
            is an upper bound.

    Raises:
        ValueError: for a negative epsilon, or a horizon or annealing time below 1.
    """

    @check_arguments
    def __init__(
        self,
        amago_env: gym.Env[Any, Any],
        rollout_horizon: Size = gin.REQUIRED,
        eps_start_start: NonNegative = 1.0,
        eps_start_end: NonNegative = 0.05,
        eps_end_start: NonNegative = 0.8,
        eps_end_end: NonNegative = 0.01,
        steps_anneal: Annotated[float, Ge(1), MultipleOf(1)] = 1_000_000,
        randomize_eps: bool = True,
    ) -> None:
        super().__init__(amago_env)
        self.rollout_horizon = rollout_horizon
        self.eps_start_start, self.eps_start_end = eps_start_start, eps_start_end
        self.eps_end_start, self.eps_end_end = eps_end_start, eps_end_end
        self.steps_anneal = steps_anneal
        self.randomize_eps = randomize_eps
        self._multiplier: npt.NDArray[np.float64] = np.ones(self.batched_envs)
        self._add_noise = _noise_for(self.action_space)
        is_box = isinstance(self.action_space, gym.spaces.Box)
        self._sizes: list[int] | None = None if is_box else _num_choices(self.action_space).tolist()
        self._epsilon_is_own = type(self).current_eps is not BilevelEpsilonGreedy.current_eps

    def on_episode_start(self, rows: npt.NDArray[np.int64]) -> None:
        if self.randomize_eps:
            self._multiplier[rows] = self.rng.random(len(rows))

    def current_eps(self, local_step: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Epsilon of each environment, the episode's multiplier included.

        Args:
            local_step: (E,) int64, steps since the start of each episode.

        Returns:
            (E,) float64, newly allocated: subclasses may edit it in place.
        """
        start, end = self._ends_of_rollout()
        if start == end:
            return start * self._multiplier
        within = np.minimum(np.asarray(local_step) / self.rollout_horizon, 1.0)
        eps: npt.NDArray[np.float64] = (start + (end - start) * within) * self._multiplier
        return eps

    def _ends_of_rollout(self) -> tuple[float, float]:
        """Epsilon before the episode's multiplier, at the start of a rollout and at its end."""
        progress = min(self.global_step / self.steps_anneal, 1.0)
        return (
            self.eps_start_start + (self.eps_start_end - self.eps_start_start) * progress,
            self.eps_end_start + (self.eps_end_end - self.eps_end_start) * progress,
        )

    @classmethod
    def batched_actions(cls, wrappers: Sequence[ExplorationWrapper], actions: Array) -> Array:
        if (
            cls.action is not ExplorationWrapper.action
            or cls.add_exploration_noise is not BilevelEpsilonGreedy.add_exploration_noise
        ):
            return super().batched_actions(wrappers, actions)
        greedy = cast("Sequence[BilevelEpsilonGreedy]", wrappers)
        epsilons = _single_epsilons(greedy)
        sizes = greedy[0]._sizes
        if sizes is None:
            noise = np.stack([wrapper.rng.standard_normal(actions[0].size) for wrapper in greedy])
            return _with_gaussian_noise(actions, np.array(epsilons), noise)
        drawn = [wrapper.rng.random() for wrapper in greedy]
        if not any(map(operator.lt, drawn, epsilons)):
            return actions
        noisy = actions.tolist()
        for row, (wrapper, eps) in enumerate(zip(greedy, epsilons, strict=True)):
            if drawn[row] < eps:
                noisy[row] = [int(wrapper.rng.random() * size) for size in sizes]
        return np.array(noisy, actions.dtype)

    def add_exploration_noise(self, action: Array, local_step: npt.NDArray[np.int64]) -> Array:
        """With probability epsilon a uniformly random action; for a Box, action + epsilon * N(0, 1), clipped."""
        return self._add_noise(self.rng, action, self.current_eps(local_step))

    def exploration_state(self) -> dict[str, Any]:
        return {**super().exploration_state(), "multiplier": self._multiplier.tolist()}

    def load_exploration_state(self, state: dict[str, Any]) -> None:
        super().load_exploration_state(state)
        if "multiplier" not in state:
            raise ValueError(f"the exploration state lacks 'multiplier'; it holds {sorted(state)}")
        self._multiplier = np.asarray(state["multiplier"], dtype=np.float64)


@register_exploration("egreedy")
@gin.configurable(module="amago.envs.exploration")
class EpsilonGreedy(BilevelEpsilonGreedy):
    """Epsilon that decreases linearly over training and is constant within a rollout.

    Args:
        amago_env: the AMAGOEnv.
        eps_start: epsilon at the start of training.
        eps_end: epsilon after `steps_anneal`.
        steps_anneal: steps of this actor over which the schedule runs, at least 1.
        randomize_eps: multiply epsilon by a uniform random number in [0, 1) for each episode.

    Raises:
        ValueError: for a negative epsilon or an annealing time below 1.
    """

    @check_arguments
    def __init__(
        self,
        amago_env: gym.Env[Any, Any],
        eps_start: NonNegative = 1.0,
        eps_end: NonNegative = 0.05,
        steps_anneal: Annotated[float, Ge(1), MultipleOf(1)] = 1_000_000,
        randomize_eps: bool = True,
    ) -> None:
        super().__init__(
            amago_env,
            rollout_horizon=1,
            eps_start_start=eps_start,
            eps_start_end=eps_end,
            eps_end_start=eps_start,
            eps_end_end=eps_end,
            steps_anneal=steps_anneal,
            randomize_eps=randomize_eps,
        )


def _single_epsilons(wrappers: Sequence[BilevelEpsilonGreedy]) -> list[float]:
    """`current_eps` of single environments; in Python floats, ten times as fast, unless it is overridden."""
    epsilons = []
    for wrapper in wrappers:
        if wrapper._epsilon_is_own:
            epsilons.append(float(wrapper.current_eps(wrapper._local_step)[0]))
            continue
        progress = wrapper.global_step / wrapper.steps_anneal
        if progress > 1.0:
            progress = 1.0
        first, end = wrapper.eps_start_start, wrapper.eps_end_start
        eps = first + (wrapper.eps_start_end - first) * progress
        end += (wrapper.eps_end_end - end) * progress
        if eps != end:
            eps += (end - eps) * min(wrapper._local_step.item() / wrapper.rollout_horizon, 1.0)
        epsilons.append(eps * wrapper._multiplier.item())
    return epsilons


_Noise = Callable[[np.random.Generator, Array, npt.NDArray[np.float64]], Array]


def _noise_for(space: gym.spaces.Space[Any]) -> _Noise:
    if isinstance(space, gym.spaces.Box):
        return _gaussian_noise
    return _random_choices(_num_choices(space))


def _num_choices(space: gym.spaces.Space[Any]) -> npt.NDArray[np.int64]:
    """The number of choices for each of the K components of an action, (K,)."""
    if isinstance(space, gym.spaces.Discrete):
        return np.array([space.n])
    if isinstance(space, gym.spaces.MultiDiscrete):
        return np.asarray(space.nvec)
    if isinstance(space, gym.spaces.MultiBinary):
        return np.full(space.shape, 2)
    raise TypeError(
        f"there is no exploration noise for the action space {space}; override add_exploration_noise"
    )


def _random_choices(sizes: npt.NDArray[np.int64]) -> _Noise:
    """Noise that replaces an action of K components, as a whole, by a uniformly random one."""

    def add_noise(rng: np.random.Generator, action: Array, eps: npt.NDArray[np.float64]) -> Array:
        num_envs = len(eps)
        explores = rng.random(num_envs) < eps  # (E,)
        if not np.count_nonzero(explores):
            return action
        noisy = action.reshape(num_envs, -1).copy()
        # floor(u * n) is uniform enough for any action space, and far cheaper than rng.integers.
        drawn = (rng.random((num_envs, len(sizes))) * sizes).astype(np.int64)
        noisy[explores] = drawn[explores]
        replaced: Array = noisy.reshape(action.shape)
        return replaced

    return add_noise


def _gaussian_noise(rng: np.random.Generator, action: Array, eps: npt.NDArray[np.float64]) -> Array:
    rows = action.reshape(len(eps), -1)
    return _with_gaussian_noise(action, eps, rng.standard_normal(rows.shape))


def _with_gaussian_noise(action: Array, eps: npt.NDArray[np.float64], noise: Array) -> Array:
    """Action + epsilon * noise, clipped; `noise` is (E, A) and drawn from N(0, 1)."""
    noise = eps[:, None] * noise
    noise += action.reshape(noise.shape)
    np.minimum(noise, 1.0, out=noise)
    np.maximum(noise, -1.0, out=noise)
    noisy: npt.NDArray[np.float32] = noise.astype(np.float32).reshape(action.shape)
    return noisy
