"""`amago-run report`: one HTML page about one or several runs, finished or not.

The page holds everything that it shows: style, charts (inline SVG) and tables, no scripts and no requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from amago.cli.plots import AXIS_LABELS, mean_success
from amago.cli.run_figures import (
    Curve,
    Group,
    RunFigures,
    by_environment,
    differences,
    group_runs,
    read_figures,
    spread_of,
    x_axis,
)
from amago.cli.statistics import bootstrap_interquartile_mean
from amago.cli.svg import Line, colour_class, line_chart
from amago.cli.text import duration, number, size
from amago.experiment.checkpointer import write_text

# Activities of an epoch in the order of their bars; the rest is "other".
ACTIVITIES = (
    *("environments", "policy", "recording", "loading", "update", "waiting", "evaluation", "checkpoint"),
    "other",
)
# Sizes of a chart in pixels by CSS class: over the whole width, beside another one, and on a phone.
_SIZES = {"full": (1078, 320), "wide": (506, 290), "narrow": (326, 240)}
_SPEEDS = {"Environment steps per second": "env_steps", "Updates per second": "gradient_steps"}
_NONE = "–"


class Table(NamedTuple):
    """A table of the page: titles of its columns, rows of cells, and the columns that hold text."""

    columns: list[str]
    rows: list[list[Any]]
    text_columns: frozenset[int] = frozenset({0})


class Chart(NamedTuple):
    """A chart in several sizes, with its title, a remark and the names of its lines with their colours."""

    title: str
    sizes: dict[str, Markup]
    note: str
    legend: list[tuple[str, str]]


class TimeBar(NamedTuple):
    """How a group's runs spent their time: (activity, seconds, share in percent)."""

    name: str
    parts: list[tuple[str, float, float]]


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Writes the page about the runs in `folders`; makes its folder if needed."""
    write_text(render_report([read_figures(folder) for folder in folders]), page)


def render_report(runs: Sequence[RunFigures]) -> str:
    """The page as HTML text."""
    groups = group_runs(runs)
    environments = by_environment(groups)
    indices = {id(group): index for index, group in enumerate(groups)}
    template = (files("amago.cli") / "templates" / "report.html").read_text(encoding="utf-8")
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return jinja.from_string(template).render(
        title=groups[0].name if len(groups) == 1 else f"{len(groups)} configurations, {len(runs)} runs",
        environments=list(environments),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        states=_count([run.state for run in runs]),
        overview=_overview(groups),
        has_intervals=any(len(_returns(group)) > 1 for group in groups),
        differences=[(name, _differences(members)) for name, members in environments.items()],
        settings=[(group.name, list(group.settings.items())) for group in groups],
        sections=[
            (name, [chart for chart in _charts(members, indices) if chart.sizes["wide"]])
            for name, members in environments.items()
        ],
        time_bars=[bar for group in groups if (bar := _time_bar(group))],
        activities=ACTIVITIES,
        checkpoints=_checkpoints(runs),
        runs=_runs(runs),
    )


def _overview(groups: Sequence[Group]) -> Table:
    has_attempts = any(run.success for group in groups for run in group.runs)
    columns: dict[str, Callable[[Group], Any]] = {"Environment": lambda group: group.env}
    if len(by_environment(groups)) == 1:
        columns.clear()
    columns["Return"] = lambda group: _estimate(_returns(group))
    columns["Return from"] = lambda group: group.return_source or _NONE
    if has_attempts:
        columns["First attempt"] = lambda group: _rate(mean_success(group)[:1])
        columns["Last attempt"] = lambda group: _rate(mean_success(group)[-1:])
    columns["Environment steps"] = lambda group: f"{fmean(run.env_steps for run in group.runs):,.0f}"
    columns["Updates"] = lambda group: f"{fmean(run.gradient_steps for run in group.runs):,.0f}"
    columns["Time"] = lambda group: duration(fmean(run.wall_seconds for run in group.runs))
    rows = [
        [_keyed(group.name, index), *(cell(group) for cell in columns.values())]
        for index, group in enumerate(groups)
    ]
    titles = ["Configuration", *columns]
    texts = ("Configuration", "Environment", "Return from")
    return Table(titles, rows, frozenset(titles.index(each) for each in texts if each in titles))


def _rate(rates: Sequence[float]) -> str:
    return f"{rates[0]:.1%}" if rates else _NONE


def _keyed(name: str, index: int) -> Markup:
    """A name after a dot in its colour."""
    return Markup('<i class="key {}"></i>{}').format(colour_class(index), name)


def _returns(group: Group) -> list[float]:
    return [run.final_return for run in group.runs if run.final_return is not None]


def _estimate(values: Sequence[float]) -> Markup:
    """The interquartile mean with its interval; a single value as it is."""
    if not values:
        return Markup(_NONE)
    if len(values) == 1:
        return escape(number(values[0]))
    estimate = bootstrap_interquartile_mean([values])
    interval = f"{number(estimate.low)} to {number(estimate.high)}"
    return Markup("{} <small>{}</small>").format(number(estimate.value), interval)


def _differences(groups: Sequence[Group]) -> Table | None:
    """A table of the settings in which the groups differ, a row each; None if there are none."""
    found = differences(groups)
    columns = ["Setting", *(group.name for group in groups)]
    rows = [[name, *values] for name, values in found.items()]
    return Table(columns, rows, frozenset(range(len(columns)))) if rows else None


def _charts(groups: Sequence[Group], indices: dict[int, int]) -> list[Chart]:
    """The charts of one environment."""
    runs = [run for group in groups for run in group.runs]
    axis = x_axis(runs)
    legend = [(group.name, colour_class(indices[id(group)])) for group in groups]

    def chart(title: str, lines: list[Line], y_label: str, note: str = "", **options: Any) -> Chart:
        options = {"x_label": AXIS_LABELS[axis], "y_label": y_label, **options}
        drawn = {name: line_chart(lines, width=w, height=h, **options) for name, (w, h) in _SIZES.items()}
        return Chart(title, drawn, note, legend if len(legend) > 1 else [])

    def lines_of(curves: Callable[[RunFigures], Curve | None], faint: bool = False) -> list[Line]:
        """The mean of every group's curves with their spread."""
        lines = []
        for group in groups:
            found = [curve for run in group.runs if (curve := curves(run)) is not None]
            mean = spread_of(found, axis)
            band = (mean.low, mean.high) if len(found) > 1 and not faint else ((), ())
            index = indices[id(group)]
            lines.append(
                Line(
                    label=group.name,
                    index=index,
                    x=mean.x,
                    y=mean.mean,
                    low=band[0],
                    high=band[1],
                    faint=faint,
                )
            )
        return lines

    several = any(len(group.runs) > 1 for group in groups)
    training, beyond = [], []
    for group in groups:
        end = max(spread_of([run.evaluation for run in group.runs], axis).x, default=0.0)
        for run in group.runs:
            curve = run.training if len(group.runs) == 1 else run.evaluation
            line = Line(label="", index=indices[id(group)], x=curve.x(axis), y=curve.returns, faint=True)
            if len(group.runs) == 1:
                training.append(line)
            elif max(curve.x(axis), default=0.0) > end:
                beyond.append(line)
    notes = ["Evaluations without exploration."]
    notes += ["Bands reach from the lowest to the highest seed."] if several else []
    notes += ["Thin lines: training episodes, with exploration."] if training else []
    notes += ["Thin lines of several seeds: those that are ahead of the others."] if beyond else []
    found = [
        chart(
            "Return",
            training + beyond + lines_of(lambda run: run.evaluation),
            "mean return of an episode",
            " ".join(notes),
        )
    ]
    attempts = max(len(run.success) for run in runs)
    if attempts:
        success = [
            Line(
                label=group.name,
                index=indices[id(group)],
                x=list(range(1, len(rates) + 1)),
                y=rates,
                low=[min(run.success[i] for run in group.runs if run.success) for i in range(len(rates))],
                high=[max(run.success[i] for run in group.runs if run.success) for i in range(len(rates))],
            )
            for group in groups
            if (rates := mean_success(group))
        ]
        last = all(run.is_evaluated for run in runs)
        found.append(
            chart(
                "Success by attempt",
                success,
                "success rate",
                "The evaluation after training." if last else "The latest evaluation of each run.",
                y_range=(0.0, 1.0),
                x_ticks=range(1, attempts + 1),
                x_label="attempt at the same task",
                numbers=len(success) <= 2,
            )
        )
        first = lines_of(lambda run: run.success_curves[0] if run.success_curves else None, faint=True)
        best = lines_of(lambda run: run.success_curves[-1] if run.success_curves else None)
        note = "Thick: the last attempt, thin: the first. The gap is what the agent learns within an episode."
        found.append(chart("Success during training", first + best, "success rate", note, y_range=(0.0, 1.0)))
    for title, counted in _SPEEDS.items():
        speeds = lines_of(lambda run, counted=counted: run.speed(counted))  # type: ignore[misc]
        highest = max((y for line in speeds for y in (*line.y, *line.high)), default=0.0)
        if highest:
            note = "Of wall time, everything included: collecting, updates, evaluation."
            found.append(chart(title, speeds, title.lower(), note, y_range=(0.0, 1.1 * highest)))
    return found


