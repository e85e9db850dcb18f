"""What is known of a run, finished or not: settings, curves, times, checkpoints and live processes.

All of it is read from the run's folder: run.json, metrics.jsonl, summary.json, ckpts/ and status/. Runs that
differ in nothing but their seed form a `Group`, over which curves are averaged.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from amago.cli.report import SUMMARY_FILE, mean_return, success_by_attempt
from amago.cli.run_folders import RUN_FILE
from amago.experiment.checkpointer import read_json
from amago.experiment.run_folder import METRICS_FILE
from amago.experiment.status import is_alive, read_status

# Arguments of the Experiment that name the run, its folder or its logs; they do not change what is learned.
_IDENTITY = {"run_name", "ckpt_base_dir", "dset_root", "dset_name", "seed", "verbose"}
_LOGGING = ("wandb_", "log_to_")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean returns by environment steps and updates."""

    env_steps: list[float] = field(default_factory=list)
    gradient_steps: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    def add(self, env_steps: float, value: float, gradient_steps: float = 0.0) -> None:
        """Appends a point; points that a resumed run repeats replace the earlier ones."""
        while self.returns and (self.env_steps[-1], self.gradient_steps[-1]) >= (env_steps, gradient_steps):
            for values in (self.env_steps, self.gradient_steps, self.returns):
                values.pop()
        self.env_steps.append(env_steps)
        self.gradient_steps.append(gradient_steps)
        self.returns.append(value)

    def x(self, axis: str) -> list[float]:
        """The values on an axis, "env_steps" or "gradient_steps"."""
        return self.env_steps if axis == "env_steps" else self.gradient_steps


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A training state on disk: its epoch, size in bytes and unix time."""

    epoch: int
    size: int
    time: float


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of a run, as it last described itself in status/{role}-{index}.json.

    Attributes:
        name: role and index.
        status: contents of the file.
        alive: whether it still runs; for a process of another machine, whether it has reported lately.
    """

    name: str
    status: Mapping[str, Any]
    alive: bool


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The figures of one run.

    Attributes:
        label: name in legends.
        folder: the run's folder.
        env: the environment with its arguments.
        seed: the run's seed, None if it is not known.
        settings: everything that decides what is learned, by name, as text; the seed is not part of it.
        state: "finished", "stopped", "running" or "ended early".
        evaluation, training: mean returns of evaluations and of training episodes.
        test_return: mean return of the latest `evaluate_test` after training; None if there was none.
        success: success rates by attempt in the latest evaluation; empty if there are none.
        success_curves: the same over the run, one curve per attempt.
        metrics: latest metrics by section.
        epoch_ends: unix time, environment steps and updates at the end of every epoch's collection.
        seconds: seconds of every epoch by activity; empty if the run did not record them.
        epochs_done, epochs: epochs, and those planned (0 if not known or infinite).
        summary: contents of summary.json; empty if there is none, or an old one of a run that went on.
        checkpoints: training states, oldest first.
        processes: live and dead processes of a run that has not ended by itself.
    """

    label: str
    folder: Path
    env: str = ""
    seed: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    state: str = "ended early"
    evaluation: Curve = field(default_factory=Curve)
    training: Curve = field(default_factory=Curve)
    test_return: float | None = None
    success: list[float] = field(default_factory=list)
    success_curves: list[Curve] = field(default_factory=list)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    epoch_ends: list[tuple[float, float, float]] = field(default_factory=list)
    seconds: list[Mapping[str, float]] = field(default_factory=list)
    env_steps: int = 0
    gradient_steps: int = 0
    epochs_done: int = 0
    epochs: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)

    @property
    def final_return(self) -> float | None:
        """Mean return of the test after training, or else of the latest evaluation; None if there was none."""
        if self.test_return is not None:
            return self.test_return
        if self.summary.get("mean_return") is not None:
            return float(self.summary["mean_return"])
        return self.evaluation.returns[-1] if self.evaluation.returns else None

    @property
    def is_evaluated(self) -> bool:
        """Whether the run was evaluated after training."""
        return bool(self.summary) and _evaluated_at_the_end(self.summary)

    @property
    def return_source(self) -> str:
        """The evaluation whose mean return is `final_return`: "test" or "last validation"."""
        return "test" if self.test_return is not None or self.is_evaluated else "last validation"

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the last ten epochs; None if there is none yet, or no end."""
        times = [epoch[0] for epoch in self.epoch_ends[-11:]]
        if len(times) < 2 or not self.epochs:
            return None
        return (times[-1] - times[0]) / (len(times) - 1) * max(0, self.epochs - self.epochs_done)

    @property
    def wall_seconds(self) -> float:
        """Duration of training; of an unfinished run, the time since its first metrics, or up to its last ones."""
        if "wall_seconds" in self.summary:
            return float(self.summary["wall_seconds"])
        if self.seconds and self.state != "running":
            return sum(epoch.get("total", 0.0) for epoch in self.seconds)
        if not self.epoch_ends:
            return 0.0
        return (time.time() if self.state == "running" else self.epoch_ends[-1][0]) - self.epoch_ends[0][0]

    def speed(self, of: str) -> Curve:
        """Environment steps ("env_steps") or updates ("gradient_steps") per second of wall time, by epochs."""
        curve = Curve()
        ends = self.epoch_ends if self.summary else self.epoch_ends[:-1]  # an epoch that goes on has no speed
        for (before, *done), (at, *now) in itertools.pairwise(ends):
            index = 0 if of == "env_steps" else 1
            if at > before:
                curve.add(now[0], (now[index] - done[index]) / (at - before), now[1])
        return curve


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one configuration, which differ in their seeds only."""

    label: str
    env: str
    settings: Mapping[str, str]
    runs: list[RunFigures]

    @property
    def name(self) -> str:
        """The label with the number of runs."""
        count = len(self.runs)
        seeds = "seeds" if len({run.seed for run in self.runs}) == count else "runs"
        return self.label if count == 1 else f"{self.label} ({count} {seeds})"

    @property
    def return_source(self) -> str:
        """The evaluations whose mean returns the runs have; "" if none was evaluated."""
        sources = {run.return_source for run in self.runs if run.final_return is not None}
        return ", ".join(sorted(sources, reverse=True))


def read_figures(folder: Path, label: str | None = None) -> RunFigures:
    """Reads the figures of a run; whatever it has not written yet is empty."""
    record, summary = read_json(folder / RUN_FILE) or {}, read_json(folder / SUMMARY_FILE) or {}
    curves = {"val": Curve(), "train": Curve()}
    success_curves: list[Curve] = []
    latest: dict[str, Mapping[str, float]] = {}
    epoch_ends: dict[int, tuple[float, float, float]] = {}
    seconds: dict[int, Mapping[str, float]] = {}
    test: tuple[int, int, float] | None = None  # environment steps and updates before it, and its return
    steps = updates = epoch = 0
    for line in _metric_lines(folder):
        section, axes = line["section"], line["axes"]
        metrics = {name: value for name, value in line["metrics"].items() if value is not None}
        latest[section] = metrics
        # Learner and collectors write in turns, and a collector does not count updates.
        steps = max(steps, int(axes.get("total_frames", 0)))
        updates = max(updates, int(axes.get("gradient_steps", 0)))
        epoch = max(epoch, int(axes.get("Epoch", 0)))
        if section in ("dataset", "time") and "time" in line:
            epoch_ends[epoch] = (line["time"], steps, updates)
        if section == "time":
            seconds[epoch] = metrics
        value = mean_return(metrics)
        if section in curves and value is not None:
            curves[section].add(axes.get("total_frames", 0), value, axes.get("gradient_steps", 0))
        if section == "test" and value is not None:
            test = int(axes.get("total_frames", 0)), int(axes.get("gradient_steps", 0)), value
        if section == "val":
            rates = success_by_attempt(metrics)
            success_curves += [Curve() for _ in rates[len(success_curves) :]]
            for curve, rate in zip(success_curves, rates, strict=False):
                curve.add(axes.get("total_frames", 0), rate, axes.get("gradient_steps", 0))
    processes = [
        Process(name=f"{status['role']}-{status['index']}", status=status, alive=is_alive(status))
        for status in read_status(folder)
    ]
    is_running = any(process.alive for process in processes)
    # A collector may go on when its learner has ended: timesteps alone do not say that such a run was continued.
    has_collectors = (folder / "collectors").is_dir()
    collected_more = steps > summary.get("env_steps", 0) and not has_collectors
    if is_running or collected_more or updates > summary.get("gradient_steps", 0):
        summary = {}  # the run was continued after it had ended
    success = list(summary.get("success_by_attempt", ()))
    if summary:
        steps, updates = int(summary["env_steps"]), int(summary["gradient_steps"])
        # The evaluation after training is the last point of the curves.
        if summary.get("mean_return") is not None and _evaluated_at_the_end(summary):
            curves["val"].add(steps, float(summary["mean_return"]), updates)
            for curve, rate in zip(success_curves, success, strict=False):
                curve.add(steps, rate, updates)
    recorded = (record.get("arguments") or {}).get("epochs")
    epochs = recorded if isinstance(recorded, int) else 0  # infinite ones are not numbers in JSON
    # Processes report more often than metrics are logged.
    for process in processes:
        epoch = max(epoch, int(process.status.get("epoch") or 0))
        steps = max(steps, int(process.status.get("env_steps") or 0))
        updates = max(updates, int(process.status.get("gradient_steps") or 0))
    return RunFigures(
        label=label
        if label is not None
        else str(summary.get("run") or record.get("run_name") or folder.name),
        folder=folder,
        env=_environment(record, summary),
        seed=summary.get("seed", record.get("seed")),
        settings=_settings(record),
        state="running"
        if is_running
        else str(summary.get("status", "finished"))
        if summary
        else "ended early",
        evaluation=curves["val"],
        training=curves["train"],
        test_return=test[2] if summary and test is not None and test[:2] == (steps, updates) else None,
        success=success or [curve.returns[-1] for curve in success_curves],
        success_curves=success_curves,
        metrics=latest,
        epoch_ends=list(epoch_ends.values()),
        seconds=list(seconds.values()),
        env_steps=steps,
        gradient_steps=updates,
        epochs_done=epochs if _is_finished(summary) and epochs else epoch,
        epochs=epochs,
        summary=summary,
        checkpoints=_checkpoints(folder),
        processes=processes,
    )


def _is_finished(summary: Mapping[str, Any]) -> bool:
    return bool(summary) and summary.get("status", "finished") == "finished"


def _evaluated_at_the_end(summary: Mapping[str, Any]) -> bool:
    """Whether the summary's evaluation came after training; older summaries do not say, and theirs always did."""
    return summary.get("eval_env_steps") in (None, summary["env_steps"])


