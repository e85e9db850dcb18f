"""Tables for the terminal: the summary of a run, an evaluation, a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from amago.experiment.run_folder import SUMMARY_FILE
from amago.experiment.summary import RETURN_METRIC, Summary, mean_return, success_by_attempt

__all__ = [
    "RETURN_METRIC",
    "SUMMARY_FILE",
    "Summary",
    "evaluation_table",
    "format_return",
    "mean_return",
    "show_evaluation",
    "show_summary",
    "success_by_attempt",
]

_BAR_WIDTH = 30


def evaluation_table(metrics: Mapping[str, float | None]) -> RenderableType:
    """A table of the success rates by attempt, or of all metrics if the environment does not report them."""
    if not metrics:
        return "No episode was finished."
    rates = success_by_attempt(metrics)
    if not rates:
        table = Table("Metric", box=None, pad_edge=False, header_style="bold")
        table.add_column("Value", justify="right")
        for name, value in sorted(metrics.items()):
            table.add_row(name, "not finite" if value is None else f"{value:,.4g}")
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


def show_summary(console: Console, summary: Summary, folder: Path, picture: Path | None) -> None:
    """Prints the evaluation after training, the run's totals and the paths of its files."""
    totals = Table.grid(padding=(0, 2))
    episodes = f" over {summary.eval_episodes:,} fresh episodes" if summary.eval_episodes else ""
    totals.add_row("Mean return", f"[bold]{format_return(summary.mean_return)}[/]{episodes}")
    skipped = f" ({summary.skipped_updates:,} of them skipped)" if summary.skipped_updates else ""
    totals.add_row(
        "Training",
        f"{summary.env_steps:,} environment steps, {summary.gradient_steps:,} updates{skipped}, "
        f"{summary.wall_seconds:,.0f} s, seed {summary.seed}",
    )
    totals.add_row("Summary", str(folder / SUMMARY_FILE))
    if picture is not None:
        totals.add_row("Picture", str(picture))
    title = f"{summary.run}: {summary.env}"
    console.print(
        Panel(Group(evaluation_table(summary.metrics), "", totals), title=title, expand=False, padding=(1, 2))
    )


def show_evaluation(console: Console, title: str, metrics: Mapping[str, float | None], episodes: int) -> None:
    """Prints the metrics of an evaluation."""
    average = mean_return(metrics)
    lines: list[RenderableType] = [evaluation_table(metrics)]
    if average is not None and success_by_attempt(metrics):
        lines += ["", f"Mean return  [bold]{average:.3f}[/] over {episodes:,} fresh episodes"]
    console.print(Panel(Group(*lines), title=title, expand=False, padding=(1, 2)))
