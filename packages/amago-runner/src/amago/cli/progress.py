"""Progress of a training run: a progress bar in a terminal, about twenty lines of text anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from amago.cli.report import mean_return
from amago.experiment.callbacks import Callback

if TYPE_CHECKING:
    from amago.experiment import Experiment

_LINES = 20
_NONE = "–"


class TrainingProgress(Callback):
    """Shows the progress of an Experiment and measures the time of its training.

    Args:
        console: where to print; a terminal gets a progress bar.
        epochs: length of the run.

    Attributes:
        wall_seconds: seconds from the start of the first epoch to the end of training.
    """

    def __init__(self, console: Console, epochs: int) -> None:
        self.wall_seconds = 0.0
        self._console = console
        self._epochs = epochs
        self._began: float | None = None
        self._phase_began = 0.0
        self._phase_count = 0
        self._batches = 0
        self._steps_per_second = self._updates_per_second = self._return = _NONE
        self._evaluated = False
        self._bar = _make_bar(console) if console.is_terminal else None

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        if self._began is None:
            self._began = time.perf_counter()
            if self._bar is not None:
                self._bar.add_task("", total=self._epochs, **self._figures(epoch))
                self._bar.start()

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        self._phase_began, self._phase_count = time.perf_counter(), 0

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self._phase_count += env_steps

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        self._steps_per_second = self._rate()
        # The returns of training episodes, which include exploration, are shown until the first evaluation.
        value = mean_return(metrics)
        if value is not None and (section == "val" or not self._evaluated):
            self._return = f"{value:.4g}"
            self._evaluated = self._evaluated or section == "val"

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        self._phase_began, self._phase_count = time.perf_counter(), 0
        self._batches = total_batches

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self._phase_count += 1
        if self._bar is not None:
            self._updates_per_second = self._rate()
            self._show(experiment.epoch, share=self._phase_count / self._batches)

    def on_learning_end(self, experiment: Experiment) -> None:
        self._updates_per_second = self._rate()

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        every = max(1, -(-self._epochs // _LINES))
        if self._bar is not None:
            self._show(epoch, share=1.0)
        elif (epoch + 1) % every == 0 or epoch + 1 in (1, self._epochs):
            self._print_line(experiment, epoch)

    def on_end(self, experiment: Experiment) -> None:
        if self._began is not None:
            self.wall_seconds = time.perf_counter() - self._began

    def close(self) -> None:
        """Ends the progress bar; also after an interruption, and more than once."""
        if self._bar is not None:
            self._bar.stop()

    def _rate(self) -> str:
        """Counts per second of the current phase."""
        return f"{self._phase_count / (time.perf_counter() - self._phase_began):.0f}"

    def _figures(self, epoch: int) -> dict[str, Any]:
        return {
            "epoch": f"{epoch + 1}/{self._epochs}",
            "steps": self._steps_per_second,
            "updates": self._updates_per_second,
            "score": self._return,
        }

    def _show(self, epoch: int, share: float) -> None:
        assert self._bar is not None
        self._bar.update(self._bar.task_ids[0], completed=epoch + share, **self._figures(epoch))

    def _print_line(self, experiment: Experiment, epoch: int) -> None:
        figures, counters = self._figures(epoch), experiment.counters
        seconds = time.perf_counter() - (self._began or 0.0)
        self._console.print(
            f"epoch {figures['epoch']}  {counters.env_steps:,} steps  {counters.gradient_steps:,} updates  "
            f"{figures['steps']} steps/s  {figures['updates']} updates/s  return {figures['score']}  "
            f"{seconds:.0f} s",
            highlight=False,
            soft_wrap=True,
        )


def _make_bar(console: Console) -> Progress:
    """A progress bar with both speeds and the latest return, at most 80 columns wide."""
    return Progress(
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("[cyan]{task.fields[steps]} steps/s"),
        TextColumn("[green]{task.fields[updates]} updates/s"),
        TextColumn("[bold]return {task.fields[score]}"),
        console=console,
        expand=True,
        refresh_per_second=5,
    )
