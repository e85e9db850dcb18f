"""`amago-run watch`: a running run in the terminal, from the files that its processes write.

The picture is drawn anew every second until no process of the run is alive. Where stdout is no terminal, it is
printed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from amago.cli.plots import AXIS_LABELS
from amago.cli.report import evaluation_table
from amago.cli.run_figures import Curve, Process, RunFigures, read_figures, x_axis
from amago.cli.text import duration, number, short
from amago.experiment.progress import speed_text

_SECONDS_BETWEEN_READS = 1.0
_STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "ended early": "bold red"}
# Shown if the run logs them, by section.
_METRICS = {
    "train-update": (
        *("Loss", "Actor Loss", "Critic Loss", "Policy Entropy", "Filter Mean", "Grad Norm", "Learning Rate"),
        *("Min TD Target", "Max TD Target", "Mean Reward (in training sequences)"),
    ),
    "dataset": ("Trajectory Files in FIFO", "Trajectory Files in Protected"),
}
_PLOT_ROWS = 8


def watch_run(folder: Path, *, once: bool, console: Console) -> bool:
    """Shows a run until it ends.

    Args:
        folder: the run's folder.
        once: print it once.
        console: where to show it; if it is no terminal, it is printed once.

    Returns:
        False if the run ended without finishing or being stopped by a signal.
    """
    run = read_figures(folder)
    if once or not console.is_terminal or run.state != "running":
        console.print(picture(run, console.width))
    else:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(picture(run, console.width), refresh=True)
                if run.state != "running":
                    break
                time.sleep(_SECONDS_BETWEEN_READS)
                run = read_figures(folder)
    return run.state != "ended early"


def picture(run: RunFigures, width: int) -> RenderableType:
    """A run as tables and a plot, `width` columns wide."""
    parts: list[RenderableType] = [_head(run)]
    if run.state == "ended early":
        parts.append(f"[bold red]No process of this run is alive[/]{_last_sign(run)}. --resume continues it.")
    curve = run.evaluation if len(run.evaluation.returns) > 1 else run.training
    if len(curve.returns) > 1:
        what = "evaluations" if curve is run.evaluation else "training episodes"
        parts += [f"\n[bold]Mean return[/] [dim]of {what}[/]", plot(curve, x_axis([run]), width - 2)]
    if run.processes:
        parts += ["", _process_table(run.processes)]
    if run.success:
        parts += [
            "",
            evaluation_table({f"Average Episode {i} Success in env": x for i, x in enumerate(run.success)}),
        ]
    if metrics := _metric_table(run.metrics):
        parts += ["", metrics]
    return Padding(Group(*parts), (1, 1))


def _head(run: RunFigures) -> RenderableType:
    """Name, state, progress and totals."""
    line = Text.assemble(
        (run.label, "bold"), f"  {run.env}  ", (run.state, _STYLES.get(run.state, "")), f"  seed {run.seed}"
    )
    epochs = f"{run.epochs_done:,}" + (f" of {run.epochs:,}" if run.epochs else "")
    value, left = run.final_return, run.seconds_left if run.state == "running" else None
    progress = [f"epoch {epochs}", duration(run.wall_seconds)]
    progress += [f"about {duration(left)} left"] if left is not None else []
    totals = [f"{run.env_steps:,} steps", f"{run.gradient_steps:,} updates"]
    if value is not None:
        totals.append(
            f"{'test return' if run.return_source == 'test' else run.return_source} {number(value)}"
        )
    parts: list[RenderableType] = [line, Text("  ".join(progress)), Text("  ".join(totals))]
    if run.epochs:
        bar = Table.grid(expand=True)  # where there are no colours, the bar alone does not end its line
        bar.add_row(ProgressBar(run.epochs, run.epochs_done, complete_style="cyan", finished_style="green"))
        parts.append(bar)
    return Group(*parts)


def _last_sign(run: RunFigures) -> str:
    """When the run was last seen."""
    times = [epoch[0] for epoch in run.epoch_ends] + [float(p.status.get("time", 0)) for p in run.processes]
    return f"; last sign of life {duration(time.time() - max(times))} ago" if times else ""


def _process_table(processes: Sequence[Process]) -> Table:
    """What every process said last; without the columns that all of them leave empty."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "Epoch": lambda status: str(status.get("epoch", "")),
        "Steps/s": lambda status: _rate(status.get("steps_per_second")),
        "Updates/s": lambda status: _rate(status.get("updates_per_second")),
        "Policy": lambda status: _count(status.get("policy_epoch")),
        "Buffer": lambda status: _count(status.get("buffer_files")),
        "Return": lambda status: "" if status.get("return") is None else number(status["return"]),
        "Age": lambda status: duration(max(0.0, time.time() - float(status.get("time", 0.0)))),
    }
    cells = {title: [text(process.status) for process in processes] for title, text in columns.items()}
    cells = {title: texts for title, texts in cells.items() if any(texts)}
    table = Table("Process", box=None, pad_edge=False, header_style="bold")
    table.add_column("Phase", overflow="fold")
    for title in cells:
        table.add_column(title, justify="right", no_wrap=True)
    for index, process in enumerate(processes):
        phase = escape(str(process.status.get("phase", ""))) if process.alive else "[bold red]dead[/]"
        table.add_row(process.name, phase, *(texts[index] for texts in cells.values()))
    return table


