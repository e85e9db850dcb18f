"""What an Experiment tells those who watch it: the hooks of progress bars, plots and early stopping.

A callback is told what happens and when; it changes nothing unless it wants to.
All hooks have empty bodies, so a subclass writes only those that it needs.
They run in the main thread of each process; `experiment.accelerator.is_main_process` says which one prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment


@dataclass(slots=True, kw_only=True)
class Counters:
    """How far a run has come; lives in `experiment.counters` and in every checkpoint.

    Attributes:
        epoch: the epoch in progress; after `learn`, the number of epochs completed.
        env_steps: training timesteps collected, all actors of all processes together.
        env_steps_by_name: the same by environment name.
        gradient_steps: optimizer steps, skipped ones included.
        skipped_updates: optimizer steps skipped because the loss or a gradient was not finite.
    """

    epoch: int = 0
    env_steps: int = 0
    env_steps_by_name: dict[str, int] = field(default_factory=dict)
    gradient_steps: int = 0
    skipped_updates: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able copy."""
        return {
            "epoch": self.epoch,
            "env_steps": self.env_steps,
            "env_steps_by_name": dict(self.env_steps_by_name),
            "gradient_steps": self.gradient_steps,
            "skipped_updates": self.skipped_updates,
        }


class Callback:
    """Hooks of a run. `section` is "train", "val" or "test"; metric names come without that prefix."""

    def on_start(self, experiment: Experiment) -> None:
        """`start()` is done: environments, agent and dataset are built, a resumed state is loaded."""

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        """Epoch `epoch` (from 0) begins; `experiment.epochs` may be infinite."""

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        """A rollout begins; `total_steps` are the timesteps of all actors together, None if unknown."""

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        """All actors took one step: `env_steps` more timesteps. Called at every step: be quick."""

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        """The rollout is over; `metrics` summarise its finished episodes (empty if there were none)."""

    def on_waiting_for_data(self, experiment: Experiment, seconds: float) -> None:
        """The dataset is not ready and this process collects nothing: waiting for `seconds` so far."""

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        """The learning part of an epoch begins."""

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        """One batch went through the agent; `updated` says whether the optimizer stepped after it."""

    def on_learning_end(self, experiment: Experiment) -> None:
        """The learning part of an epoch is over."""

    def on_metrics(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        """Metrics were logged; sections are train, val, test, train-update and dataset."""

    def on_checkpoint(self, experiment: Experiment, epoch: int) -> None:
        """The checkpoint of `epoch` is complete on disk."""

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        """Epoch `epoch` is over, its checkpoint and latest policy included."""

    def on_end(self, experiment: Experiment) -> None:
        """`learn()` returns."""
