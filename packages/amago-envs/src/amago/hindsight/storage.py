"""Trajectory files: two formats, written whole or not at all, read whole or by slice, never through pickle.

- `.npz`, uncompressed ("npz") or not ("npz-compressed"): numpy's archive, which any script can open with
  `np.load`. A slice of an uncompressed one is read from its place in the file.
- `.traj` ("traj"): safetensors, with the format's version, the length and the environment's name as metadata.

Both hold the arrays of `FrozenTraj.to_dict`. T = transitions.
"""

import contextlib
import io
import itertools
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from amago.hindsight.filenames import (
    TrajectoryName,
    clean_env_name,
    parse_filename,
    strip_suffix,
    trajectory_filename,
)
from amago.hindsight.npz import holds_compressed, read_rows, stored_shapes
from amago.hindsight.timestep import Array
from amago.hindsight.trajectory import FrozenTraj

__all__ = [
    "SAVE_FORMATS",
    "CorruptTrajectoryError",
    "PickledTrajectoryError",
    "TrajectoryName",
    "load_slice",
    "load_trajectory",
    "parse_filename",
    "save_trajectory",
    "trajectory_filename",
    "trajectory_length",
]

SAVE_FORMATS = {"npz": ".npz", "npz-compressed": ".npz", "traj": ".traj"}
TRAJ_VERSION = "1"
_TRANSITION_ARRAYS = frozenset({"rews", "dones", "actions"})
UNFINISHED_SUFFIX = ".part"
# A write takes seconds; an unfinished file that nobody has touched for so long belongs to a process that died.
ABANDONED_SECONDS = 3600.0
_write_numbers = itertools.count()


class CorruptTrajectoryError(ValueError):
    """The file is torn, damaged, or no trajectory."""


class PickledTrajectoryError(CorruptTrajectoryError):
    """The file is a pickle, which could run code when loaded and is therefore never read."""


def save_suffix(save_as: str) -> str:
    """The ending of files in the format `save_as`; raises ValueError for an unknown format."""
    if save_as not in SAVE_FORMATS:
        raise ValueError(f"unknown trajectory format {save_as!r}; choose one of {', '.join(SAVE_FORMATS)}")
    return SAVE_FORMATS[save_as]


def env_name_of(path: Path) -> str:
    """The environment's name in a trajectory file's name, or the whole stem of a name of another form."""
    try:
        return parse_filename(path).env_name
    except ValueError:
        return clean_env_name(strip_suffix(path.name))


def save_trajectory(frozen: FrozenTraj, path: Path, save_as: str, env_name: str) -> Path:
    """Writes a trajectory beside its final place and then renames it, so readers never meet half a file.

    Args:
        frozen: the trajectory.
        path: the file in an existing folder; the ending is set from `save_as`.
        save_as: "npz", "npz-compressed" or "traj".
        env_name: name of the environment, kept in the metadata of a .traj.

    Returns:
        The path of the file.

    Raises:
        ValueError: for an unknown format, or arrays of Python objects.
        OSError: if it cannot be written (no folder, no space); nothing is left behind.
    """
    target = path.with_name(strip_suffix(path.name) + save_suffix(save_as))
    arrays = {name: np.ascontiguousarray(array) for name, array in frozen.to_dict().items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{name} has dtype {array.dtype}; trajectories hold numbers, not Python objects")
    with _whole_file(target) as file:
        if save_as == "traj":
            metadata = {
                "format": "amago-trajectory",
                "version": TRAJ_VERSION,
                "length": str(len(frozen)),
                "env_name": env_name,
            }
            file.write(to_safetensors(arrays, metadata=metadata))
        else:
            # In memory first: an archive whose file fills the disk would fail once more when it is closed.
            archive = io.BytesIO()
            save_archive = np.savez if save_as == "npz" else np.savez_compressed
            save_archive(archive, **arrays)  # type: ignore[arg-type]
            file.write(archive.getbuffer())
    return target


def load_trajectory(path: Path) -> FrozenTraj:
    """Reads a whole trajectory file; its arrays are writable.

    Raises:
        CorruptTrajectoryError: if the file is torn, damaged or no trajectory.
        PickledTrajectoryError: if it is a pickle.
        OSError: if it cannot be opened.
    """
    with _reading(path) as read:
        return FrozenTraj.from_dict(dict(read(None)))


def load_slice(path: Path, start: int, stop: int) -> FrozenTraj:
    """Reads transitions `start` to `stop`, and the timesteps `start` to `stop + 1` around them.

    Only the slice is read from a .traj and from an uncompressed .npz.

    Raises:
        IndexError: unless 0 <= start < stop <= T.
        CorruptTrajectoryError, OSError: as `load_trajectory`.
    """
    if not 0 <= start < stop:
        raise IndexError(f"slice [{start}, {stop}) of {path.name} is empty or begins before the trajectory")
    with _reading(path) as read:
        return FrozenTraj.from_dict(dict(read((start, stop))))


def trajectory_length(path: Path) -> int:
    """T, read from the file's header without its data; raises as `load_trajectory`."""
    with _corruption_named(path):
        if _suffix_of(path) == ".npz":
            return int(stored_shapes(path)["rews"][0])
        _refuse_pickle(path)
        with safe_open(path, framework="numpy") as file:
            return int(file.get_slice("rews").get_shape()[0])


_Reader = Callable[[tuple[int, int] | None], Iterator[tuple[str, Array]]]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[_Reader]:
    with _corruption_named(path):
        if _suffix_of(path) == ".npz":
            yield lambda part: _read_npz(path, part)
        else:
            _refuse_pickle(path)
            yield lambda part: _read_traj(path, part)


@contextlib.contextmanager
def _corruption_named(path: Path) -> Iterator[None]:
    try:
        yield
    except CorruptTrajectoryError:
        raise
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        SafetensorError,
        ValueError,
        KeyError,
        EOFError,
    ) as error:
        raise CorruptTrajectoryError(f"{path} is torn, damaged or no trajectory file: {error}") from error


