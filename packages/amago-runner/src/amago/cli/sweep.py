"""`amago-run sweep`: every combination of settings with several seeds, each run an `amago-run train` of its own.

    {run_dir}/{name}/
        {settings}-seed{n}/     a run
        logs/{settings}-seed{n}.log
        sweep.json              the options that all runs have in common
        results.csv, results.md one row per configuration: interquartile mean with its interval
        runs.csv                one row per run
        report.html

The same command continues a sweep: finished runs are kept, interrupted ones go on from their last checkpoint.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from amago.cli.options import OPTIONS, UsageProblem, option_name, split_assignment
from amago.cli.plots import mean_success
from amago.cli.report_page import write_report
from amago.cli.run_figures import Group, RunFigures, read_figures
from amago.cli.run_folders import RUN_FILE
from amago.cli.statistics import Estimate, bootstrap_interquartile_mean
from amago.cli.text import duration, number
from amago.envs.env_utils import available_cores
from amago.envs.registry import did_you_mean
from amago.experiment.checkpointer import write_json, write_text

_SECONDS_BETWEEN_READS = 1.0
_SETTINGS_FILE = "sweep.json"
_LOG_LINES = 15
_STYLES = {
    "waiting": "dim",
    "running": "cyan",
    "finished": "green",
    "failed": "bold red",
    "stopped": "yellow",
}


@dataclass(kw_only=True)
class Job:
    """A run of the sweep.

    Attributes:
        settings: swept settings by name, as text.
        seed: its seed.
        folder: its folder.
        log: file of what it prints.
        command: arguments of `amago-run`, without those that continue it.
        state: "waiting", "running", "finished", "failed" or "stopped".
        process: its process, once it is running.
        figures: what is known of it.
    """

    settings: Mapping[str, str]
    seed: int
    folder: Path
    log: Path
    command: list[str]
    state: str = "waiting"
    process: subprocess.Popen[bytes] | None = None
    figures: RunFigures = field(init=False)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Reads the run's files."""
        self.figures = read_figures(self.folder)

    def start(self, threads: int) -> None:
        """Starts or continues the run, in a session of its own: Ctrl-C reaches it as one SIGTERM of the sweep."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "amago.cli", *self.command, "--auto-resume"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": str(threads), **os.environ, "COLUMNS": "76"},
                start_new_session=True,
            )
        self.state = "running"

    def stop(self) -> None:
        """Asks the run to end, and waits for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
            self.state = "stopped"


