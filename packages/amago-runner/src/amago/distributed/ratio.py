"""UpdateRatio: holds the number of updates per collected timestep by making the faster side wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from amago.experiment.callbacks import Callback
from amago.experiment.shared_run import read_collected
from amago.experiment.status import is_alive, read_status

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment

POLL_SECONDS = 0.1
_SECONDS_BETWEEN_READS = 1.0


class UpdateRatio(Callback):
    """Holds `ratio` between a learner and the collectors of its run; each of these processes needs one.

    This is what `train_freq` and `gradient_steps` are in Stable-Baselines3, for processes that do not take turns.

    The learner waits while it has made `ratio` updates for every collected timestep. Collectors wait once they are
    more than one of their rounds ahead of the learner, also while there is none, but not while it waits for its
    first data. Since only one side can be ahead, they never wait for each other. A collector that waits when its
    learner ends goes on waiting: end it with a signal, or from `wait`.

    Args:
        ratio: Optimizer steps per timestep of all collectors together, above 0.

    Raises:
        ValueError: `ratio` is not above 0.
    """

    def __init__(self, ratio: float) -> None:
        if not ratio > 0:
            raise ValueError(f"ratio is {ratio!r}, must be above 0 updates per timestep")
        self.ratio = ratio
        self._collected = 0
        self._step_budget = 0.0
        self._steps_since_read = 0
        self._next_read = 0.0

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        if experiment.role != "learner":
            return
        # What was read last is enough until the learner has caught up with it.
        while (
            experiment.counters.gradient_steps >= self.ratio * self._collected and not experiment.interrupted
        ):
            collected = read_collected(experiment.run_dir).env_steps
            if collected == self._collected:
                self.wait(experiment, "waiting for collectors")
            self._collected = collected
        experiment.status.enter(experiment, "learning")

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        if section != "train" or experiment.slot is None:
            return
        self._steps_since_read += env_steps
        if self._steps_since_read < self._step_budget / 8 and time.monotonic() < self._next_read:
            return  # Reading after an eighth of the budget lets eight collectors share it.
        self._steps_since_read = 0
        experiment.slot.write(experiment)  # The learner must not wait for timesteps that it cannot see.
        while self._read_step_budget(experiment) <= 0 and not experiment.interrupted:
            self.wait(experiment, "waiting for learner")
        experiment.status.enter(experiment, "collecting")

    def _read_step_budget(self, experiment: Experiment) -> float:
        """The timesteps that collectors may still collect before the learner's next update; at most 0: wait."""
        self._next_read = time.monotonic() + _SECONDS_BETWEEN_READS
        dataset = experiment.dataset
        assert dataset is not None
        round_steps = experiment.train_timesteps_per_epoch * experiment.parallel_actors
        budget = step_budget(
            experiment.run_dir, self.ratio, round_steps, has_data=lambda: dataset.ready_for_training
        )
        self._step_budget = min(budget, round_steps)  # The learner may get what it waits for at any step.
        return self._step_budget

    def wait(self, experiment: Experiment, phase: str) -> None:
        """Shows the phase and sleeps for a moment; subclasses may raise here to end the run."""
        experiment.status.enter(experiment, phase)
        time.sleep(POLL_SECONDS)


def step_budget(
    run_dir: Path, ratio: float, round_steps: int, *, has_data: Callable[[], bool] = lambda: False
) -> float:
    """Timesteps that collectors may still collect: up to `round_steps` more than the learner's updates ask for.

    Infinite while the learner waits for its first data, unless `has_data` says that it will see them in a moment.
    A learner that is not there yet counts as one without updates, since collectors would be far ahead of it by the
    time it has started.
    """
    learner = next((status for status in read_status(run_dir) if status["role"] == "learner"), None)
    waits = learner is not None and learner["phase"] == "waiting for data" and is_alive(learner)
    if waits and not has_data():
        return math.inf
    updates = 0 if learner is None else learner["gradient_steps"]
    return float(updates / ratio + round_steps - read_collected(run_dir).env_steps)