def _rate(rate: float | None) -> str:
    return "" if rate is None else speed_text(rate)


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _metric_table(metrics: Mapping[str, Mapping[str, float]]) -> Table | None:
    """The latest metrics of updates and buffer, two in a row."""
    found = [
        (name, f"{value:,.0f}" if (value := float(metrics[section][name])).is_integer() else f"{value:,.4g}")
        for section, names in _METRICS.items()
        for name in names
        if name in metrics.get(section, {})
    ]
    if not found:
        return None
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(style="dim")
        table.add_column(justify="right")
    for left, right in zip(found[::2], [*found[1::2], ("", "")], strict=False):
        table.add_row(*left, *right)
    return table


def plot(curve: Curve, axis: str, width: int, rows: int = _PLOT_ROWS) -> Text:
    """A curve of at least two points as braille dots, two by four in a character, with its axes.

    Args:
        curve: the curve.
        axis: "env_steps" or "gradient_steps".
        width, rows: size in characters, with the labels of the axes.
    """
    xs, low, high = curve.x(axis), min(curve.returns), max(curve.returns)
    labels = {0: number(high), rows - 1: number(low)}
    margin = max(map(len, labels.values())) + 1
    columns = max(10, min(width - margin - 2, 100))
    heights = np.interp(np.linspace(xs[0], xs[-1], 2 * columns), xs, curve.returns)
    levels = np.rint((heights - low) / ((high - low) or 1.0) * (4 * rows - 1)).astype(int)
    cells = np.zeros((rows, columns), dtype=int)
    # Bits of the dots of a braille character, from the lowest to the highest, in its left and right column.
    bits = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
    for x, level in enumerate(levels):
        before = levels[max(0, x - 1)]
        # Steep parts stay connected.
        for y in range(min(level, before + 1), max(level, before - 1) + 1):
            cells[rows - 1 - y // 4, x // 2] |= bits[x % 2][y % 4]
    text = Text()
    for row in range(rows):
        text.append(f"{labels.get(row, ''):>{margin}}▕", style="dim")
        text.append("".join(chr(0x2800 + cell) for cell in cells[row]) + "\n", style="cyan")
    ends = short(xs[0]), f"{short(xs[-1])} {AXIS_LABELS[axis]}"
    text.append(" " * (margin + 1) + ends[0] + ends[1].rjust(columns - len(ends[0])), style="dim")
    return text
