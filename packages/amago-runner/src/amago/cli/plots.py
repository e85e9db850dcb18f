"""Pictures of runs as PNG files; no display is needed.

Every environment has a row: on the left the return over environment steps, averaged over runs that differ in their
seed only; on the right, for environments that report attempts, the success rate of each attempt in the last
evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from amago.cli.run_figures import (
    Group,
    RunFigures,
    by_environment,
    group_runs,
    read_figures,
    spread_of,
    x_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "draw_groups", "draw_runs", "read_figures"]

AXIS_LABELS = {"env_steps": "environment steps", "gradient_steps": "updates"}

# Okabe and Ito's palette, whose colours colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES = ("-", "--", ":")  # a second and third round of colours


def draw_runs(runs: Sequence[RunFigures], path: Path) -> None:
    """Draws the runs into the PNG file `path`, seeds of one configuration averaged; makes its folder."""
    draw_groups(group_runs(runs), path)


def draw_groups(groups: Sequence[Group], path: Path) -> None:
    """Draws groups of runs into the PNG file `path`; makes its folder if needed."""
    from matplotlib.figure import Figure

    environments = by_environment(groups)
    columns = 2 if any(run.success for group in groups for run in group.runs) else 1
    figure = Figure(
        figsize=(10.0 if columns == 2 else 6.4, 4.2 * len(environments)), dpi=150, layout="constrained"
    )
    rows = figure.subplots(len(environments), columns, squeeze=False)
    for (name, members), panels in zip(environments.items(), rows, strict=True):
        for panel in panels:
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.25, linewidth=0.6)
        styles = {
            id(group): (COLOURS[index % len(COLOURS)], _LINES[index // len(COLOURS) % len(_LINES)])
            for index, group in enumerate(groups)
        }
        _draw_returns(panels[0], members, styles, title=name if len(environments) > 1 else "Learning curve")
        if any(run.success for group in members for run in group.runs):
            _draw_attempts(panels[1], members, styles)
        elif columns == 2:
            panels[1].set_axis_off()
    if len(environments) == 1:
        figure.suptitle(next(iter(environments)), fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")


def _draw_returns(
    panel: Axes, groups: Sequence[Group], styles: dict[int, tuple[str, str]], *, title: str
) -> None:
    from matplotlib.ticker import EngFormatter

    axis = x_axis([run for group in groups for run in group.runs])
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    for group in groups:
        colour, line = styles[id(group)]
        for run in group.runs:
            # One run shows its training episodes, several show the evaluations of each.
            curve = run.training if len(group.runs) == 1 else run.evaluation
            panel.plot(
                curve.x(axis),
                curve.returns,
                color=colour,
                alpha=0.3,
                linewidth=1.2,
                label="training, with exploration" if alone else None,
            )
        mean = spread_of([run.evaluation for run in group.runs], axis)
        panel.plot(
            mean.x,
            mean.mean,
            color=colour,
            linestyle=line,
            linewidth=1.8,
            marker="o",
            markersize=4,
            label="evaluation" if alone else group.name,
        )
        if len(group.runs) > 1:
            panel.fill_between(mean.x, mean.low, mean.high, color=colour, alpha=0.15, linewidth=0)
    panel.set_xlabel(AXIS_LABELS[axis])
    panel.set_ylabel("mean return of an episode")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 64k, 1.5M
    seeds = {len(group.runs) > 1 for group in groups}
    faint = {True: "faint: each seed", False: "" if alone else "faint: training, with exploration"}
    notes = ", ".join(faint[several] for several in sorted(seeds, reverse=True) if faint[several])
    panel.set_title(f"{title}; {notes}" if notes else title, fontsize=10)
    panel.legend(frameon=False, loc="best", fontsize=9)


def _draw_attempts(panel: Axes, groups: Sequence[Group], styles: dict[int, tuple[str, str]]) -> None:
    rates = {id(group): mean_success(group) for group in groups}
    for group in groups:
        if not (values := rates[id(group)]):
            continue
        attempts = range(1, len(values) + 1)
        colour, line = styles[id(group)]
        panel.plot(
            attempts,
            values,
            color=colour,
            linestyle=line,
            linewidth=1.8,
            marker="o",
            markersize=6,
            label=group.name,
        )
        # Numbers stand above the highest point of an attempt and below the lowest, so they do not overlap.
        for attempt, rate in zip(attempts, values, strict=True):
            others = [other[attempt - 1] for other in rates.values() if len(other) >= attempt]
            if rate in (max(others), min(others)):
                panel.annotate(
                    f"{rate:.2f}",
                    (attempt, rate),
                    xytext=(0, 8 if rate == max(others) else -15),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                    color=colour,
                )
        panel.set_xticks(list(attempts))
    panel.set_ylim(0.0, 1.08)
    panel.set_xlabel("attempt at the same task")
    panel.set_ylabel("success rate")
    runs = [run for group in groups for run in group.runs]
    episodes = {run.summary.get("eval_episodes") if run.is_evaluated else None for run in runs}
    count = episodes.pop() if len(episodes) == 1 else None
    where = f"after training ({count:,} fresh episodes)" if count else "in the last evaluation"
    panel.set_title(f"Success by attempt {where}", fontsize=10)
    if len(groups) > 1:
        panel.legend(frameon=False, loc="lower right", fontsize=9)


def mean_success(group: Group) -> list[float]:
    """Success rates by attempt, averaged over the runs that have them."""
    rates = [run.success for run in group.runs if run.success]
    return [float(np.mean(attempt)) for attempt in zip(*rates, strict=False)]
