"""Shows a run while it trains: a progress bar in a terminal, one line per some epochs anywhere else.

`TrainingProgress` listens to the experiment's callbacks and keeps the figures (steps per second while collecting,
updates per second while learning, the latest return); `BarDisplay` and `LineDisplay` show them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from amago.cli.report import mean_return
from amago.experiment.callbacks import Callback

if TYPE_CHECKING:
    from amago.experiment import Experiment

# Learning takes most of an epoch; the bar moves accordingly.
_COLLECTING_SHARE = 0.2
_SETTLED_SECONDS = 0.3
_REFRESH_SECONDS = 0.1


@dataclass(slots=True)
class Rate:
    """Counts per second of active time, so that collecting does not dilute the speed of learning.

    Attributes:
        clock: seconds, monotonic.
    """

    clock: Callable[[], float] = time.perf_counter
    latest: float | None = None
    _started: float = 0.0
    _count: int = 0

    def start(self) -> None:
        """A phase of activity begins."""
        self._started = self.clock()
        self._count = 0

    def add(self, count: int) -> None:
        """`count` more; the figure follows once the phase has lasted long enough to be meaningful."""
        self._count += count
        if self.clock() - self._started > _SETTLED_SECONDS:
            self.stop()

    def stop(self) -> None:
        """Takes the phase so far into `latest`; a phase without counts leaves it as it was."""
        seconds = self.clock() - self._started
        if self._count and seconds > 0:
            self.latest = self._count / seconds

    def __str__(self) -> str:
        return "–" if self.latest is None else short_number(self.latest)


def short_number(value: float) -> str:
    """At most four characters where possible: 12345 as "12k", 1234 as "1.2k", 38.4 as "38", 3.84 as "3.8"."""
    if value >= 9_950:
        return f"{value / 1000:.0f}k"
    if value >= 999.5:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


@dataclass(slots=True, kw_only=True)
class Status:
    """What a display shows.

    Attributes:
        epoch: of the epoch in progress, from 1.
        fraction: share of the run that is done, in [0, 1].
        env_steps, updates: in total so far.
        steps_rate: environment steps per second of collecting; updates_rate: updates per second of learning.
        latest_return: mean return of the latest evaluation, before the first of the latest collection.
    """

    epochs: int
    epoch: int = 0
    fraction: float = 0.0
    env_steps: int = 0
    updates: int = 0
    steps_rate: Rate = field(default_factory=Rate)
    updates_rate: Rate = field(default_factory=Rate)
    latest_return: float | None = None

    @property
    def return_text(self) -> str:
        """The latest return, "–" before any episode has finished."""
        return "–" if self.latest_return is None else f"{self.latest_return:.4g}"


class Display(Protocol):
    """Shows a `Status`; `refresh` is called often, `end_epoch` once an epoch."""

    def open(self) -> None: ...
    def refresh(self, status: Status) -> None: ...
    def end_epoch(self, status: Status) -> None: ...
    def close(self) -> None: ...


class BarDisplay:
    """A progress bar that fits 80 columns; for terminals."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
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
        self._task = self._progress.add_task("", total=1.0, epoch="–", steps="–", updates="–", score="–")

    def open(self) -> None:
        self._progress.start()

    def refresh(self, status: Status) -> None:
        self._progress.update(
            self._task,
            completed=status.fraction,
            epoch=f"{status.epoch}/{status.epochs}",
            steps=str(status.steps_rate),
            updates=str(status.updates_rate),
            score=status.return_text,
        )

    def end_epoch(self, status: Status) -> None:
        self.refresh(status)

    def close(self) -> None:
        self._progress.stop()


class LineDisplay:
    """About twenty plain lines over a whole run; for logs, pipes and notebooks."""

    def __init__(self, console: Console, epochs: int, lines: int = 20) -> None:
        self._console = console
        self._every = max(1, -(-epochs // lines))
        self._started = time.perf_counter()

    def open(self) -> None:
        self._started = time.perf_counter()

    def refresh(self, status: Status) -> None:
        """Nothing: a log gets lines at the ends of epochs only."""

    def end_epoch(self, status: Status) -> None:
        if status.epoch % self._every and status.epoch not in (1, status.epochs):
            return
        seconds = time.perf_counter() - self._started
        self._console.print(
            f"epoch {status.epoch}/{status.epochs}  {status.env_steps:,} steps  {status.updates:,} updates  "
            f"{status.steps_rate} steps/s  {status.updates_rate} updates/s  return {status.return_text}  "
            f"{seconds:.0f} s",
            highlight=False,
            soft_wrap=True,
        )

    def close(self) -> None:
        """Nothing is left open."""


def make_display(console: Console, epochs: int) -> Display:
    """The bar where `console` is a terminal, plain lines elsewhere."""
    return BarDisplay(console) if console.is_terminal else LineDisplay(console, epochs)


class TrainingProgress(Callback):
    """Follows an experiment and times its training.

    Args:
        display: shows the figures.
        epochs: length of the run.

    Attributes:
        wall_seconds: from the start of the first epoch to the end of training.
    """

    def __init__(self, display: Display, epochs: int) -> None:
        self._display = display
        self._status = Status(epochs=epochs)
        self._began: float | None = None
        self._evaluated = False
        self._total = 0
        self._done = 0
        self._shown = -_REFRESH_SECONDS
        self.wall_seconds = 0.0

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        if self._began is None:
            self._began = time.perf_counter()
            self._display.open()
        self._status.epoch = epoch + 1
        self._show(experiment, 0.0)

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        self._total, self._done = total_steps or 0, 0
        self._status.steps_rate.start()

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self._status.steps_rate.add(env_steps)
        self._done += env_steps
        if section == "train":
            self._show(experiment, _COLLECTING_SHARE * self._phase())

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        self._status.steps_rate.stop()
        value = mean_return(metrics)
        if value is not None and (section == "val" or not self._evaluated):
            self._status.latest_return = value
            self._evaluated = self._evaluated or section == "val"

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        self._total, self._done = total_batches, 0
        self._status.updates_rate.start()

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self._status.updates_rate.add(int(updated))
        self._done += 1
        self._show(experiment, _COLLECTING_SHARE + (1 - _COLLECTING_SHARE) * self._phase())

    def on_learning_end(self, experiment: Experiment) -> None:
        self._status.updates_rate.stop()

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        self._show(experiment, 1.0)
        self._display.end_epoch(self._status)

    def on_end(self, experiment: Experiment) -> None:
        if self._began is not None:
            self.wall_seconds = time.perf_counter() - self._began

    def close(self) -> None:
        """Gives the terminal back, also after an interruption."""
        self._display.close()

    def _phase(self) -> float:
        return min(1.0, self._done / self._total) if self._total else 0.0

    def _show(self, experiment: Experiment, share_of_epoch: float) -> None:
        """Brings the status up to date and refreshes the display, at most every `_REFRESH_SECONDS`."""
        now = time.perf_counter()
        if now - self._shown < _REFRESH_SECONDS and share_of_epoch < 1.0:
            return
        self._shown = now
        status = self._status
        status.fraction = min(1.0, (status.epoch - 1 + share_of_epoch) / status.epochs)
        status.env_steps = experiment.counters.env_steps
        status.updates = experiment.counters.gradient_steps
        self._display.refresh(status)
