"""`amago-run convert`: converts trajectory files between formats, and from and to plain arrays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from amago.cli.inspect_buffer import printable
from amago.cli.options import UsageProblem
from amago.cli.trajectory_files import find_files
from amago.hindsight import (
    SAVE_FORMATS,
    CorruptTrajectoryError,
    FrozenTraj,
    env_name_of,
    load_trajectory,
    save_trajectory,
    trajectory_filename,
)
from amago.loading.offline import episodes_from_file, save_arrays
from amago.loading.offline.array_files import ARRAY_SUFFIXES, HDF5_SUFFIXES, action_shape, is_file_of_arrays

ARRAYS = "arrays"
FORMATS = (*SAVE_FORMATS, ARRAYS)
_SUPPORTED = (
    f"trajectories are files {', '.join(sorted(set(SAVE_FORMATS.values())))} or folders of them, arrays "
    f"{', '.join(ARRAY_SUFFIXES)}."
)
_Named = Iterator[tuple[str, str, FrozenTraj]]  # file name, environment's name, trajectory


def convert(
    source: Path,
    target: Path,
    console: Console,
    *,
    to: str | None = None,
    actions: str | None = None,
    env_name: str | None = None,
) -> int:
    """Converts, prints a summary, and returns the number of files that could not be read.

    Args:
        source: a trajectory file, a folder or buffer of them, a file of arrays, or the folder of a Minari dataset.
        target: the file or folder to create.
        console: console for the progress and the summary.
        to: one of FORMATS; None chooses by the suffix of `target`.
        actions: action space of arrays: "discrete:N", "discrete:N1,N2", "box:LOW:HIGH" or "binary"; None if
            actions are one-hot or in [-1, 1] already.
        env_name: environment's name for files made from arrays; None uses the name of the source.

    Raises:
        UsageProblem: if there is nothing to convert, the target exists, or the formats are incompatible.
            Nothing is written then.
    """
    bad: list[str] = []
    try:
        if target.exists():
            raise UsageProblem(f"{target} exists and is not overwritten: give another name.", "DST")
        _check_source(source)
        from_arrays = is_file_of_arrays(source)
        if actions is not None and not from_arrays:
            raise UsageProblem(
                "--actions applies to arrays; trajectories are converted already.", "--actions"
            )
        single = source.is_file() and not from_arrays
        to = to or _format_of(target, single)
        _check_target(target, to, single)
        if from_arrays:
            named = _episodes_of_arrays(source, actions, env_name or source.stem)
        else:
            named = _trajectories(source, bad, console)
        target.parent.mkdir(parents=True, exist_ok=True)
        if to == ARRAYS:
            trajectories, transitions = save_arrays(target, (traj for _, _, traj in named))
        else:
            trajectories, transitions = _write_files(named, target, to, single)
    except (ValueError, OSError, MemoryError, ImportError) as error:
        reason = "; ".join([str(error), *bad])
        raise UsageProblem(f"{source} cannot be converted: {reason}", "SRC") from error
    for line in bad:
        console.print(f"[yellow]skipped[/] {escape(line)}", highlight=False, soft_wrap=True)
    size = sum(path.stat().st_size for path in ([target] if target.is_file() else target.iterdir()))
    console.print(
        f"[bold]{escape(str(target))}[/]: {trajectories:,} trajectories of {transitions:,} transitions "
        f"as {to}, {size / 1e6:,.1f} MB",
        highlight=False,
        soft_wrap=True,
    )
    return len(bad)


def _format_of(target: Path, single: bool) -> str:
    if target.suffix in HDF5_SUFFIXES:
        return ARRAYS
    if target.suffix == ".npz":
        return "npz" if single else ARRAYS
    if target.suffix[1:].isalpha() and target.suffix not in SAVE_FORMATS.values():
        raise UsageProblem(f"{target.suffix} is not a format that is written: {_SUPPORTED}", "DST")
    return "traj"


def _check_source(source: Path) -> None:
    if source.is_file() and source.suffix not in (*SAVE_FORMATS.values(), *ARRAY_SUFFIXES):
        raise UsageProblem(f"{source.suffix or 'a file'} is not a format that is read: {_SUPPORTED}", "SRC")


def _check_target(target: Path, to: str, single: bool) -> None:
    if to not in FORMATS:
        raise UsageProblem(f"{to!r} is not a format: choose one of {', '.join(FORMATS)}.", "--to")
    if to == ARRAYS:
        if target.suffix not in ARRAY_SUFFIXES:
            raise UsageProblem(
                f"arrays are written to one file with the suffix {', '.join(ARRAY_SUFFIXES)}.", "DST"
            )
    elif single:
        if target.suffix != SAVE_FORMATS[to]:
            raise UsageProblem(f"a trajectory as {to} is a file with the suffix {SAVE_FORMATS[to]}.", "DST")
    elif target.suffix in (*SAVE_FORMATS.values(), *HDF5_SUFFIXES):
        raise UsageProblem(f"several trajectories as {to} need a folder, not a file {target.suffix}.", "DST")


def _trajectories(source: Path, bad: list[str], console: Console) -> _Named:
    """The trajectories of all files; descriptions of unreadable files are added to `bad`."""
    files = [path for found in find_files(source, only_sampled=True).values() for path in found.files]
    if len({path.stem for path in files}) < len(files):
        raise UsageProblem("several files have the same name: convert their folders one by one.", "SRC")
    for path in track(files, "Converting", console=console, transient=True, disable=not console.is_terminal):
        try:
            trajectory = load_trajectory(path)
            if not len(trajectory):
                raise CorruptTrajectoryError("it holds no transition")
        except (CorruptTrajectoryError, OSError) as error:
            bad.append(printable(f"{path.name}: {error}"))
            continue
        yield path.name, printable(env_name_of(path)), trajectory


def _episodes_of_arrays(source: Path, actions: str | None, env_name: str) -> _Named:
    space = None if actions is None else parse_space(actions, action_shape(source))
    written = source.stat().st_mtime
    for number, episode in enumerate(episodes_from_file(source, space)):
        yield trajectory_filename(env_name, 0, number, written), env_name, episode


def _write_files(named: _Named, target: Path, to: str, single: bool) -> tuple[int, int]:
    """Writes a folder of files, or a single file, which appears complete or not at all."""
    trajectories = transitions = 0
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as temporary:
        folder = Path(temporary) / "files"
        folder.mkdir()
        for name, env_name, trajectory in named:
            path = save_trajectory(trajectory, folder / name, to, env_name)
            trajectories += 1
            transitions += len(trajectory)
        if not trajectories:
            raise ValueError("no trajectory could be read")
        os.rename(path if single else folder, target)
    return trajectories, transitions


def parse_space(text: str, shape: tuple[int, ...]) -> gym.Space[Any]:
    """Parses an action space: "discrete:4", "discrete:3,2", "box:-2:2" or "binary".

    Args:
        text: value of `--actions`.
        shape: shape of one action in the file.

    Raises:
        UsageProblem: if the text has another form.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "discrete":
            sizes = [int(size) for size in rest.split(",")]
            return gym.spaces.Discrete(sizes[0]) if len(sizes) == 1 else gym.spaces.MultiDiscrete(sizes)
        if kind == "box":
            low, high = map(float, rest.split(":"))
            return gym.spaces.Box(low, high, shape, np.float32)
        if text == "binary":
            return gym.spaces.MultiBinary(shape)
    except (ValueError, AssertionError, OverflowError):
        pass
    raise UsageProblem(
        f"{text!r} is not an action space: discrete:N, discrete:N1,N2, box:LOW:HIGH or binary.", "--actions"
    )