def _suffix_of(path: Path) -> str:
    if path.suffix not in SAVE_FORMATS.values():
        raise ValueError(f"the ending {path.suffix!r} is neither .npz nor .traj")
    return path.suffix


def _rows_of(name: str, part: tuple[int, int], rows: int) -> tuple[int, int]:
    start, stop = part
    last = stop if name in _TRANSITION_ARRAYS else stop + 1
    if last > rows:
        raise IndexError(f"slice [{start}, {stop}) needs {last} rows of {name}, and the file holds {rows}")
    return start, last


def _read_npz(path: Path, part: tuple[int, int] | None) -> Iterator[tuple[str, Array]]:
    if part is None or holds_compressed(path):
        # numpy leaves a file open that it opened itself and then finds to be no archive
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                array = archive[name]
                if part is not None:
                    array = array[slice(*_rows_of(name, part, len(array)))].copy()
                yield name, array
        return
    with path.open("rb") as file:
        yield from read_rows(file, lambda name, rows: _rows_of(name, part, rows))


def _read_traj(path: Path, part: tuple[int, int] | None) -> Iterator[tuple[str, Array]]:
    with safe_open(path, framework="numpy") as file:
        version = (file.metadata() or {}).get("version", TRAJ_VERSION)
        if version != TRAJ_VERSION:
            raise ValueError(
                f"it has version {version} of the format, and this release reads version {TRAJ_VERSION}"
            )
        for name in file.keys():  # noqa: SIM118 (the handle is no mapping)
            if part is None:
                array = file.get_tensor(name)
            else:
                tensor = file.get_slice(name)
                start, stop = _rows_of(name, part, tensor.get_shape()[0])
                array = tensor[start:stop]
            yield name, array if array.flags.writeable else array.copy()


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(9)
    # A pickle begins with its protocol number; a safetensors header, whose length could look like one, with "{".
    if head[:1] == b"\x80" and head[8:9] != b"{":
        raise PickledTrajectoryError(
            f"{path} is a pickle, which can run code when it is read, so it is refused. Convert it in the program "
            "that wrote it: load it there, save it again with save_as='npz', and bring the .npz file"
        )


def remove_unfinished(folder: Path) -> int:
    """Removes what processes that were killed while writing left in `folder`; returns how many files.

    Readers never see such files. Only those not touched for an hour go, as another process may be writing.
    """
    removed = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(UNFINISHED_SUFFIX):
                with contextlib.suppress(FileNotFoundError):  # another process was quicker
                    if time.time() - entry.stat().st_mtime > ABANDONED_SECONDS:
                        os.unlink(entry.path)
                        removed += 1
    return removed


@contextlib.contextmanager
def _whole_file(target: Path) -> Iterator[IO[bytes]]:
    # A leading dot and an ending of its own keep the unfinished file out of every listing of trajectories.
    aside = target.with_name(
        f".{target.name}.{os.getpid()}-{threading.get_ident()}-{next(_write_numbers)}{UNFINISHED_SUFFIX}"
    )
    try:
        with aside.open("xb") as file:
            yield file
        os.replace(aside, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(
                error.errno, f"cannot write trajectories to {target.parent}: {error.strerror}"
            ) from error
        raise
