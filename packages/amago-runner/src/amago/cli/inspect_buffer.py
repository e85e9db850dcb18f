"""`amago-run inspect`: statistics of the trajectory files in a buffer."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from amago.cli.trajectory_files import Found, find_files
from amago.hindsight import CorruptTrajectoryError, FrozenTraj, env_name_of, load_trajectory

_BAD_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Mean, minimum and maximum over trajectories."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Statistics | None:
        """Statistics of the finite values; None if there are none."""
        array = np.array(list(values), np.float64)
        array = array[np.isfinite(array)]
        if not len(array):
            return None
        return cls(mean=float(array.mean()), min=float(array.min()), max=float(array.max()))

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.mean:,.3g}"
        return f"{self.mean:,.3g} ({self.min:,.3g} to {self.max:,.3g})"


@dataclass(kw_only=True)
class Group:
    """Statistics of one environment's trajectories in one folder.

    Attributes:
        files, transitions, megabytes: totals; 1 MB is 10^6 bytes.
        length, total_reward: per file, which may hold an episode segment; None without a finite value.
        not_finite: number of files with non-finite rewards, which `total_reward` leaves out.
        terminated: fraction of files whose last transition terminated the episode.
        whole_episodes: fraction of files that hold an episode from its first step to its termination.
        formats: number of files by suffix.
        arrays: (dtype, row shape) of every array of the first file, by name.
        unlike: files with other arrays, which do not fit into one batch with the first.
    """

    files: int
    transitions: int
    megabytes: float
    length: Statistics | None
    total_reward: Statistics | None
    not_finite: int
    terminated: float
    whole_episodes: float
    formats: dict[str, int]
    arrays: dict[str, tuple[str, list[int]]]
    unlike: list[str]


@dataclass(kw_only=True)
class FolderReport:
    """Statistics of one folder.

    Attributes:
        environments: groups by name of the environment.
        bad: reason by name, of files that cannot be read.
        unfinished: files that are being written, or were when their process was killed.
        foreign: files with other suffixes.
    """

    environments: dict[str, Group] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Collected:
    lengths: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    nbytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    arrays: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)

    def add(self, path: Path, trajectory: FrozenTraj) -> None:
        """Adds a file; raises FileNotFoundError without adding it if it was deleted."""
        nbytes = path.stat().st_size
        terminated = bool(trajectory.dones[-1, 0])
        self.lengths.append(len(trajectory))
        self.rewards.append(float(trajectory.rews.sum(dtype=np.float64)))
        self.terminated.append(terminated)
        self.whole.append(terminated and int(trajectory.time_idxs[0, 0]) == 0)
        self.nbytes += nbytes
        self.formats[path.suffix] += 1
        named = trajectory.to_dict().items()
        arrays = {printable(name): (str(array.dtype), list(array.shape[1:])) for name, array in named}
        if not self.arrays:
            self.arrays = arrays
        elif arrays != self.arrays:
            self.unlike.append(printable(path.name))

    def group(self) -> Group:
        """Statistics of the added files."""
        return Group(
            files=len(self.lengths),
            transitions=sum(self.lengths),
            megabytes=self.nbytes / 1e6,
            length=Statistics.of(self.lengths),
            total_reward=Statistics.of(self.rewards),
            not_finite=int((~np.isfinite(self.rewards)).sum()),
            terminated=float(np.mean(self.terminated)),
            whole_episodes=float(np.mean(self.whole)),
            formats=dict(self.formats),
            arrays=self.arrays,
            unlike=self.unlike,
        )


def printable(name: str) -> str:
    """A file name with control characters and undecodable bytes escaped."""
    try:
        text = os.fsencode(name).decode("utf-8", errors="backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate, from the JSON header of a .traj
        text = name
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def inspect_buffer(path: Path, console: Console, *, as_json: bool) -> int:
    """Prints statistics of a buffer, a folder or a file; returns the number of files that cannot be read.

    Raises:
        UsageProblem: if the path does not exist.
    """
    reports = {name: report_of(found, console) for name, found in find_files(path).items()}
    if as_json:
        folders = {name or printable(path.name): asdict(report) for name, report in reports.items()}
        console.print_json(json.dumps({"path": printable(str(path)), "folders": folders}))
    else:
        _show(path, reports, console)
    return sum(len(report.bad) for report in reports.values())


def report_of(found: Found, console: Console) -> FolderReport:
    """Reads every file of a folder."""
    report = FolderReport(
        unfinished=[printable(path.name) for path in found.unfinished],
        foreign=[printable(path.name) for path in found.foreign],
    )
    seen: dict[str, _Collected] = {}
    files = track(found.files, "Reading", console=console, transient=True, disable=not console.is_terminal)
    for path in files:
        try:
            trajectory = load_trajectory(path)
            if not len(trajectory):
                raise CorruptTrajectoryError("it holds no transition")
            seen.setdefault(printable(env_name_of(path)), _Collected()).add(path, trajectory)
        except (OSError, CorruptTrajectoryError) as error:
            if os.path.lexists(path):  # otherwise it was deleted after the folder was listed
                report.bad[printable(path.name)] = printable(str(error).removeprefix(f"{path} "))
    report.environments = {name: each.group() for name, each in sorted(seen.items())}
    return report


def _show(path: Path, reports: Mapping[str, FolderReport], console: Console) -> None:
    groups = [group for report in reports.values() for group in report.environments.values()]
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["Environment", "Files", "Steps", "MB", "Length", "Return", "Ended"]
    if list(reports) != [""]:
        columns.insert(0, "Folder")
    for name in columns:
        if name in ("Folder", "Environment"):
            table.add_column(name)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for folder, report in reports.items():
        for env_name, group in report.environments.items():
            row = [env_name, f"{group.files:,}", f"{group.transitions:,}", f"{group.megabytes:,.1f}"]
            row += [str(group.length or "-"), str(group.total_reward or "-"), f"{group.terminated:.0%}"]
            table.add_row(*map(escape, ([folder] if folder else []) + row))
    console.print(
        f"[bold]{escape(printable(str(path)))}[/]: {sum(group.files for group in groups):,} trajectory files, "
        f"{sum(group.transitions for group in groups):,} transitions, "
        f"{sum(group.megabytes for group in groups):,.1f} MB",
        highlight=False,
        soft_wrap=True,
    )
    if groups:
        console.print(table, highlight=False)
        _show_arrays(groups, console)
    for folder, report in reports.items():
        _show_others(folder, report, console)


def _show_arrays(groups: list[Group], console: Console) -> None:
    formats: Counter[str] = sum((Counter(group.formats) for group in groups), Counter())
    arrays: dict[str, Any] = {}
    for group in groups:
        arrays.update(group.arrays)
    described = [
        f"{name.removeprefix('_OBS_KEY_')} {dtype}{tuple(shape)}" for name, (dtype, shape) in arrays.items()
    ]
    console.print(f"Formats  {', '.join(f'{count:,} {suffix}' for suffix, count in formats.items())}")
    console.print(f"Arrays   {', '.join(described)}", highlight=False, markup=False)


def _show_others(folder: str, report: FolderReport, console: Console) -> None:
    where = f" in {folder}" if folder else ""
    for env_name, group in report.environments.items():
        if group.not_finite:
            message = f"{group.not_finite:,} files of {env_name}{where} have rewards that are not finite"
            console.print(message, highlight=False, markup=False)
        if group.unlike:
            message = (
                f"{len(group.unlike):,} files of {env_name}{where} have other arrays, e.g. {group.unlike[0]}"
            )
            console.print(message, highlight=False, markup=False, soft_wrap=True)
    if report.unfinished:
        console.print(f"{len(report.unfinished):,} unfinished files{where}", highlight=False)
    if report.foreign:
        message = f"{len(report.foreign):,} other names{where}, e.g. {report.foreign[0]}"
        console.print(message, highlight=False, markup=False)
    if report.bad:
        console.print(f"[red]{len(report.bad):,} bad files{where}[/]", highlight=False)
    for name, reason in list(report.bad.items())[:_BAD_SHOWN]:
        console.print(f"  {name}: {reason}", highlight=False, soft_wrap=True, markup=False)
