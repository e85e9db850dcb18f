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
# Approximate share of an epoch's time that collecting takes.
_COLLECTING_SHARE = 0.2
_REFRESH_SECONDS = 0.1
_NONE = "–"


class Rate:
    """Counts per second of one phase, collecting or learning, without the time of other phases."""

    def __init__(self) -> None:
        self.per_second: float | None = None
        self._began = 0.0
        self._count = 0

    def start(self) -> None:
        """Begins a phase."""
        self._began, self._count = time.perf_counter(), 0

    def add(self, count: int) -> None:
        """Adds counts of the phase in progress."""
        self._count += count
        seconds = time.perf_counter() - self._began
        if self._count and seconds > 0:
            self.per_second = self._count / seconds

    def __str__(self) -> str:
        return _NONE if self.per_second is None else short_number(self.per_second)


def short_number(value: float) -> str:
    """At most four characters where possible: 12345 as "12k", 1234 as "1.2k", 38.4 as "38", 3.84 as "3.8"."""
    if value >= 9_950:
        return f"{value / 1000:.0f}k"
    if value >= 999.5:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


class TrainingProgress(Callback):
    """Shows the progress of an Experiment and measures the time of its training.

    Args:
        console: where to print; a terminal gets a progress bar.
        epochs: length of the run.

    Attributes:
        wall_seconds: from the start of the first epoch to the end of training.
    """

    def __init__(self, console: Console, epochs: int) -> None:
        self.wall_seconds = 0.0
        self._console = console
        self._epochs = epochs
        self._epoch = 0
        self._began: float | None = None
        self._shown = 0.0
        self._total = self._done = 0
        self._steps = Rate()
        self._updates = Rate()
        self._return: float | None = None
        self._evaluated = False
        self._bar = _make_bar(console) if console.is_terminal else None

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        self._epoch = epoch + 1
        if self._began is None:
            self._began = time.perf_counter()
            if self._bar is not None:
                self._bar.add_task("", total=1.0, **self._figures())
                self._bar.start()
        self._refresh(0.0)

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        self._total, self._done = total_steps or 0, 0
        self._steps.start()

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self._steps.add(env_steps)
        self._done += env_steps
        if section == "train":
            self._refresh(_COLLECTING_SHARE * self._share_done())

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        # The returns of training episodes, which include exploration, are shown until the first evaluation.
        value = mean_return(metrics)
        if value is not None and (section == "val" or not self._evaluated):
            self._return = value
            self._evaluated = self._evaluated or section == "val"

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        self._total, self._done = total_batches, 0
        self._updates.start()

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self._updates.add(int(updated))
        self._done += 1
        self._refresh(_COLLECTING_SHARE + (1 - _COLLECTING_SHARE) * self._share_done())

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        self._refresh(1.0)
        every = max(1, -(-self._epochs // _LINES))
        if self._bar is None and (self._epoch % every == 0 or self._epoch in (1, self._epochs)):
            self._print_line(experiment)

    def on_end(self, experiment: Experiment) -> None:
        if self._began is not None:
            self.wall_seconds = time.perf_counter() - self._began

    def close(self) -> None:
        """Ends the progress bar; also after an interruption, and more than once."""
        if self._bar is not None:
            self._bar.stop()

    def _share_done(self) -> float:
        return min(1.0, self._done / self._total) if self._total else 0.0

    def _figures(self) -> dict[str, Any]:
        return {
            "epoch": f"{self._epoch}/{self._epochs}",
            "steps": str(self._steps),
            "updates": str(self._updates),
            "score": _NONE if self._return is None else f"{self._return:.4g}",
        }

    def _refresh(self, share_of_epoch: float) -> None:
        now = time.perf_counter()
        if self._bar is None or (now - self._shown < _REFRESH_SECONDS and share_of_epoch < 1.0):
            return
        self._shown = now
        share = min(1.0, (self._epoch - 1 + share_of_epoch) / self._epochs)
        self._bar.update(self._bar.task_ids[0], completed=share, **self._figures())

    def _print_line(self, experiment: Experiment) -> None:
        figures, counters = self._figures(), experiment.counters
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
