"""What a run reports when it is over: `summary.json`, and the same figures as tables in the terminal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

SUMMARY_FILE = "summary.json"
RETURN_METRIC = "Average Total Return (Across All Env Names)"

_ATTEMPT_METRIC = re.compile(r"Average Episode (\d+) Success in .+")
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of a finished run.

    Attributes:
        run: the run's name.
        env, env_args: what it was trained on.
        agent, tstep_encoder, traj_encoder: the registered names that it was built from.
        seed: the run's seed.
        mean_return: mean total return of the final evaluation's episodes, without exploration noise; None if
            no episode was finished.
        success_by_attempt: share of successful episodes at each attempt, first to last; empty for an
            environment that does not report "Episode {i} Success".
        eval_episodes: number of fresh episodes asked for behind these two.
        env_steps: training timesteps of all actors together.
        gradient_steps: updates of the agent.
        wall_seconds: from the first training step to the end of training, evaluations during training
            included, set-up before it and the final evaluation after it not; of a resumed run, its last part.
        metrics: every metric of the final evaluation.
        versions: of Python and of the packages that matter.
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

    def save(self, folder: Path) -> Path:
        """Writes `summary.json` into the run's folder and returns its path; the file appears whole."""
        path = folder / SUMMARY_FILE
        aside = folder / f"{SUMMARY_FILE}.part"
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n")
        aside.replace(path)
        return path

    @classmethod
    def load(cls, folder: Path) -> Summary:
        """Reads what `save` wrote; raises FileNotFoundError if training in `folder` has not finished."""
        return cls(**json.loads((folder / SUMMARY_FILE).read_text()))


def success_by_attempt(metrics: Mapping[str, float]) -> list[float]:
    """The success rates of attempts 0, 1, … in evaluation metrics, averaged over environment names."""
    rates: dict[int, list[float]] = {}
    for name, value in metrics.items():
        if found := _ATTEMPT_METRIC.fullmatch(name.rpartition("/")[2]):
            rates.setdefault(int(found[1]), []).append(value)
    return [math.fsum(rates[attempt]) / len(rates[attempt]) for attempt in sorted(rates)]


def mean_return(metrics: Mapping[str, float]) -> float | None:
    """The average total return in evaluation metrics; None if no episode was finished."""
    found = [value for name, value in metrics.items() if name.endswith(RETURN_METRIC)]
    return found[0] if found else None


def evaluation_table(metrics: Mapping[str, float]) -> RenderableType:
    """A table of success by attempt where the environment reports it, else of every metric."""
    rates = success_by_attempt(metrics)
    if not rates:
        table = Table("Metric", box=None, pad_edge=False, header_style="bold")
        table.add_column("Value", justify="right")
        for name, value in sorted(metrics.items()):
            table.add_row(name, f"{value:,.4g}")
        return table
    table = Table("Attempt", box=None, pad_edge=False, header_style="bold")
    table.add_column("Success", justify="right")
    table.add_column("")
    for attempt, rate in enumerate(rates, start=1):
        table.add_row(str(attempt), f"{rate:.1%}", f"[green]{_bar(rate)}[/]")
    return table


def comparison_table(labels: Sequence[str], summaries: Sequence[Summary]) -> Table:
    """One column per run: its return, and the success of each attempt where there is such."""
    table = Table("", box=None, pad_edge=False, header_style="bold")
    for label in labels:
        table.add_column(label, justify="right")
    table.add_row("Mean return", *(format_return(summary.mean_return) for summary in summaries))
    attempts = max(len(summary.success_by_attempt) for summary in summaries)
    for attempt in range(attempts):
        rates = [summary.success_by_attempt[attempt : attempt + 1] for summary in summaries]
        table.add_row(
            f"Success of attempt {attempt + 1}", *(f"{rate[0]:.1%}" if rate else "" for rate in rates)
        )
    table.add_row("Environment steps", *(f"{summary.env_steps:,}" for summary in summaries))
    table.add_row("Updates", *(f"{summary.gradient_steps:,}" for summary in summaries))
    return table


def format_return(value: float | None) -> str:
    """Three decimals; in words if no episode finished."""
    return "none finished" if value is None else f"{value:.3f}"


def _bar(rate: float, width: int = 30) -> str:
    """A bar of eighths of a character, `width` long at 1."""
    whole, eighths = divmod(round(min(max(rate, 0.0), 1.0) * width * 8), 8)
    return "█" * whole + _EIGHTHS[eighths]


def show_summary(console: Console, summary: Summary, folder: Path, picture: Path) -> None:
    """Prints the final table, the run's totals and where its files are."""
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
    totals.add_row("Figures", str(folder / SUMMARY_FILE))
    totals.add_row("Picture", str(picture))
    title = f"{summary.run}: {summary.env}"
    console.print(
        Panel(Group(evaluation_table(summary.metrics), "", totals), title=title, expand=False, padding=(1, 2))
    )


def show_evaluation(console: Console, title: str, metrics: Mapping[str, float], episodes: int) -> None:
    """Prints what an evaluation on its own found."""
    average = mean_return(metrics)
    lines: list[RenderableType] = [evaluation_table(metrics)]
    if average is None:
        lines.append("No episode was finished.")
    elif success_by_attempt(metrics):
        lines += ["", f"Mean return  [bold]{average:.3f}[/] over {episodes:,} fresh episodes"]
    console.print(Panel(Group(*lines), title=title, expand=False, padding=(1, 2)))
