"""Evaluator: runs the policy in vector environments without exploration and summarizes finished episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from amago.envs.metrics import EpisodeStats, ReturnHistory, SpecialMetricHistory
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import VectorEnv
from amago.experiment.random_streams import RandomStreams
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.nets.specs import as_spec
from amago.utils import amago_warning


class Evaluator:
    """Evaluates an agent on new episodes.

    Args:
        policy: The agent.
        streams: Random streams of environments and actions.
    """

    def __init__(self, policy: ActingPolicy, streams: RandomStreams) -> None:
        self._policy = policy
        self._streams = streams

    def evaluate(
        self,
        envs: VectorEnv,
        index: int,
        *,
        timesteps: int | None = None,
        episodes: int | None = None,
        hidden_state: Any = None,
        sample: bool = True,
        render: bool = False,
        recorder: TrajectoryRecorder | None = None,
        progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> tuple[Any, EpisodeStats]:
        """Resets the environments and runs the policy.

        Args:
            envs: The environments; they stay open.
            index: Key of the random streams: the epoch, or a number from `RandomStreams.next_test`. The same index
                gives the same episodes.
            timesteps: Maximum timesteps per actor; None for no limit.
            episodes: Number of episodes to count, divided evenly among the actors so that short episodes are not
                overrepresented; None counts all that finish within `timesteps`.
            hidden_state: Initial hidden state of the policy; None for a blank one.
            sample: Sample actions from the policy; False takes its mode.
            render: Render after every step.
            recorder: Writes finished episodes to files. It is flushed but not closed.
            progress: Called after every step with the number of timesteps.
            stop: Called after every step; True ends the evaluation.

        Returns:
            The final hidden state and the statistics of finished episodes.
        """
        rollout = Rollout(self._policy, envs, recorder=recorder)
        with self._streams.evaluating(index):
            rollout.reset(seed=self._streams.eval_seed(index))
            if hidden_state is not None:
                rollout.hidden_state = hidden_state
            rollout.run(
                timesteps=timesteps,
                episodes=episodes,
                sample=sample,
                render=render,
                progress=progress,
                stop=stop,
            )
        if recorder is not None:
            recorder.flush()
        return rollout.hidden_state, rollout.stats


class HasSpaces(Protocol):
    """An AMAGOEnv or a vector environment: anything with the spaces of one actor."""

    @property
    def observation_space(self) -> Any: ...

    @property
    def rl2_space(self) -> Any: ...

    @property
    def action_space(self) -> Any: ...


def require_same_spaces(expected: HasSpaces, other: HasSpaces) -> None:
    """Checks that an agent built for the spaces of `expected` can act in `other`.

    Keys, shapes and dtypes of observations and the kind and sizes of actions must be equal. Other bounds of an
    observation, as of a larger maze, are allowed, with a warning.

    Raises:
        ValueError: the spaces differ.
    """
    for name in ("observation", "action"):
        ours, theirs = getattr(expected, f"{name}_space"), getattr(other, f"{name}_space")
        if _layout(ours) != _layout(theirs):
            raise ValueError(
                f"the environments have the {name} space {theirs}, but the agent is built for {ours}: use "
                "environments with the same spaces as the training environments"
            )
    for key, space in expected.observation_space.items():
        another = other.observation_space[key]
        if not (np.array_equal(space.low, another.low) and np.array_equal(space.high, another.high)):
            amago_warning(
                f"observation {key!r} is {another} in the evaluated environments and {space} in those that the "
                "agent is built for: values outside the latter's bounds are new to it"
            )


def _layout(space: Any) -> Any:
    spec = as_spec(space)
    if hasattr(spec, "arrays"):
        return {key: (tuple(array.shape), array.dtype) for key, array in spec.arrays.items()}
    return spec.kind, tuple(spec.sizes)


def stats_from_histories(
    returns: Iterable[ReturnHistory], specials: Iterable[SpecialMetricHistory]
) -> EpisodeStats:
    """Episode statistics from the histories that `SequenceWrapper` keeps."""
    stats = EpisodeStats()
    for history in returns:
        for name, scores in history.data.items():
            stats.returns.setdefault(name, []).extend(scores)
    for special in specials:
        for name, metrics in special.data.items():
            for metric, values in metrics.items():
                stats.specials.setdefault(name, {}).setdefault(metric, []).extend(values)
    return stats


def histories_from_stats(
    stats: EpisodeStats,
) -> tuple[list[ReturnHistory], list[SpecialMetricHistory]]:
    """The inverse of `stats_from_histories`, one history per environment name."""
    returns, specials = [], []
    for name, scores in stats.returns.items():
        returns.append(ReturnHistory(name))
        returns[-1].data[name] = list(scores)
    for name, metrics in stats.specials.items():
        specials.append(SpecialMetricHistory(name))
        specials[-1].data[name] = {metric: list(values) for metric, values in metrics.items()}
    return returns, specials
