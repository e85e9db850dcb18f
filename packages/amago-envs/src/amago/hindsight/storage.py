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
from pathlib import Path

import numpy as np
from safetensors.numpy import save as to_safetensors

from amago.hindsight.archive import MAX_BYTES, stored_archive
from amago.hindsight.filenames import (
    TrajectoryName,
    clean_env_name,
    parse_filename,
    strip_suffix,
    trajectory_filename,
)
from amago.hindsight.layout import (
    TRAJ_VERSION,
    CorruptTrajectoryError,
    PickledTrajectoryError,
    opened_trajectory,
    read_layout,
)
from amago.hindsight.memory_limit import TrajectoryTooLargeError
from amago.hindsight.trajectory import FrozenTraj

__all__ = [
    "SAVE_FORMATS",
    "CorruptTrajectoryError",
    "PickledTrajectoryError",
    "TrajectoryName",
    "TrajectoryTooLargeError",
    "load_slice",
    "load_trajectory",
    "parse_filename",
    "save_trajectory",
    "trajectory_filename",
    "trajectory_length",
    "verify_trajectory",
]

SAVE_FORMATS = {"npz": ".npz", "npz-compressed": ".npz", "traj": ".traj"}
UNFINISHED_SUFFIX = ".part"
# A write takes seconds; an unfinished file that nobody has touched for so long belongs to a process that died.
ABANDONED_SECONDS = 3600.0
_write_numbers = itertools.count()


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
    return Path(write_trajectory(frozen, str(path.parent), strip_suffix(path.name), save_as, env_name))


def write_trajectory(frozen: FrozenTraj, folder: str, stem: str, save_as: str, env_name: str) -> str:
    """`save_trajectory` into `folder`, under the name `stem` and the ending of `save_as`; returns where.

    For those who write hundreds of short files per second: a fifth of `save_trajectory` is making Paths.
    """
    name = stem + save_suffix(save_as)
    arrays = {key: np.ascontiguousarray(array) for key, array in frozen.to_dict().items()}
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{key} has dtype {array.dtype}; trajectories hold numbers, not Python objects")
    if save_as == "traj":
        metadata = {
            "format": "amago-trajectory",
            "version": TRAJ_VERSION,
            "length": str(len(frozen)),
            "env_name": env_name,
        }
        return _write_whole(folder, name, to_safetensors(arrays, metadata=metadata))
    if save_as == "npz" and sum(array.nbytes for array in arrays.values()) < MAX_BYTES:
        return _write_whole(folder, name, stored_archive(arrays))
    # In memory first: an archive whose file fills the disk would fail once more when it is closed.
    archive = io.BytesIO()
    save_archive = np.savez if save_as == "npz" else np.savez_compressed
    save_archive(archive, **arrays)  # type: ignore[arg-type]
    return _write_whole(folder, name, archive.getbuffer())


def load_trajectory(path: Path) -> FrozenTraj:
    """Reads a whole trajectory file; its arrays are writable.

    Raises:
        CorruptTrajectoryError: if the file is torn, damaged or no trajectory.
        PickledTrajectoryError: if it is a pickle.
        TrajectoryTooLargeError: if it shrank far more than usual and takes over a quarter of the memory.
        OSError: if it cannot be opened.
    """
    with opened_trajectory(path) as file:
        return read_layout(file, path).read_whole(file)


def verify_trajectory(path: Path) -> int:
    """T, after a look at all of the file's data, of which never more than a piece is in memory.

    Raises:
        CorruptTrajectoryError, PickledTrajectoryError, OSError: as `load_trajectory`.
    """
    with opened_trajectory(path) as file:
        layout = read_layout(file, path)
        layout.verify(file)
        return layout.length


def load_slice(path: Path, start: int, stop: int) -> FrozenTraj:
    """Reads transitions `start` to `stop`, and the timesteps `start` to `stop + 1` around them.

    Only the slice is read from a .traj and from an uncompressed .npz; a compressed one is inflated up to `stop`.

    Raises:
        IndexError: unless 0 <= start < stop <= T.
        CorruptTrajectoryError: also for a window that takes far more memory than compressed data usually needs.
        PickledTrajectoryError, OSError: as `load_trajectory`.
    """
    if not 0 <= start < stop:
        raise IndexError(f"slice [{start}, {stop}) of {path.name} is empty or begins before the trajectory")
    with opened_trajectory(path) as file:
        return read_layout(file, path).read(file, start, stop)


def trajectory_length(path: Path) -> int:
    """T, read from the file's headers without its data; raises as `load_trajectory`."""
    with opened_trajectory(path) as file:
        return read_layout(file, path).length


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


def _write_whole(folder: str, name: str, data: bytes | memoryview) -> str:
    """Writes a file that is never seen in part, in few calls, as each lets go of the interpreter; where it is."""
    whole = os.path.join(folder, name)
    # A leading dot and an ending of its own keep the unfinished file out of every listing of trajectories.
    unique = f"{os.getpid()}-{threading.get_ident()}-{next(_write_numbers)}"
    aside = os.path.join(folder, f".{name}.{unique}{UNFINISHED_SUFFIX}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            rest = memoryview(data)
            while rest.nbytes:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        os.replace(aside, whole)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot write trajectories to {folder}: {error.strerror}") from error
        raise
    return whole
