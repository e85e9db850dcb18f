"""SplitRollout (double buffering): the agent acts for one half of the actors while the other half steps.

Each half is a `Rollout` with a vector environment, hidden state and recorder of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amago.envs.interrupts import defer_interrupts
from amago.envs.metrics import EpisodeStats
from amago.envs.recorder import SplitRecorder, TrajectoryWriteError
from amago.envs.vector import SplitVectorEnv
from amago.experiment.episode_stats import RolloutLimits
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.experiment.shared_run import add_counts
from amago.tracking import TimeBreakdown


class SplitRollout:
    """`Rollout` over two vector environments; arguments and methods as there.

    It hides the shorter of acting and stepping behind the longer one, and costs a second call of the agent per
    step: worthwhile where environments are slow and cores are free for their workers.

    Args:
        vector_env: the two halves.
        recorder: the recorders of the two halves.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        vector_env: SplitVectorEnv,
        *,
        recorder: SplitRecorder | None = None,
        stats: EpisodeStats | None = None,
        times: TimeBreakdown | None = None,
    ) -> None:
        self.times = TimeBreakdown() if times is None else times
        self.vector_env = vector_env
        self.recorder = recorder
        recorders = (None, None) if recorder is None else recorder.halves
        self.halves = tuple(
            Rollout(policy, env, recorder=half_recorder, times=self.times)
            for env, half_recorder in zip(vector_env.halves, recorders, strict=True)
        )
        self.stats = EpisodeStats() if stats is None else stats

    @property
    def stats(self) -> EpisodeStats:
        """Receives finished episodes of both halves."""
        return self.halves[0].stats

    @stats.setter
    def stats(self, stats: EpisodeStats) -> None:
        for half in self.halves:
            half.stats = stats

    @property
    def started(self) -> bool:
        """Whether `reset` has been called."""
        return all(half.started for half in self.halves)

    @property
    def hidden_state(self) -> tuple[Any, ...]:
        """The hidden states of the two halves."""
        return tuple(half.hidden_state for half in self.halves)

    @hidden_state.setter
    def hidden_state(self, hidden_states: tuple[Any, ...]) -> None:
        for half, hidden_state in zip(self.halves, hidden_states, strict=True):
            half.hidden_state = hidden_state

    @property
    def steps_by_env_name(self) -> dict[str, int]:
        """Steps so far, up to date after each run."""
        totals: dict[str, int] = {}
        for half in self.halves:
            add_counts(totals, half.steps_by_env_name)
        return totals

    def reset(self, seed: int | None = None) -> None:
        """As `Rollout.reset`."""
        for half in self.halves:
            half.reset(seed)

    def run(
        self,
        timesteps: int | None = None,
        episodes: int | None = None,
        sample: bool = True,
        render: bool = False,
        progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """As `Rollout.run`; at its end both halves have taken the same number of steps.

        With `render` or `episodes` the halves step together, without overlap between consecutive steps.
        """
        limits = RolloutLimits(timesteps, episodes, self.vector_env.num_envs, stop)
        if not self.started:
            self.reset()
        first, second = self.halves
        middle = first.vector_env.num_envs
        first_remaining = limits.rows(slice(0, middle))
        second_remaining = limits.rows(slice(middle, self.vector_env.num_envs))
        failure: TrajectoryWriteError | None = None
        with first.acting(), second.acting(), defer_interrupts() as interrupts:
            begun = False  # whether the first half has started the next step
            while begun or not limits.reached():
                try:
                    if not begun:
                        first.begin_step(sample)
                    second.begin_step(sample)
                    failure = _finish(first, first_remaining) or failure
                    begun = (
                        limits.next_step_is_certain()
                        and failure is None
                        and not render
                        and not interrupts.pending
                    )
                    if begun:
                        first.begin_step(sample)
                    failure = _finish(second, second_remaining) or failure
                except BaseException:
                    # The halves may have taken different numbers of steps.
                    first.inputs = second.inputs = None
                    raise
                limits.done += 1
                if render:
                    self.vector_env.render()
                if progress is not None:
                    progress(self.vector_env.num_envs)
                self.times.lap("other")
                if not begun:
                    if failure is not None:
                        raise failure
                    interrupts.deliver()


def _finish(half: Rollout, remaining: Any) -> TrajectoryWriteError | None:
    """Finishes the step of a half; a failed write is returned, to be raised when both halves are done."""
    try:
        half.finish_step(remaining)
    except TrajectoryWriteError as error:
        return error
    return None
