"""`amago-run convert`: trajectory files from one format into another, and from and to plain arrays."""

from __future__ import annotations

import os
import shutil
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
    CorruptTrajectoryError,
    FrozenTraj,
    TrajectoryTooLargeError,
    load_trajectory,
    save_trajectory,
)
from amago.hindsight.filenames import trajectory_filename
from amago.hindsight.storage import SAVE_FORMATS, env_name_of
from amago.loading.offline import episodes_from_file, save_arrays
from amago.loading.offline.sources import HDF5_SUFFIXES, SUFFIXES, actions_and_names, is_file_of_arrays

ARRAYS = "arrays"
FORMATS = (*SAVE_FORMATS, ARRAYS)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What the command line asks for.

    Attributes:
        source: a trajectory file, a folder or buffer of them, a file of arrays or a Minari dataset's folder.
        target: the file or folder to make.
        to: one of FORMATS; None goes by the ending of `target`.
        actions: of arrays: "discrete:N", "discrete:N1,N2", "box:LOW:HIGH" or "binary"; None if they are one-hot
            or in [-1, 1] already.
        env_name: in the names of the files that are made from arrays; None takes that of the source.
    """

    source: Path
    target: Path
    to: str | None = None
    actions: str | None = None
    env_name: str | None = None


@dataclass(slots=True)
class _Done:
    """Counts of what was converted, and what could not be read: (path, reason)."""

    trajectories: int = 0
    transitions: int = 0
    bad: list[tuple[Path, str]] = field(default_factory=list)


def convert(request: Conversion, console: Console) -> int:
    """Converts and says what it did; returns how many files could not be read.

    Raises:
        UsageProblem: if there is nothing to convert, the target exists, or the formats do not go together. Nothing
            was written then.
    """
    source, target = request.source, request.target
    try:
        exists, from_arrays = target.exists(), is_file_of_arrays(source)
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise UsageProblem(f"{error.filename}: {error.strerror}.", "SRC DST") from error
    if exists:
        raise UsageProblem(f"{target} exists, and nothing is overwritten: give another name.", "DST")
    if request.actions is not None and not from_arrays:
        raise UsageProblem("actions of trajectories are converted already; this is for arrays.", "--actions")
    single = source.is_file() and not from_arrays
    to = request.to or _format_of(target, single)
    _check_target(target, to, single)
    done = _Done()
    named = _episodes_of_arrays(request) if from_arrays else _trajectories(source, done, console)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if to == ARRAYS:
            done.trajectories, done.transitions = save_arrays(target, ((name, t) for _, name, t in named))
        elif single:
            _write_files(named, target.parent, to, done, target.name)
        else:
            with _whole_folder(target) as folder:
                _write_files(named, folder, to, done)
    except UsageProblem:
        raise
    except (ValueError, OSError, MemoryError) as error:
        _tell_bad(console, done)
        raise UsageProblem(f"{source} cannot be converted: {error}", "SRC") from error
    except ImportError as error:
        raise UsageProblem(str(error), "SRC") from error
    _tell_bad(console, done)
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
        raise UsageProblem(f"{to!r} is no format: choose one of {', '.join(FORMATS)}.", "--to")
    if to == ARRAYS:
        if target.suffix not in SUFFIXES:
            raise UsageProblem(f"arrays go into one file that ends with {', '.join(SUFFIXES)}.", "DST")
    elif single:
        if target.suffix != SAVE_FORMATS[to]:
            raise UsageProblem(f"a trajectory as {to} is a file that ends with {SAVE_FORMATS[to]}.", "DST")
    elif target.suffix in (*SAVE_FORMATS.values(), *HDF5_SUFFIXES):
        raise UsageProblem(f"several trajectories as {to} need a folder, not a file {target.suffix}.", "DST")


_Named = Iterator[tuple[str, str, FrozenTraj]]  # file name, environment's name, trajectory


def _trajectories(source: Path, done: _Done, console: Console) -> _Named:
    found = find_files(source, only_drawn_from=True)
    files = [path for each in found.values() for path in each.files]
    names = [path.stem for path in files]
    if (
        twice := sorted({name for name in names if names.count(name) > 1})
        if len(set(names)) < len(names)
        else []
    ):
        raise UsageProblem(f"two files have the name {twice[0]}: convert their folders one by one.", "SRC")
    for path in _with_progress(files, console):
        try:
            trajectory = load_trajectory(path)
            if not len(trajectory):
                raise CorruptTrajectoryError("it holds no transition")
        except (CorruptTrajectoryError, TrajectoryTooLargeError, OSError) as error:
            done.bad.append((path, str(error)))
            continue
        yield path.name, printable(env_name_of(path)), trajectory


def _episodes_of_arrays(request: Conversion) -> _Named:
    shape, dtype, names = actions_and_names(request.source)
    space = None if request.actions is None else parse_space(request.actions, shape)
    if space is None and (dtype.kind != "f" or len(shape) != 1):
        raise UsageProblem(
            f"the actions have dtype {dtype} and shape {shape}: say what they are, --actions discrete:N, "
            "discrete:N1,N2, box:LOW:HIGH or binary.",
            "--actions",
        )
    written = request.source.stat().st_mtime
    for i, episode in enumerate(episodes_from_file(request.source, space)):
        name = request.env_name or (names[i] if i < len(names) else request.source.stem)
        yield trajectory_filename(name, 0, i, written), name, episode


def _write_files(named: _Named, folder: Path, to: str, done: _Done, file_name: str | None = None) -> None:
    for name, env_name, trajectory in named:
        save_trajectory(trajectory, folder / (file_name or name), to, env_name)
        done.trajectories += 1
        done.transitions += len(trajectory)
    if not done.trajectories:
        raise ValueError("there is no trajectory that could be read")


@contextmanager
def _whole_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name in the end, or goes."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    aside.mkdir()
    try:
        yield aside
        os.rename(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _with_progress(files: list[Path], console: Console) -> Iterable[Path]:
    return track(files, "Converting", console=console, transient=True, disable=not console.is_terminal)


def _tell_bad(console: Console, done: _Done) -> None:
    for path, reason in done.bad:
        console.print(
            f"[yellow]left out[/] {escape(printable(f'{path.name}: {reason}'))}",
            highlight=False,
            soft_wrap=True,
        )


def parse_space(text: str, shape: tuple[int, ...]) -> gym.Space[Any]:
    """The action space that "discrete:4", "discrete:3,2", "box:-2:2" or "binary" stands for.

    Args:
        text: as it was typed.
        shape: of one action in the file.

    Raises:
        UsageProblem: if it is none of these.
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
        f"{text!r} is no kind of actions: discrete:N, discrete:N1,N2, box:LOW:HIGH or binary.", "--actions"
    )