def run_sweep(
    folder: Path,
    changes: Mapping[str, Any],
    *,
    seeds: int,
    assignments: Sequence[str],
    gin_files: Sequence[Path],
    jobs: int | None,
    trust: Sequence[str],
    console: Console,
) -> bool:
    """Runs a sweep, writes its tables and its report, and prints the results.

    Args:
        folder: the sweep's folder.
        changes: settings of the recipe that all runs have in common; "seed" is the first seed.
        seeds: number of seeds.
        assignments: "NAME=V1,V2,…": gin settings, or settings of the recipe by name.
        gin_files: gin files for all runs.
        jobs: runs at the same time; None for one per two cores.
        trust: packages whose code the runs' folders may name.

    Returns:
        False if a run failed.

    Raises:
        UsageProblem: a setting cannot be used, or the folder holds a sweep with other options.
    """
    sweep = plan_sweep(folder, changes, seeds=seeds, assignments=assignments, gin_files=gin_files)
    cores = available_cores()
    count = min(len(sweep), jobs or max(1, cores // 2))
    console.print(f"{len(sweep)} runs, {count} at a time, in {folder}", highlight=False, soft_wrap=True)
    for job in sweep:
        job.command += [word for package in trust for word in ("--trust", package)]
    with _stopped_by_signals():
        _run_all(sweep, count, max(1, cores // count), console)
    runs = [job.figures for job in sweep if job.figures.evaluation.returns or job.figures.summary]
    if runs:
        groups = _configurations(sweep)
        write_results(folder, groups, sweep)
        write_report([run.folder for run in runs], folder / "report.html")
        console.print(results_table(groups))
        for name in ("results.csv", "results.md", "runs.csv", "report.html"):
            console.print(f"  {folder / name}", highlight=False, soft_wrap=True)
    failed = [job for job in sweep if job.state == "failed"]
    for job in failed:
        console.print(
            f"\n[bold red]{escape(job.folder.name)} failed[/]: the end of {job.log}", soft_wrap=True
        )
        lines = job.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        console.print("\n".join(f"  {line}" for line in lines), markup=False, highlight=False)
    return not failed


def plan_sweep(
    folder: Path,
    changes: Mapping[str, Any],
    *,
    seeds: int,
    assignments: Sequence[str],
    gin_files: Sequence[Path],
) -> list[Job]:
    """The runs of a sweep, seed by seed, and sweep.json; arguments as `run_sweep`."""
    values = [_values(text) for text in assignments]
    common = {name: value for name, value in changes.items() if name != "seed"}
    for name, _ in values:
        if name in common or [other for other, _ in values].count(name) > 1:
            raise UsageProblem(f"{name!r} is given twice.", "--set")
    # A longer run continues a shorter one; with any other change the sweep would mix two experiments.
    recorded = {name: value for name, value in common.items() if name != "epochs"}
    recorded["gin"] = [str(path) for path in gin_files]
    _check_recorded(folder, json.loads(json.dumps(recorded)))
    options = [word for name, value in common.items() if name != "env" for word in _as_option(name, value)]
    options += [word for path in gin_files for word in ("--gin", str(path))]
    jobs = []
    first = int(changes.get("seed", 0))
    for seed in range(first, first + seeds):
        for combination in itertools.product(*(choices for _, choices in values)):
            settings = dict(zip((name for name, _ in values), combination, strict=True))
            name = re.sub(r"[^\w.=+-]", "_", ",".join(f"{key}={value}" for key, value in settings.items()))
            name = f"{name}-seed{seed}" if name else f"seed{seed}"
            words = [word for key, value in settings.items() for word in _as_option(key, value)]
            env = [str(common["env"])] if "env" in common else []
            command = ["train", *env, "--run-dir", str(folder), "--run-name", name, "--seed", str(seed)]
            job = Job(
                settings=settings,
                seed=seed,
                folder=folder / name,
                log=folder / "logs" / f"{name}.log",
                command=[*command, *options, *words],
            )
            if job.figures.summary.get("status", "finished") == "finished" and _is_long_enough(job, common):
                job.state = "finished"
            jobs.append(job)
    return jobs


def _is_long_enough(job: Job, common: Mapping[str, Any]) -> bool:
    """Whether a run has a summary and as many epochs as are asked for; a run ends with a checkpoint."""
    done = max((checkpoint.epoch + 1 for checkpoint in job.figures.checkpoints), default=0)
    return bool(job.figures.summary) and done >= int(common.get("epochs", 0))


def _check_recorded(folder: Path, options: Mapping[str, Any]) -> None:
    """Compares the options with those in sweep.json, or writes that file."""
    if (folder / RUN_FILE).exists():
        raise UsageProblem(f"{folder} is a run, not a sweep: choose another --name.", "--name")
    path = folder / _SETTINGS_FILE
    if not path.is_file():
        write_json(options, path)
        return
    recorded = json.loads(path.read_text())
    other = [name for name in {**recorded, **options} if recorded.get(name) != options.get(name)]
    if other:
        name = other[0]
        raise UsageProblem(
            f"{folder} holds a sweep with {name}={recorded.get(name)!r}, not {options.get(name)!r}: "
            "choose another --name, or delete the folder.",
            "--gin" if name == "gin" else option_name(name),
        )


def _values(text: str) -> tuple[str, list[str]]:
    """ "NAME=V1,V2" as the name and its values; commas inside brackets and quotes do not separate."""
    name, value = split_assignment(text, "--set")
    if "." not in name:
        name = name.replace("-", "_")
        if name not in OPTIONS or name in ("env_args", "seed"):
            hint = did_you_mean(name, OPTIONS)
            raise UsageProblem(f"{name!r} is neither a gin setting nor an option of train.{hint}", "--set")
    values = [v.strip() for v in re.findall(r"(?:\([^)]*\)|\[[^]]*\]|\"[^\"]*\"|'[^']*'|[^,])+", value)]
    if len(set(values)) < len(values):
        raise UsageProblem(f"{text!r} has a value twice.", "--set")
    return name, values


def _as_option(name: str, value: Any) -> list[str]:
    """The words on the command line of train that set a setting of the recipe, or a gin setting."""
    if "." in name:
        return ["--set", f"{name}={value}"]
    if isinstance(value, Mapping):
        return [word for key, item in value.items() for word in (option_name(name), f"{key}={item!r}")]
    return [option_name(name), str(value)]


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit, so that the sweep stops its runs; nohup still holds."""

    def leave(kind: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + kind)

    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    for kind, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(kind, leave)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _run_all(sweep: Sequence[Job], count: int, threads: int, console: Console) -> None:
    """Runs what is not finished, `count` at a time, and shows it."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    waiting = [job for job in sweep if job.state == "waiting"]
    kept = len(sweep) - len(waiting)
    if kept:
        console.print(f"{kept} of them finished before", highlight=False)
    running: list[Job] = []
    try:
        if live is not None:
            live.start()
        while waiting or running:
            while waiting and len(running) < count:
                job = waiting.pop(0)
                job.start(threads)
                running.append(job)
                _tell(console, live, job)
            for job in list(running):
                assert job.process is not None
                status = job.process.poll()
                job.read()
                if status is not None:
                    job.state = "finished" if status == 0 else "failed"
                    running.remove(job)
                    _tell(console, live, job)
            if live is not None:
                live.update(progress_table(sweep), refresh=True)
            if running:
                _wait_for_any(running, _SECONDS_BETWEEN_READS)
    except BaseException:
        # All at once, then wait: each one writes a checkpoint.
        for job in running:
            if job.process is not None and job.process.poll() is None:
                job.process.terminate()
        for job in running:
            job.stop()
        console.print("Stopped. The same command continues the sweep.")
        raise
    finally:
        if live is not None:
            live.stop()


def _wait_for_any(running: Sequence[Job], seconds: float) -> None:
    """Waits until a run has ended, at most for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and all(job.process and job.process.poll() is None for job in running):
        time.sleep(0.05)


def _tell(console: Console, live: Live | None, job: Job) -> None:
    """A line about a run that was started or has ended, where there is no live table."""
    if live is None:
        value = job.figures.final_return if job.state == "finished" else None
        result = "" if value is None else f", return {number(value)}"
        console.print(
            f"{job.folder.name}: {job.state}{result}", markup=False, highlight=False, soft_wrap=True
        )


def progress_table(sweep: Sequence[Job]) -> Table:
    """The runs with their state; those that wait only as a number."""
    table = Table("Run", "State", box=None, pad_edge=False, header_style="bold")
    for title in ("Epoch", "Return", "Time", "Left"):
        table.add_column(title, justify="right")
    for job in sweep:
        run = job.figures
        if job.state != "waiting":
            left = run.seconds_left if job.state == "running" else None
            table.add_row(
                escape(job.folder.name),
                f"[{_STYLES[job.state]}]{job.state}[/]",
                f"{run.epochs_done} of {run.epochs}" if run.epochs else "",
                "" if run.final_return is None else number(run.final_return),
                duration(run.wall_seconds),
                "" if left is None else duration(left),
            )
    if waiting := sum(job.state == "waiting" for job in sweep):
        table.add_row(f"[dim]{waiting} more wait[/]")
    return table


def _configurations(sweep: Sequence[Job]) -> list[tuple[Mapping[str, str], Group]]:
    """The swept settings of every configuration with its runs that have a result."""
    found: dict[tuple[str, ...], list[Job]] = {}
    for job in sweep:
        found.setdefault(tuple(job.settings.values()), []).append(job)
    configurations = []
    for jobs in found.values():
        runs = [job.figures for job in jobs if job.state == "finished"]
        label = (
            ", ".join(f"{name}={value}" for name, value in jobs[0].settings.items())
            or jobs[0].folder.parent.name
        )
        group = Group(label=label, env=jobs[0].figures.env, settings=jobs[0].figures.settings, runs=runs)
        configurations.append((jobs[0].settings, group))
    return configurations


def _estimate(group: Group) -> Estimate | None:
    returns = [run.final_return for run in group.runs if run.final_return is not None]
    return bootstrap_interquartile_mean([returns]) if returns else None


def _interval(estimate: Estimate) -> str:
    """The interval as text; a single seed has none."""
    return "" if math.isnan(estimate.low) else f"{number(estimate.low)} to {number(estimate.high)}"


def results_table(configurations: Sequence[tuple[Mapping[str, str], Group]]) -> Table:
    """One row per configuration: interquartile mean of the returns, with its interval."""
    table = Table("Configuration", box=None, pad_edge=False, header_style="bold")
    for title in ("Seeds", "Return (IQM)", "95 % interval", "Last attempt"):
        table.add_column(title, justify="right")
    for _, group in configurations:
        estimate, success = _estimate(group), mean_success(group)
        interval = "" if estimate is None else _interval(estimate)
        table.add_row(
            escape(group.label),
            str(len(group.runs)),
            "" if estimate is None else number(estimate.value),
            interval,
            f"{success[-1]:.1%}" if success else "",
        )
    return table


def write_results(
    folder: Path, configurations: Sequence[tuple[Mapping[str, str], Group]], sweep: Sequence[Job]
) -> None:
    """Writes results.csv and results.md, a row per configuration, and runs.csv, a row per run."""
    names = list(sweep[0].settings)
    rows: list[dict[str, Any]] = []
    for settings, group in configurations:
        returns = [run.final_return for run in group.runs if run.final_return is not None]
        estimate, success = _estimate(group), mean_success(group)
        rows.append(
            {
                **settings,
                "seeds": len(returns),
                "return_iqm": None if estimate is None else estimate.value,
                "return_low": estimate.low if estimate and len(returns) > 1 else None,
                "return_high": estimate.high if estimate and len(returns) > 1 else None,
                "return_mean": sum(returns) / len(returns) if returns else None,
                **{f"success_{attempt}": rate for attempt, rate in enumerate(success, start=1)},
            }
        )
    write_text(_as_csv(rows), folder / "results.csv")
    titles = [*names, "seeds", "return (IQM)", "95 % interval", "mean return", "success by attempt"]
    lines = [titles, ["---"] * len(names) + ["---:"] * (len(titles) - len(names))]
    for (settings, group), row in zip(configurations, rows, strict=True):
        numbers = ["", "", ""]
        if (estimate := _estimate(group)) is not None:
            numbers = [number(estimate.value), _interval(estimate), number(row["return_mean"])]
        by_attempt = ", ".join(f"{rate:.2f}" for rate in mean_success(group))
        lines.append([*settings.values(), str(row["seeds"]), *numbers, by_attempt])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    note = "IQM: interquartile mean over seeds, with its 95 % stratified bootstrap interval."
    write_text(f"{table}\n\n{note}\n", folder / "results.md")
    runs = [
        {
            **job.settings,
            "seed": job.seed,
            "state": job.state,
            "return": job.figures.final_return,
            **{f"success_{attempt}": rate for attempt, rate in enumerate(job.figures.success, start=1)},
            "env_steps": job.figures.env_steps,
            "updates": job.figures.gradient_steps,
            "seconds": round(job.figures.wall_seconds, 2),
            "run": job.folder.name,
        }
        for job in sweep
    ]
    write_text(_as_csv(runs), folder / "runs.csv")


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
