"""`amago-run inspect`: statistics of the trajectory files in a buffer."""

from __future__ import annotations

import json
import os
from collections import Counter
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


@dataclass
class Group:
    """One environment's trajectories in one folder.

    Attributes:
        lengths, returns: number of transitions and sum of rewards of each file, which may hold an episode segment.
        terminated: number of files whose last transition terminated the episode.
        nbytes: size of the files.
        formats: number of files by suffix.
        arrays: dtype and row shape of every array of the first file, by name.
        other_arrays: files whose arrays differ from these, so that they do not fit into one batch.
    """

    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    terminated: int = 0
    nbytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    arrays: dict[str, str] = field(default_factory=dict)
    other_arrays: list[str] = field(default_factory=list)

    def add(self, path: Path, traj: FrozenTraj) -> None:
        """Adds a file."""
        self.nbytes += path.stat().st_size
        self.lengths.append(len(traj))
        self.returns.append(float(traj.rews.sum(dtype=np.float64)))
        self.terminated += int(traj.dones[-1, 0])
        self.formats[path.suffix] += 1
        arrays = {printable(n): f"{array.dtype}{array.shape[1:]}" for n, array in traj.to_dict().items()}
        self.arrays = self.arrays or arrays
        if arrays != self.arrays:
            self.other_arrays.append(printable(path.name))

    def summary(self) -> dict[str, Any]:
        """Totals and statistics, of JSON types; 1 MB is 10^6 bytes."""
        return {
            "files": len(self.lengths),
            "transitions": sum(self.lengths),
            "megabytes": self.nbytes / 1e6,
            "length": _statistics(self.lengths),
            "return": _statistics(self.returns),
            "terminated": self.terminated / len(self.lengths),
            "formats": dict(self.formats),
            "arrays": self.arrays,
            "other_arrays": self.other_arrays,
        }


@dataclass
class FolderReport:
    """Contents of one folder.

    Attributes:
        environments: summary of the trajectories of each environment, see `Group`.
        bad: reason by name, of files that cannot be read.
        unfinished: files that are being written, or were when their process was killed.
        foreign: files with other suffixes.
    """

    environments: dict[str, dict[str, Any]]
    bad: dict[str, str]
    unfinished: list[str]
    foreign: list[str]


def printable(name: str) -> str:
    """`name` with control characters and undecodable bytes escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


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
    groups: dict[str, Group] = {}
    bad: dict[str, str] = {}
    files = track(found.files, "Reading", console=console, transient=True, disable=not console.is_terminal)
    for path in files:
        try:
            traj = load_trajectory(path)
            if not len(traj):
                raise CorruptTrajectoryError("it holds no transition")
            groups.setdefault(printable(env_name_of(path)), Group()).add(path, traj)
        except (OSError, CorruptTrajectoryError) as error:
            if os.path.lexists(path):  # otherwise it was deleted after the folder was listed
                bad[printable(path.name)] = printable(str(error).removeprefix(f"{path} "))
    return FolderReport(
        environments={name: group.summary() for name, group in sorted(groups.items()) if group.lengths},
        bad=bad,
        unfinished=[printable(path.name) for path in found.unfinished],
        foreign=[printable(path.name) for path in found.foreign],
    )


def _statistics(values: list[int] | list[float]) -> dict[str, float]:
    return {
        "mean": float(np.mean(values)) if values else 0.0,
        "min": float(min(values, default=0)),
        "max": float(max(values, default=0)),
    }


def _show(path: Path, reports: dict[str, FolderReport], console: Console) -> None:
    rows = [
        (folder, name, group)
        for folder, report in reports.items()
        for name, group in report.environments.items()
    ]
    files, transitions, megabytes = (
        sum(group[total] for _, _, group in rows) for total in ("files", "transitions", "megabytes")
    )
    console.print(
        f"[bold]{escape(printable(str(path)))}[/]: {files:,} trajectory files, {transitions:,} transitions, "
        f"{megabytes:,.1f} MB",
        highlight=False,
        soft_wrap=True,
    )
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("Folder", "Environment"):
            table.add_column(column)
        for column in ("Files", "Steps", "MB", "Length", "Return", "Terminated"):
            table.add_column(column, justify="right", no_wrap=True)
        for folder, name, group in rows:
            table.add_row(
                escape(folder or "."),
                escape(name),
                f"{group['files']:,}",
                f"{group['transitions']:,}",
                f"{group['megabytes']:,.1f}",
                _mean_and_range(group["length"]),
                _mean_and_range(group["return"]),
                f"{group['terminated']:.0%}",
            )
        console.print(table, highlight=False)
        arrays = {array: kind for _, _, group in rows for array, kind in group["arrays"].items()}
        described = [f"{array.removeprefix('_OBS_KEY_')} {kind}" for array, kind in arrays.items()]
        formats = sum((Counter(group["formats"]) for _, _, group in rows), Counter())
        console.print(f"Formats  {', '.join(f'{count:,} {suffix}' for suffix, count in formats.items())}")
        console.print(f"Arrays   {', '.join(described)}", highlight=False, markup=False)
    for folder, name, group in rows:
        _show_names(f"files of {name} with other arrays", folder, group["other_arrays"], console)
    for folder, report in reports.items():
        _show_names("unfinished files", folder, report.unfinished, console)
        _show_names("other names", folder, report.foreign, console)
        bad = [f"{name}: {reason}" for name, reason in report.bad.items()]
        _show_names("bad files", folder, bad, console, shown=_BAD_SHOWN)


def _mean_and_range(statistics: dict[str, float]) -> str:
    mean, low, high = statistics.values()
    return f"{mean:,.3g}" if low == high else f"{mean:,.3g} ({low:,.3g} to {high:,.3g})"


def _show_names(kind: str, folder: str, names: list[str], console: Console, shown: int = 1) -> None:
    """Prints the number of files of a kind, and the first few."""
    if names:
        where = f" in {folder}" if folder else ""
        lines = [f"{len(names):,} {kind}{where}", *(f"  {name}" for name in names[:shown])]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
