"""RolloutBetween: a rollout whose steps are spread over other work, such as updates.

Environments in worker processes step while this process works.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from amago.envs.interrupts import defer_interrupts
from amago.envs.recorder import TrajectoryWriteError
from amago.experiment.rollout import Rollout

T = TypeVar("T")


class RolloutBetween:
    """Takes steps of a rollout between the items of an iterator, such as training batches.

    Args:
        rollout: steps the environments. Its agent stays in eval mode and keeps the weights of the beginning, so it
            must not be the one that is trained.
        timesteps: steps per actor.
        sample: sample actions from the policy; False takes its mode.
        progress: called after every step with the number of environments.
        stop: no step begins once it returns True.
    """

    def __init__(
        self,
        rollout: Rollout,
        timesteps: int,
        *,
        sample: bool = True,
        progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.rollout = rollout
        self.timesteps = timesteps
        self._sample = sample
        self._progress = progress
        self._stop = stop
        self._begun = 0
        self._is_running = False

    def spread_over(self, items: Iterator[T], count: int) -> Generator[T]:
        """Yields `items`, and takes an equal share of the steps before each.

        The last step before an item runs until the next step begins, which may be several items later. Close the
        iterator when you leave it early: that finishes the running step.

        Args:
            items: the items.
            count: number of items.

        Raises:
            ValueError, TrajectoryWriteError: as `Rollout.run`.
        """
        with self.rollout.acting():
            try:
                for number in itertools.count(1):
                    self._begin_until(math.ceil(self.timesteps * min(number, count) / count))
                    item = next(items, None)
                    if item is None:
                        break
                    yield item
                self._begin_until(self.timesteps)  # if there were fewer items
            finally:
                self._finish()

    def _begin_until(self, due: int) -> None:
        """Begins steps until `due` of them are begun; the last one is left running."""
        while self._begun < due:
            self._finish()
            if self._stop is not None and self._stop():
                return
            with self._recorded_or_restarted():
                self.rollout.begin_step(self._sample)
                self._begun, self._is_running = self._begun + 1, True

    def _finish(self) -> None:
        """Finishes the running step, if there is one."""
        if not self._is_running:
            return
        self._is_running = False
        with self._recorded_or_restarted():
            self.rollout.finish_step(None)
        if self._progress is not None:
            self._progress(self.rollout.vector_env.num_envs)
        self.rollout.times.lap("other")

    @contextlib.contextmanager
    def _recorded_or_restarted(self) -> Iterator[None]:
        """Defers Ctrl-C; after a failure, the next rollout begins new episodes."""
        with defer_interrupts():
            try:
                yield
            except TrajectoryWriteError:  # the step is recorded
                raise
            except BaseException:
                self.rollout.inputs = None
                raise
