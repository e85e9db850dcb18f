"""ProgressDisplay: what `Experiment(verbose=True)` and `amago-run train` show of a run while it trains."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from amago.experiment.callbacks import Callback
from amago.experiment.summary import mean_return

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment

_LINES = 20  # per run, where there is no terminal
_SECONDS_BETWEEN_LINES = 60.0  # at most, so that long epochs are seen to go on
_SECONDS_BETWEEN_UPDATES = 0.2  # of the bars
_RECENT_EPOCHS = 10  # that the remaining time is estimated from
_SECONDS_BEFORE_ESTIMATE = 3.0  # of learning, after which the duration of the first epoch is estimated
_SPEED_UNITS = {"collecting": "steps/s", "learning": "updates/s"}  # of the phases whose speed is shown


class ProgressDisplay(Callback):
    """Prints what is trained at the start; then a bar of the run and one of the running phase of its epoch.

    Where the output is no terminal it prints lines instead: about twenty for a run, and one a minute at least in
    which an epoch ends. Both show the time left, estimated after a few seconds of learning, then from the latest
    epochs.

    Args:
        console: Where to print; None is standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._bars: Progress | None = None
        self._epoch_seconds: deque[float] = deque(maxlen=_RECENT_EPOCHS)
        self._began: float | None = None
        self._epoch_began = self._phase_began = 0.0
        self._next_line = self._next_update = 0.0
        self._phase, self._phase_count = "", 0
        self._steps_beside = 0  # collected during the running phase, which is learning
        self._phase_total: float | None = None
        self._speeds: dict[str, float] = {}
        self._return: tuple[float, int] | None = None  # of the last evaluation, and its epoch
        self._train_return: float | None = None
        self._updates_before = 0
        self._has_learned = False
        self._first_epoch_seconds: float | None = None  # estimated while it learns
        # Seconds up to the first counts of a session's phases, in which kernels may be compiled; estimates leave
        # them out.
        self._startup_seconds = 0.0
        self._warm_phases: set[str] = set()
        self._count_began = (0.0, 0)  # time and count of the running phase from which its speed is estimated

    def on_start(self, experiment: Experiment) -> None:
        policy, dataset = experiment.policy, experiment.dataset
        networks = (policy, policy.tstep_encoder, policy.traj_encoder)
        names = " / ".join(type(network).__name__ for network in networks)
        parameters = sum(p.numel() for p in policy.parameters() if p.requires_grad)
        self._print(
            f"run {experiment.run_name} in {experiment.run_dir} on {experiment.DEVICE}{_threads(experiment)}, "
            f"seed {experiment.streams.seed}"
        )
        self._print(f"  {names}: {parameters:,} trainable parameters")
        if dataset is not None:
            self._print(f"  {dataset.get_description()}")

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        self._epoch_began = time.perf_counter()
        self._updates_before = experiment.counters.gradient_steps
        if self._began is None:
            self._began = self._epoch_began
            if self._console.is_terminal:
                self._bars = _make_bars(self._console)
                self._bars.add_task("", total=_finite(experiment.epochs), info="")
                self._bars.add_task("", total=None, info="")
                self._bars.start()

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        phase = {"train": "collecting", "val": "evaluating"}.get(section, "testing")
        self._begin_phase(phase, total_steps)

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        if self._phase == "learning":
            self._steps_beside += env_steps
        else:
            self._advance(experiment, env_steps)

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        value = mean_return(metrics)
        if section == "train":
            self._measure_speed()
            self._train_return = value
        elif section == "val" and value is not None:
            self._return = (value, experiment.epoch)

    def on_waiting_for_data(self, experiment: Experiment, seconds: float) -> None:
        if self._phase != "waiting for data":
            self._begin_phase("waiting for data", None)
            self._next_line = 0.0
        if time.perf_counter() >= self._next_line and experiment.dataset is not None:
            self._print(f"waiting for data: {experiment.dataset.get_description()}")
            self._next_line = time.perf_counter() + 2 * seconds + 10

    def on_waiting_for_learner(self, experiment: Experiment, seconds: float) -> None:
        if self._phase != "waiting for learner" and experiment.dataset is not None:
            self._begin_phase("waiting for learner", None)
            self._print(f"waiting for the learner to delete data: {experiment.dataset.get_description()}")

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        self._begin_phase("learning", total_batches)

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self._advance(experiment, 1)
        if not self._has_learned and self._first_epoch_seconds is None and self._phase_total:
            now, (began, count) = time.perf_counter(), self._count_began
            if now - began >= _SECONDS_BEFORE_ESTIMATE and self._phase_count > count:
                learning = (now - began) / (self._phase_count - count) * self._phase_total
                before = began - self._epoch_began - self._startup_seconds
                self._first_epoch_seconds = before + learning
                left = self._seconds_left(experiment, experiment.epoch)
                if left is not None and not self._console.is_terminal:
                    self._print(f"about {_duration(left)} expected")

    def on_learning_end(self, experiment: Experiment) -> None:
        self._measure_speed()
        if not self._has_learned:
            self._has_learned = True
            self._epoch_seconds.clear()  # epochs that only collected are shorter

    def on_epoch_end(self, experiment: Experiment, epoch: int) -> None:
        now = time.perf_counter()
        self._epoch_seconds.append(now - self._epoch_began - self._startup_seconds)
        self._epoch_began, self._startup_seconds = now, 0.0
        if self._console.is_terminal:
            self._phase = ""
            self._show(experiment, epoch + 1)
            return
        last = _finite(experiment.epochs)
        every = math.inf if last is None else max(1, math.ceil(last / _LINES))
        is_due = (epoch + 1) % every == 0 or epoch + 1 in (1, last)
        if is_due or now >= self._next_line:
            self._print_line(experiment, epoch)
            self._next_line = now + _SECONDS_BETWEEN_LINES

    def close(self) -> None:
        """Ends the bars; also after an interruption, and more than once."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _begin_phase(self, phase: str, total: float | None) -> None:
        self._phase, self._phase_total, self._phase_count, self._steps_beside = phase, total, 0, 0
        self._phase_began = time.perf_counter()
        self._count_began = self._phase_began, 0

    def _advance(self, experiment: Experiment, count: int) -> None:
        self._phase_count += count
        if self._phase not in self._warm_phases:
            self._warm_phases.add(self._phase)
            self._count_began = time.perf_counter(), self._phase_count
            self._startup_seconds += self._count_began[0] - self._phase_began
        if self._bars is not None and time.perf_counter() >= self._next_update:
            self._measure_speed()
            self._show(experiment, experiment.epoch)

    def _measure_speed(self) -> None:
        """Counts per second of the running phase, so far."""
        seconds = time.perf_counter() - self._phase_began
        if self._phase in _SPEED_UNITS and seconds > 0:
            self._speeds[_SPEED_UNITS[self._phase]] = self._phase_count / seconds
            if self._steps_beside:
                self._speeds["steps/s"] = self._steps_beside / seconds

    def _show(self, experiment: Experiment, epochs_done: int) -> None:
        """Updates both bars."""
        if self._bars is None:
            return
        self._next_update = time.perf_counter() + _SECONDS_BETWEEN_UPDATES
        run, phase = self._bars.task_ids
        last = _finite(experiment.epochs)
        left = self._seconds_left(experiment, epochs_done)
        texts = ["" if left is None else f"{_duration(left)} left", *self._returns(experiment)]
        number = min(epochs_done + 1, last or math.inf)
        self._bars.update(
            run,
            description=f"epoch {number}{f'/{last}' if last else ''}",
            completed=epochs_done,
            info="  ".join(filter(None, texts)),
        )
        self._bars.update(
            phase,
            description=self._phase,
            completed=self._phase_count if self._phase else 1,
            total=self._phase_total if self._phase else 1,
            info="  ".join(self._speed_texts()),
        )

    def _print_line(self, experiment: Experiment, epoch: int) -> None:
        counters, last = experiment.counters, _finite(experiment.epochs)
        texts = [
            f"epoch {epoch + 1}{f'/{last}' if last else ''}",
            f"{counters.env_steps:,} steps",
            f"{counters.gradient_steps:,} updates",
        ]
        if counters.gradient_steps == self._updates_before and epoch >= experiment.start_learning_at_epoch:
            texts[-1] += " (none in this epoch)"
        if counters.skipped_updates:
            texts[-1] += f" ({counters.skipped_updates:,} of them skipped)"
        texts += self._speed_texts()
        texts += self._returns(experiment, epoch)
        texts.append(_duration(time.perf_counter() - (self._began or self._epoch_began)))
        left = self._seconds_left(experiment, epoch + 1)
        if left is not None and epoch + 1 != last:
            texts[-1] += f", about {_duration(left)} left"
        self._print("  ".join(texts))

    def _speed_texts(self) -> list[str]:
        units = (unit for unit in _SPEED_UNITS.values() if unit in self._speeds)
        return [f"{speed_text(self._speeds[unit])} {unit}" for unit in units]

    def _returns(self, experiment: Experiment, epoch: int | None = None) -> list[str]:
        """Returns of the last evaluation and of training episodes; an evaluation of an earlier epoch says so."""
        texts = []
        epoch = experiment.epoch if epoch is None else epoch
        if self._return is not None:
            value, evaluated = self._return
            texts.append(f"return {value:.4g}" + (f" (epoch {evaluated + 1})" if evaluated < epoch else ""))
        if self._train_return is not None:
            texts.append(f"train return {self._train_return:.4g}")
        return texts

    def _seconds_left(self, experiment: Experiment, epochs_done: int) -> float | None:
        last = _finite(experiment.epochs)
        if last is None or not (self._epoch_seconds or self._first_epoch_seconds):
            return None
        if self._first_epoch_seconds is not None and not self._has_learned:
            mean = self._first_epoch_seconds
        else:
            mean = sum(self._epoch_seconds) / len(self._epoch_seconds)
        gone = time.perf_counter() - self._epoch_began - self._startup_seconds
        return max(0.0, mean * (last - epochs_done) - gone)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def speed_text(per_second: float) -> str:
    """A speed in whole numbers, below 10 with two significant digits."""
    return f"{per_second:,.0f}" if per_second >= 9.95 else f"{per_second:.2g}"


def _threads(experiment: Experiment) -> str:
    """The number of torch's threads, for an agent on a CPU."""
    count = torch.get_num_threads()
    return f" ({count} thread{'s' if count > 1 else ''})" if experiment.DEVICE.type == "cpu" else ""


def _finite(epochs: float) -> int | None:
    return int(epochs) if math.isfinite(epochs) else None


def _duration(seconds: float) -> str:
    """A duration with two units at most, e.g. "12 s", "3 min", "2 h 5 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _make_bars(console: Console) -> Progress:
    """Two bars, at most 80 columns wide with short texts."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("[cyan]{task.fields[info]}"),
        console=console,
        expand=True,
        refresh_per_second=5,
    )