def _time_bar(group: Group) -> TimeBar | None:
    """Mean seconds of the group's runs by activity; None if no run recorded them."""
    runs = [run.seconds for run in group.runs if run.seconds]
    if not runs:
        return None
    seconds = {
        activity: fmean(sum(epoch.get(activity, 0.0) for epoch in epochs) for epochs in runs)
        for activity in ACTIVITIES
    }
    total = sum(seconds.values()) or 1.0
    return TimeBar(group.name, [(name, value, 100 * value / total) for name, value in seconds.items()])


def _checkpoints(runs: Sequence[RunFigures]) -> Table:
    rows = [
        [
            run.label,
            len(run.checkpoints),
            _listed([checkpoint.epoch for checkpoint in run.checkpoints]),
            size(sum(checkpoint.size for checkpoint in run.checkpoints)),
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.checkpoints[-1].time)),
        ]
        for run in runs
        if run.checkpoints
    ]
    return Table(["Run", "Checkpoints", "Epochs", "On disk", "Newest"], rows, frozenset({0, 2}))


def _listed(epochs: Sequence[int]) -> str:
    """Epochs, the middle of a long list left out."""
    texts = [str(epoch) for epoch in epochs]
    return ", ".join(texts if len(texts) <= 10 else [*texts[:5], "…", *texts[-4:]])


def _runs(runs: Sequence[RunFigures]) -> Table:
    rows = []
    for run in runs:
        epochs = f"{run.epochs_done:,} of {run.epochs:,}" if run.epochs else f"{run.epochs_done:,}"
        value = _NONE if run.final_return is None else number(run.final_return)
        skipped = run.metrics.get("learning", {}).get("skipped_updates", 0)
        steps, updates = f"{run.env_steps:,}", f"{run.gradient_steps:,}"
        seed = _NONE if run.seed is None else str(run.seed)
        state = Markup('<span class="state {}">{}</span>').format(run.state.replace(" ", "-"), run.state)
        rows.append(
            [
                run.label,
                state,
                seed,
                epochs,
                value,
                _NONE if run.final_return is None else run.return_source,
                steps,
                updates,
                f"{skipped:,.0f}",
                duration(run.wall_seconds),
            ]
        )
    columns = [
        "Run",
        "State",
        "Seed",
        "Epochs",
        "Return",
        "Return from",
        "Environment steps",
        "Updates",
        "Skipped updates",
        "Time",
    ]
    return Table(columns, rows, frozenset({0, 1, columns.index("Return from")}))


def _count(names: Sequence[str]) -> str:
    """ "2 finished, 1 running"."""
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
