"""LinearDecay: a learning rate that falls over the run, so that the last policies differ little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LambdaLR

from amago.experiment.callbacks import Callback

if TYPE_CHECKING:
    from amago.experiment import Experiment


class LinearDecay(Callback):
    """A callback of Experiment that lets the learning rate fall linearly after the warm-up.

    Args:
        updates: length of the run in updates.
        end: learning rate at the end, as a share of the highest, in (0, 1].
    """

    def __init__(self, updates: int, end: float) -> None:
        self.updates = updates
        self.end = end

    def on_start(self, experiment: Experiment) -> None:
        """Replaces the schedule; that of a resumed run continues at its update."""
        warmup = max(1, experiment.lr_warmup_steps)

        def share(update: int) -> float:
            done = min(1.0, update / self.updates)
            return min(1.0, (update + 1) / warmup) * (1.0 - done * (1.0 - self.end))

        for group in experiment.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        updates_done = experiment.counters.gradient_steps
        schedule = LambdaLR(experiment.optimizer, share, last_epoch=updates_done - 1)
        experiment.lr_schedule = experiment.learner.lr_schedule = schedule
