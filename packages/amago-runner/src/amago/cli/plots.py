"""Pictures of finished runs, from their `metrics.jsonl` and `summary.json`; no display is needed.

The left panel shows the return over environment steps; the right one, for environments that report attempts, the
success rate of each attempt in the evaluation after training. Several runs share both panels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amago.cli.report import Summary, mean_return

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS_FILE = "metrics.jsonl"
PICTURE_FILE = "learning_curve.png"

# Okabe and Ito's palette, whose colours colour-blind readers can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean returns by environment steps."""

    env_steps: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    def add(self, env_steps: float, value: float) -> None:
        """Appends a point; points that a resumed run repeats replace the earlier ones."""
        while self.env_steps and self.env_steps[-1] >= env_steps:
            self.env_steps.pop()
            self.returns.pop()
        self.env_steps.append(env_steps)
        self.returns.append(value)


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The figures of one run: returns of evaluations and of training episodes, and the summary."""

    label: str
    evaluation: Curve
    training: Curve
    summary: Summary


def read_figures(folder: Path, label: str | None = None) -> RunFigures:
    """Reads the figures of a finished run; raises FileNotFoundError if a file is missing."""
    summary = Summary.load(folder)
    curves = {"val": Curve(), "train": Curve()}
    with (folder / METRICS_FILE).open() as lines:
        for line in lines:
            record = json.loads(line)
            curve = curves.get(record["section"])
            value = mean_return(record["metrics"])
            if curve is not None and value is not None:
                curve.add(float(record["axes"]["total_frames"]), value)
    evaluation = curves["val"]
    # The evaluation after training is the last point of the curve.
    if summary.mean_return is not None:
        at = summary.env_steps if summary.eval_env_steps is None else summary.eval_env_steps
        evaluation.add(float(at), summary.mean_return)
    return RunFigures(
        label=label if label is not None else summary.run,
        evaluation=evaluation,
        training=curves["train"],
        summary=summary,
    )


def draw_runs(runs: Sequence[RunFigures], path: Path) -> None:
    """Draws the runs into the PNG file `path`; makes its folder if needed."""
    from matplotlib.figure import Figure

    has_attempts = any(run.summary.success_by_attempt for run in runs)
    figure = Figure(figsize=(10.0, 4.2) if has_attempts else (6.4, 4.2), dpi=150, layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 2 if has_attempts else 1, squeeze=False)[0])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
    _draw_returns(panels[0], runs)
    if has_attempts:
        _draw_attempts(panels[1], runs)
    figure.suptitle(_title(runs), fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")


def _title(runs: Sequence[RunFigures]) -> str:
    summary = runs[0].summary
    name = summary.env
    if arguments := ", ".join(f"{key}={value}" for key, value in summary.env_args.items()):
        name += f" ({arguments})"
    return name


def _draw_returns(panel: Axes, runs: Sequence[RunFigures]) -> None:
    from matplotlib.ticker import EngFormatter

    several = len(runs) > 1
    for index, run in enumerate(runs):
        colour = _COLOURS[index % len(_COLOURS)]
        panel.plot(
            run.training.env_steps,
            run.training.returns,
            color=colour,
            alpha=0.3,
            linewidth=1.2,
            label=None if several else "training, with exploration",
        )
        panel.plot(
            run.evaluation.env_steps,
            run.evaluation.returns,
            color=colour,
            linewidth=1.8,
            marker="o",
            markersize=4,
            label=run.label if several else "evaluation",
        )
    panel.set_xlabel("environment steps")
    panel.set_ylabel("mean return of an episode")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 64k, 1.5M
    panel.set_title(
        "Learning curve" + (" (faint: training, with exploration)" if several else ""), fontsize=10
    )
    panel.legend(frameon=False, loc="best", fontsize=9)


def _draw_attempts(panel: Axes, runs: Sequence[RunFigures]) -> None:
    best = max(runs, key=lambda run: sum(run.summary.success_by_attempt))
    for index, run in enumerate(runs):
        rates = run.summary.success_by_attempt
        if not rates:
            continue
        attempts = range(1, len(rates) + 1)
        colour = _COLOURS[index % len(_COLOURS)]
        panel.plot(
            attempts,
            rates,
            color=colour,
            linewidth=1.8,
            marker="o",
            markersize=6,
            label=f"{run.label}: return {run.summary.mean_return:.2f}",
        )
        # Numbers stand above the line of the best run and below the other lines, so they do not overlap.
        shift = 8 if run is best else -15
        for attempt, rate in zip(attempts, rates, strict=True):
            panel.annotate(
                f"{rate:.2f}",
                (attempt, rate),
                xytext=(0, shift),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=colour,
            )
        panel.set_xticks(list(attempts))
    panel.set_ylim(0.0, 1.08)
    panel.set_xlabel("attempt at the same task")
    panel.set_ylabel("success rate")
    episodes = runs[0].summary.eval_episodes
    fresh = f" ({episodes:,} fresh episodes)" if episodes else ""
    panel.set_title(f"Success by attempt after training{fresh}", fontsize=10)
    if len(runs) > 1:
        panel.legend(frameon=False, loc="lower right", fontsize=9)
