"""Table and figures of `benchmarks.learning`, from the rows in benchmarks/results."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amago.cli.statistics import bootstrap_interquartile_mean
from benchmarks.learning_tasks import NEIGHBOURS, TASKS
from benchmarks.machine import ROOT

RESULTS = Path(__file__).parent / "results" / "learning.csv"
CURVES = Path(__file__).parent / "results" / "learning_curves.csv"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- python -m benchmarks.learning --table -->\n", "<!-- end -->"
LABELS = {
    "memory": "AMAGO, memory",
    "none": "AMAGO, no memory",
    "ppo-lstm": "PPO with LSTM",
    "recurrent-ppo": "RecurrentPPO (sb3-contrib)",
}
# Okabe and Ito's colours, which the colour-blind can tell apart; markers tell them apart in grey.
STYLES = {
    "memory": ("#0072B2", "o"),
    "none": ("#D55E00", "s"),
    "ppo-lstm": ("#009E73", "^"),
    "recurrent-ppo": ("#AA4499", "D"),
}
Row = dict[str, str]
Curve = list[Row]


def read_rows(file: Path = RESULTS) -> list[Row]:
    """The rows of a file of results."""
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def current_rows(task: str, policy: str) -> list[Row]:
    """The last row of each seed that ran with the arguments of today."""
    arguments = TASKS[task].arguments_of(policy)
    rows = {
        row["seed"]: row
        for row in read_rows()
        if (row["task"], row["policy"], row["arguments"]) == (task, policy, arguments)
    }
    return [rows[seed] for seed in sorted(rows, key=int)]


def curves_of(task: str) -> dict[str, list[Curve]]:
    """The curves of each policy's current rows; of a seed that ran twice, the later one."""
    seeds = {policy: {row["seed"] for row in current_rows(task, policy)} for policy in LABELS}
    curves: dict[tuple[str, str], Curve] = {}
    for point in read_rows(CURVES):
        if point["task"] != task or point["seed"] not in seeds[point["policy"]]:
            continue
        curve = curves.setdefault((point["policy"], point["seed"]), [])
        if curve and float(point["gradient_steps"]) < float(curve[-1]["gradient_steps"]):
            curve.clear()
        curve.append(point)
    found = {policy: [curve for (own, _), curve in curves.items() if own == policy] for policy in LABELS}
    return {policy: each for policy, each in found.items() if each}


def draw_all(tasks: Sequence[str]) -> None:
    """Draws docs/learning-TASK.png for each of the tasks that has a row, and docs/learning.png of all tasks."""
    for task in tasks:
        curves = curves_of(task)
        if curves:
            draw(task, curves, ROOT / "docs" / f"learning-{task}.png")
    draw_summary(ROOT / "docs" / "learning.png")