def _metric_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Lines of metrics.jsonl, without an incomplete last one; none if the run has not logged yet."""
    path = folder / METRICS_FILE
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n"))


def _checkpoints(folder: Path) -> list[Checkpoint]:
    found = []
    for path in (folder / "ckpts" / "training_states").glob("[!.]*_epoch_*"):
        try:
            files = [file.stat() for file in path.iterdir()]
        except FileNotFoundError:  # the run has deleted it meanwhile
            continue
        size, newest = (
            sum(file.st_size for file in files),
            max((file.st_mtime for file in files), default=0.0),
        )
        found.append(Checkpoint(epoch=int(path.name.rpartition("_")[2]), size=size, time=newest))
    return sorted(found, key=lambda checkpoint: checkpoint.epoch)


def _environment(record: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Name and arguments of the environment, as run.json or summary.json has them."""
    description = record.get("environment") or {}
    name = summary.get("env") or description.get("name")
    arguments = summary.get("env_args") or description.get("args") or {}
    if name is None:  # a run from Python that has not ended
        name = ", ".join(record.get("env_names") or ["environment"])
    texts = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return f"{name} ({texts})" if texts else str(name)


def _settings(record: Mapping[str, Any]) -> dict[str, str]:
    """What decides what is learned: recipe or else arguments of the Experiment, gin bindings, versions."""
    description = record.get("environment") or {}
    recipe = description.get("recipe")
    arguments = dict(record.get("arguments") or {}) if recipe is None else {**recipe}
    # The recipe's own gin settings stand, together with those of the command line, under "gin".
    arguments.pop("gin", None)
    if recipe is None and description:
        arguments["environment"] = {name: value for name, value in description.items() if name != "recipe"}
    settings = dict(_flattened(arguments))
    gin = {".".join(name.split(".")[-2:]): value for name, value in (record.get("gin") or {}).items()}
    settings.update(_flattened(gin))
    settings.update(
        {f"version of {name}": str(text) for name, text in (record.get("packages") or {}).items()}
    )
    kept = settings.items()
    return {k: v for k, v in kept if k.rpartition(".")[2] not in _IDENTITY and not k.startswith(_LOGGING)}


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested dictionaries as names with dots; classes and objects, import paths in run.json, by name."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and set(value) == {"import"}:
            yield name, str(value["import"]).rpartition(":")[2]
        elif isinstance(value, dict) and set(value) == {"object"}:
            yield name, str(value["object"][0]).rpartition(":")[2]
            yield from _flattened(value["object"][1], f"{name}.")
        elif isinstance(value, dict) and value:
            yield from _flattened(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def group_runs(runs: Sequence[RunFigures], *, by_label: bool = False) -> list[Group]:
    """Groups runs that differ in nothing but their seed; runs whose settings are not known stay alone.

    Args:
        runs: the runs.
        by_label: keep runs with different labels apart.
    """
    groups: dict[Any, list[RunFigures]] = {}
    for index, run in enumerate(runs):
        key = (run.env, tuple(sorted(run.settings.items())), run.label if by_label else "")
        groups.setdefault(key if run.settings else index, []).append(run)
    return [
        Group(label=_common_name(members), env=members[0].env, settings=members[0].settings, runs=members)
        for members in groups.values()
    ]


def _common_name(runs: Sequence[RunFigures]) -> str:
    """The label of the runs without their seeds, if that is one; else the label of the first."""
    names = {re.sub(rf"[-_. ]?(seed|s)?[-_=]?{run.seed}$", "", run.label) for run in runs}
    return names.pop() if len(runs) > 1 and len(names) == 1 and "" not in names else runs[0].label


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Settings in which the groups differ, with the value of each group; "–" where it has none."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    rows = {name: [group.settings.get(name, "–") for group in groups] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def by_environment(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups by environment: returns of different ones do not belong on one axis."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.env, []).append(group)
    return found


def x_axis(runs: Sequence[RunFigures]) -> str:
    """ "env_steps", or "gradient_steps" for runs that collect nothing."""
    return "env_steps" if any(run.env_steps for run in runs) else "gradient_steps"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean of several curves with the lowest and highest at each point."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def spread_of(curves: Sequence[Curve], axis: str) -> Spread:
    """Averages curves over the part of the axis that all of them cover, by linear interpolation."""
    curves = [curve for curve in curves if curve.returns]
    if not curves:
        return Spread(x=[], mean=[], low=[], high=[])
    start, end = max(curve.x(axis)[0] for curve in curves), min(curve.x(axis)[-1] for curve in curves)
    grid = sorted({x for curve in curves for x in curve.x(axis) if start <= x <= end})
    values = np.array([np.interp(grid, curve.x(axis), curve.returns) for curve in curves])
    if not grid:
        return Spread(x=[], mean=[], low=[], high=[])
    means, lows, highs = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    return Spread(x=grid, mean=means.tolist(), low=lows.tolist(), high=highs.tolist())
