"""The summary of a finished run: `summary.json`, and tables for the terminal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from amago.experiment.checkpointer import write_text

SUMMARY_FILE = "summary.json"
RETURN_METRIC = "Average Total Return (Across All Env Names)"

_ATTEMPT_METRIC = re.compile(r"Average Episode (\d+) Success in .+")
_BAR_WIDTH = 30


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of a finished run.

    Attributes:
        run: the run's name.
        env, env_args: the environment and its arguments.
        agent, tstep_encoder, traj_encoder: registered names.
        seed: the run's seed.
        mean_return: mean return of the evaluation after training, without exploration; None if no episode was
            finished.
        success_by_attempt: success rate of each attempt in an episode; empty if the environment does not report
            "Episode {i} Success".
        eval_episodes: number of episodes asked for in this evaluation.
        env_steps: environment steps of all actors during training.
        gradient_steps: updates of the agent.
        wall_seconds: duration of training with its evaluations, without set-up and the evaluation after it; of a
            resumed run, since it was resumed.
        metrics: all metrics of the evaluation after training.
        versions: versions of Python and of the most important packages.
    """

    run: str
    env: str
    env_args: Mapping[str, Any]
    agent: str
    tstep_encoder: str
    traj_encoder: str
    seed: int
    mean_return: float | None
    success_by_attempt: list[float]
    eval_episodes: int
    env_steps: int
    gradient_steps: int
    wall_seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes `summary.json` into the run's folder, atomically."""
        write_text(json.dumps(asdict(self), indent=2) + "\n", folder / SUMMARY_FILE)

    @classmethod
    def load(cls, folder: Path) -> Summary:
        """Reads `summary.json`; raises FileNotFoundError if the run has not finished."""
        return cls(**json.loads((folder / SUMMARY_FILE).read_text()))


def success_by_attempt(metrics: Mapping[str, float]) -> list[float]:
    """Success rates of attempts 0, 1, … in evaluation metrics, averaged over environment names."""
    rates: dict[int, list[float]] = {}
    for name, value in metrics.items():
        if found := _ATTEMPT_METRIC.fullmatch(name.rpartition("/")[2]):
            rates.setdefault(int(found[1]), []).append(value)
    return [math.fsum(rates[attempt]) / len(rates[attempt]) for attempt in sorted(rates)]


def mean_return(metrics: Mapping[str, float]) -> float | None:
    """Mean return in evaluation metrics; None if no episode was finished."""
    found = [value for name, value in metrics.items() if name.endswith(RETURN_METRIC)]
    return found[0] if found else None


def evaluation_table(metrics: Mapping[str, float]) -> RenderableType:
    """A table of the success rates by attempt, or of all metrics if the environment does not report them."""
    rates = success_by_attempt(metrics)
    if not rates:
        table = Table("Metric", box=None, pad_edge=False, header_style="bold")
        table.add_column("Value", justify="right")
        for name, value in sorted(metrics.items()):
            table.add_row(name, f"{value:,.4g}")
        return table
    table = Table("Attempt", box=None, pad_edge=False, header_style="bold")
    table.add_column("Success", justify="right")
    table.add_column("", width=_BAR_WIDTH)
    for attempt, rate in enumerate(rates, start=1):
        table.add_row(str(attempt), f"{rate:.1%}", Bar(1.0, 0.0, rate, width=_BAR_WIDTH, color="green"))
    return table


def format_return(value: float | None) -> str:
    """The return with three decimals, or "none finished"."""
    return "none finished" if value is None else f"{value:.3f}"


def show_summary(console: Console, summary: Summary, folder: Path, picture: Path) -> None:
    """Prints the evaluation after training, the run's totals and the paths of its files."""
    totals = Table.grid(padding=(0, 2))
    totals.add_row(
        "Mean return",
        f"[bold]{format_return(summary.mean_return)}[/] over {summary.eval_episodes:,} fresh episodes",
    )
    totals.add_row(
        "Training",
        f"{summary.env_steps:,} environment steps, {summary.gradient_steps:,} updates, "
        f"{summary.wall_seconds:,.0f} s, seed {summary.seed}",
    )
    totals.add_row("Summary", str(folder / SUMMARY_FILE))
    totals.add_row("Picture", str(picture))
    title = f"{summary.run}: {summary.env}"
    console.print(
        Panel(Group(evaluation_table(summary.metrics), "", totals), title=title, expand=False, padding=(1, 2))
    )


def show_evaluation(console: Console, title: str, metrics: Mapping[str, float], episodes: int) -> None:
    """Prints the metrics of an evaluation."""
    average = mean_return(metrics)
    lines: list[RenderableType] = [evaluation_table(metrics)]
    if average is None:
        lines.append("No episode was finished.")
    elif success_by_attempt(metrics):
        lines += ["", f"Mean return  [bold]{average:.3f}[/] over {episodes:,} fresh episodes"]
    console.print(Panel(Group(*lines), title=title, expand=False, padding=(1, 2)))
