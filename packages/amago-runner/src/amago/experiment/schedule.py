"""Schedules of a run: the epochs that an interval selects, and a learning rate that falls linearly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le
from torch.optim.lr_scheduler import LambdaLR

from amago.envs.arguments import check_arguments
from amago.experiment.callbacks import Callback

if TYPE_CHECKING:
    from amago.experiment import Experiment


def is_due(epoch: int, interval: int | float | None) -> bool:
    """Whether `epoch` is a multiple of `interval`; False if `interval` is None or infinite."""
    if interval is None or math.isinf(interval):
        return False
    return epoch % int(interval) == 0


class LinearDecay(Callback):
    """Callback: the learning rate falls linearly over the run, so that the last policies differ little.

    The rate of update u is `learning_rate` * min(1, (u + 1) / lr_warmup_steps) * (1 - u / updates * (1 - end)).

    Args:
        updates: length of the run in updates.
        end: learning rate at the end, as a share of `learning_rate`, in (0, 1].

    Raises:
        ValueError: if an argument is out of range.
    """

    @check_arguments
    def __init__(self, updates: Annotated[int, Ge(1)], end: Annotated[float, Gt(0), Le(1)]) -> None:
        self.updates = updates
        self.end = end

    def on_start(self, experiment: Experiment) -> None:
        """Replaces the schedule; that of a resumed run continues at its update."""
        warmup = max(1, experiment.lr_warmup_steps)

        def factor(update: int) -> float:
            done = min(1.0, update / self.updates)
            return min(1.0, (update + 1) / warmup) * (1.0 - done * (1.0 - self.end))

        for group in experiment.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        updates_done = experiment.counters.gradient_steps
        schedule = LambdaLR(experiment.optimizer, factor, last_epoch=updates_done - 1)
        experiment.lr_schedule = experiment.learner.lr_schedule = schedule