def draw_summary(path: Path) -> None:
    """Draws the return after training of all tasks and policies: seeds, their interquartile mean, random."""
    from matplotlib.figure import Figure

    tasks = list(dict(_pairs()))
    columns = 4
    lines = -(-len(tasks) // columns)
    figure = Figure(figsize=(9.6, 1.25 * lines + 0.5), dpi=150, layout="constrained")
    panels: Any = figure.subplots(lines, columns, squeeze=False).flat
    handles = {}
    for panel, task in itertools.zip_longest(panels, tasks):
        if task is None:
            panel.set_axis_off()
            continue
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.set_title(TASKS[task].title, fontsize=7.5)
        panel.set_yticks([])
        panel.locator_params(axis="x", nbins=5)
        panel.set_ylim(-3.6, 0.6)
        panel.tick_params(axis="x", labelsize=7)
        for place, (policy, (color, marker)) in enumerate(STYLES.items()):
            rows = current_rows(task, policy)
            if not rows:
                continue
            returns = [float(row["mean_return"]) for row in rows]
            middle = bootstrap_interquartile_mean([returns])[0]
            handles[LABELS[policy]] = panel.scatter(middle, -place, 28, color, marker)
            if len(returns) > 1:
                panel.plot([min(returns), max(returns)], [-place, -place], color=color, linewidth=1.5)
            random = float(rows[-1]["random_return"])
        handles["random policy"] = panel.axvline(random, color="#555555", linestyle="--", linewidth=1)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(path, facecolor="white")


def draw(task: str, curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Draws the evaluations of all policies over environment steps and over time, above the random policy.

    Thin lines are seeds, the thick one is their mean. Time is that of a core of the run's own, see `_timed`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    timed = {policy: [_timed(each) for each in seeds] for policy, seeds in curves.items()}
    timed = {policy: [each for each in seeds if each] for policy, seeds in timed.items()}
    timed = {policy: seeds for policy, seeds in timed.items() if seeds}
    figure = Figure(figsize=(9.6 if timed else 6.4, 4.0), dpi=150, layout="constrained")
    panels: Any = figure.subplots(1, 2 if timed else 1, sharey=True, squeeze=False)[0]
    offline = all(float(point["env_steps"]) == 0 for each in curves.values() for c in each for point in c)
    left = ("gradient_steps", "updates") if offline else ("env_steps", "environment steps")
    right = ("seconds", "seconds on one core")
    for panel, (axis, label), shown in zip(panels, (left, right), (curves, timed), strict=False):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.set_xlabel(label)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        for policy, seeds in shown.items():
            _draw_policy(panel, policy, seeds, axis)
    random = [float(row["random_return"]) for row in read_rows() if row["task"] == task]
    for panel in panels:
        label = f"random policy: {_short(random[-1])}"
        panel.axhline(random[-1], color="#555555", linestyle="--", linewidth=1.2, label=label)
    panels[0].set_ylabel("mean return of an episode")
    figure.suptitle(TASKS[task].title, fontsize=12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, facecolor="white")


def _timed(curve: Curve) -> Curve:
    """The curve in seconds on one core: wall times, scaled to the processor time of the run.

    A run is one process with one thread, so on an idle machine its wall time is its processor time. [] if the
    processor time was not measured.
    """
    key = [curve[-1][column] for column in ("task", "policy", "seed")]
    row = [row for row in read_rows() if [row["task"], row["policy"], row["seed"]] == key][-1]
    if not row["cpu_seconds"] or not all(point["seconds"] for point in curve):
        return []
    scale = min(1.0, float(row["cpu_seconds"]) / float(row["wall_seconds"]))
    return [point | {"seconds": str(scale * float(point["seconds"]))} for point in curve]


def _draw_policy(panel: Any, policy: str, seeds: Sequence[Curve], axis: str) -> None:
    """One policy: its seeds, and their mean over the evaluations that all of them have."""
    color, marker = STYLES[policy]
    x, y = ([np.array([float(point[key]) for point in curve]) for curve in seeds] for key in (axis, "return"))
    if len(seeds) > 1:
        for own_x, own_y in zip(x, y, strict=True):
            panel.plot(own_x, own_y, color=color, alpha=0.35, linewidth=0.9)
    length = min(len(each) for each in x)
    mean_x, mean_y = (np.mean([each[:length] for each in values], axis=0) for values in (x, y))
    count = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    panel.plot(
        mean_x,
        mean_y,
        color=color,
        marker=marker,
        markersize=4,
        linewidth=2.0,
        label=f"{LABELS[policy]}, {count}",
    )


def write_table() -> None:
    """Writes the tables into docs/results.md, between its two comments."""
    text = PAGE.read_text()
    if BEGIN not in text:
        raise SystemExit(f"{PAGE} has no line {BEGIN.strip()}")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(tables()) + END + rest.partition(END)[2])


def tables() -> list[str]:
    """The lines of all tables, and the figures."""
    return [*table(), "", *attempts(), "", *commands(), "", *pictures()]


def table() -> Iterator[str]:
    """Returns by task and policy."""
    yield "| task | policy | seeds | return | random | steps | updates | CPU, s |"
    yield "|---|---|---|---|---|---|---|---|"
    shown = None
    for task, policy in _pairs():
        rows = current_rows(task, policy)
        name = TASKS[task].title + (f" (best: {TASKS[task].best})" if TASKS[task].best else "")
        shown, name = task, name if task != shown else ""
        seeds = ", ".join(row["seed"] for row in rows)
        last = rows[-1]
        yield (
            f"| {name} | {LABELS[policy]} | {seeds} | {interval(rows)} "
            f"| {_short(float(last['random_return']))} | {int(last['env_steps']):,} "
            f"| {int(last['gradient_steps']):,} | {_middle(rows, 'cpu_seconds')} |"
        )


def attempts() -> Iterator[str]:
    """Success by attempt, where a task has attempts."""
    yield "Success by attempt, mean of the seeds:"
    yield ""
    yield "| task | policy | 1 | 2 | 3 | 4 | 5 |"
    yield "|---|---|---|---|---|---|---|"
    for task, policy in _pairs():
        found = [row["success_by_attempt"].split() for row in current_rows(task, policy)]
        found = [rates for rates in found if len(rates) == 5]
        if found:
            means = np.mean(np.array(found, dtype=float), axis=0)
            rates = " | ".join(f"{rate:.2f}" for rate in means)
            yield f"| {TASKS[task].title} | {LABELS[policy]} | {rates} |"


def commands() -> Iterator[str]:
    """What reproduces each row."""
    yield "`python -m benchmarks.learning --only TASK --policy POLICY --seeds SEED --again` repeats a row:"
    yield ""
    yield "| TASK | POLICY | command |"
    yield "|---|---|---|"
    for task, policy in _pairs():
        arguments = TASKS[task].arguments_of(policy)
        program = "amago-run train"
        if policy in NEIGHBOURS:
            steps = current_rows(task, policy)[-1]["command"].partition("--steps ")[2].partition(" ")[0]
            program = f"python -m benchmarks.neighbours.{policy.replace('-', '_')}"
            arguments += f" --steps {steps}"
        yield f"| {task} | {policy} | `{program} {arguments} --seed SEED` |"


def pictures() -> Iterator[str]:
    """The figure of each task that has rows."""
    yield "Evaluations during training. Thin lines are seeds, the thick line is their mean. Seconds on one core"
    yield "are calculated: wall time times the run's CPU time / wall time, because other work shared the cores."
    yield ""
    for task in dict(_pairs()):
        yield f"![{TASKS[task].title}: return over environment steps, and time](learning-{task}.png)"
        yield ""


def interval(rows: Sequence[Row]) -> str:
    """Interquartile mean with its 95 % interval, if there are seeds enough."""
    found = bootstrap_interquartile_mean([[float(row["mean_return"]) for row in rows]])
    digits = _digits(found[0])
    value, low, high = (round(number, digits) + 0.0 for number in found)  # no "-0.00"
    if not np.isfinite(low):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _pairs() -> Iterator[tuple[str, str]]:
    """Tasks and policies with rows."""
    for task in TASKS:
        for policy in TASKS[task].policies:
            if current_rows(task, policy):
                yield task, policy


def _middle(rows: Sequence[Row], key: str) -> str:
    """The median of a column; empty where no row has a value."""
    values = [float(row[key]) for row in rows if row[key]]
    return f"{np.median(values):,.0f}" if values else ""


def _digits(value: float) -> int:
    return 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0


def _short(value: float) -> str:
    return f"{value:.{_digits(value)}f}"
