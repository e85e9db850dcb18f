"""`amago-run convert`: converts trajectory files between formats, and from and to plain arrays."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    UNFINISHED_SUFFIX,
    CorruptTrajectoryError,
    FrozenTraj,
    env_name_of,
    load_trajectory,
    save_trajectory,
    trajectory_filename,
)
from amago.loading.offline import episodes_from_file, save_arrays
from amago.loading.offline.array_files import (
    ARRAY_SUFFIXES,
    HDF5_SUFFIXES,
    action_shape,
    is_file_of_arrays,
)

ARRAYS = "arrays"
FORMATS = (*SAVE_FORMATS, ARRAYS)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Arguments of a conversion.

    Attributes:
        source: a trajectory file, a folder or buffer of them, a file of arrays, or the folder of a Minari dataset.
        target: the file or folder to create.
        to: one of FORMATS; None chooses by the suffix of `target`.
        actions: action space of arrays: "discrete:N", "discrete:N1,N2", "box:LOW:HIGH" or "binary"; None if
            actions are one-hot or in [-1, 1] already.
        env_name: environment's name for files made from arrays; None uses the name of the source.
    """

    source: Path
    target: Path
    to: str | None = None
    actions: str | None = None
    env_name: str | None = None


@dataclass(slots=True)
class _Done:
    """Number of converted trajectories and transitions, and the unreadable files: (path, reason)."""

    trajectories: int = 0
    transitions: int = 0
    bad: list[tuple[Path, str]] = field(default_factory=list)


def convert(request: Conversion, console: Console) -> int:
    """Converts, prints a summary, and returns the number of files that could not be read.

    Raises:
        UsageProblem: if there is nothing to convert, the target exists, or the formats are incompatible.
            Nothing is written then.
    """
    source, target = request.source, request.target
    try:
        exists, from_arrays = target.exists(), is_file_of_arrays(source)
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise UsageProblem(f"{error.filename}: {error.strerror}.", "SRC DST") from error
    if exists:
        raise UsageProblem(f"{target} exists and is not overwritten: give another name.", "DST")
    if request.actions is not None and not from_arrays:
        raise UsageProblem("--actions applies to arrays; trajectories are converted already.", "--actions")
    single = source.is_file() and not from_arrays
    to = request.to or _format_of(target, single)
    _check_target(target, to, single)
    done = _Done()
    named = _episodes_of_arrays(request) if from_arrays else _trajectories(source, done, console)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if to == ARRAYS:
            done.trajectories, done.transitions = save_arrays(target, (t for _, _, t in named))
        elif single:
            _write_files(named, target.parent, to, done, target.name)
        else:
            with _whole_folder(target) as folder:
                _write_files(named, folder, to, done)
    except UsageProblem:
        raise
    except (ValueError, OSError, MemoryError) as error:
        _print_bad(console, done)
        raise UsageProblem(f"{source} cannot be converted: {error}", "SRC") from error
    except ImportError as error:
        raise UsageProblem(str(error), "SRC") from error
    _print_bad(console, done)
    size = sum(path.stat().st_size for path in ([target] if target.is_file() else target.iterdir()))
    console.print(
        f"[bold]{escape(str(target))}[/]: {done.trajectories:,} trajectories of {done.transitions:,} transitions "
        f"as {to}, {size / 1e6:,.1f} MB",
        highlight=False,
        soft_wrap=True,
    )
    return len(done.bad)


def _format_of(target: Path, single: bool) -> str:
    if target.suffix in HDF5_SUFFIXES:
        return ARRAYS
    if target.suffix == ".npz":
        return "npz" if single else ARRAYS
    return "traj"


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


_Named = Iterator[tuple[str, str, FrozenTraj]]  # file name, environment's name, trajectory


def _trajectories(source: Path, done: _Done, console: Console) -> _Named:
    found = find_files(source, only_sampled=True)
    files = [path for each in found.values() for path in each.files]
    names = [path.stem for path in files]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UsageProblem(f"{count} files have the name {name}: convert their folders one by one.", "SRC")
    for path in _with_progress(files, console):
        try:
            trajectory = load_trajectory(path)
            if not len(trajectory):
                raise CorruptTrajectoryError("it holds no transition")
        except (CorruptTrajectoryError, OSError) as error:
            done.bad.append((path, str(error)))
            continue
        yield path.name, printable(env_name_of(path)), trajectory


def _episodes_of_arrays(request: Conversion) -> _Named:
    shape = action_shape(request.source)
    space = None if request.actions is None else parse_space(request.actions, shape)
    name = request.env_name or request.source.stem
    written = request.source.stat().st_mtime
    for i, episode in enumerate(episodes_from_file(request.source, space)):
        yield trajectory_filename(name, 0, i, written), name, episode


def _write_files(named: _Named, folder: Path, to: str, done: _Done, file_name: str | None = None) -> None:
    for name, env_name, trajectory in named:
        save_trajectory(trajectory, folder / (file_name or name), to, env_name)
        done.trajectories += 1
        done.transitions += len(trajectory)
    if not done.trajectories:
        raise ValueError("no trajectory could be read")


@contextmanager
def _whole_folder(target: Path) -> Iterator[Path]:
    """Yields a sibling folder that is renamed to `target` at the end, and removed on failure."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}{UNFINISHED_SUFFIX}")
    unfinished.mkdir()
    try:
        yield unfinished
        os.rename(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _with_progress(files: list[Path], console: Console) -> Iterable[Path]:
    return track(files, "Converting", console=console, transient=True, disable=not console.is_terminal)


def _print_bad(console: Console, done: _Done) -> None:
    for path, reason in done.bad:
        console.print(
            f"[yellow]skipped[/] {escape(printable(f'{path.name}: {reason}'))}",
            highlight=False,
            soft_wrap=True,
        )


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
