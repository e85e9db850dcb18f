"""Callback: hooks called during a run, for progress bars, plots and early stopping. Also the run's counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment


@dataclass(slots=True, kw_only=True)
class Counters:
    """Progress of a run: `experiment.counters`, saved in every checkpoint.

    Attributes:
        epoch: Current epoch, from 0; after `learn()`, the number of completed epochs.
        env_steps: Training timesteps collected by all actors of all processes.
        env_steps_by_name: The same for each environment name.
        gradient_steps: Optimizer steps, including skipped ones.
        skipped_updates: Optimizer steps that were skipped because of a non-finite loss or gradient.
        wall_seconds: Duration of `learn()`, summed over all sessions of a resumed run; of a session that was
            killed, up to its last checkpoint. It does not count when counters are compared.
    """

    epoch: int = 0
    env_steps: int = 0
    env_steps_by_name: dict[str, int] = field(default_factory=dict)
    gradient_steps: int = 0
    skipped_updates: int = 0
    wall_seconds: float = field(default=0.0, compare=False)


class Callback:
    """Base class of callbacks. All methods do nothing by default; override those that you need.

    Methods are called in the main thread of each process; `experiment.accelerator.is_main_process` tells which
    one should print. `section` is "train", "val" or "test"; metric names come without that prefix.
    """

    def on_start(self, experiment: Experiment) -> None:
        """Called at the end of `start()`, after a checkpoint was loaded if the run is resumed."""

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        """Called at the start of each epoch. `experiment.epochs` may be infinite."""

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        """Called before a rollout of `total_steps` timesteps of all actors together, None if not known."""

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        """Called after each step of all actors, which is `env_steps` timesteps."""

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        """Called after a rollout with the metrics of its finished episodes, empty if there were none."""

    def on_waiting_for_data(self, experiment: Experiment, seconds: float) -> None:
        """Called about once per second while a run that does not collect waits for its dataset."""

    def on_waiting_for_learner(self, experiment: Experiment, seconds: float) -> None:
        """Called about once per second while a collector waits until its learner deletes data or goes on."""

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        """Called before the updates of an epoch."""

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        """Called after each training batch; `updated` is True if the optimizer stepped."""

    def on_learning_end(self, experiment: Experiment) -> None:
        """Called after the updates of an epoch."""

    def on_metrics(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        """Called when metrics are logged; sections are train, val, test, train-update, dataset, learning, time."""

    def on_checkpoint(self, experiment: Experiment, epoch: int) -> None:
        """Called after the checkpoint of `epoch` has been written."""

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        """Called at the end of each epoch, after its checkpoint and latest policy were written."""

    def on_end(self, experiment: Experiment) -> None:
        """Called at the end of `learn()`."""
