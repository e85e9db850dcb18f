"""What is done with files that cannot be read: which errors speak of one file, and where broken files go."""

from __future__ import annotations

import errno
import itertools
import os
import time
import warnings
from pathlib import Path

from amago.hindsight import CorruptTrajectoryError, verify_trajectory
from amago.hindsight.layout import DisproportionateTrajectoryError
from amago.loading.files import TrajFile
from amago.loading.reader import StrayTrajectoryError
from amago.utils import AmagoWarning

ERRORS_OF_GONE_FILES = frozenset({errno.ENOENT, errno.ESTALE, errno.EIO})
"""Deleted by another process, or not to be seen or read just now through a network file system."""

ERRORS_OF_BAD_FILES = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""What is wrong with one file and no reason to stop."""

FORGIVEN_SECONDS = 60.0
"""Time after which it is forgotten that a file was found broken and then whole: by then the caches of network file
systems have been renewed."""

TIMES_FORGIVEN = 3
"""How often a file may be found broken, and whole at a second look, within that time."""

MOST_FORGIVEN = 4096
"""Files of which that is remembered."""


class Quarantine:
    """Judges files that could not be read, and takes those that are no trajectories.

    Args:
        folder: where they go, made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forgiven: dict[TrajFile, tuple[float, int]] = {}

    def is_bad(self, file: TrajFile, error: Exception) -> bool:
        """Whether `error` condemns the file, which otherwise is gone or should be read again.

        A file that was found broken is opened once more: it may have been replaced, or seen through the cache of
        a network file system, and a good trajectory is not to be thrown out. A stray is whole at any look, and
        so is one whose windows take too much memory.
        """
        if isinstance(error, StrayTrajectoryError | DisproportionateTrajectoryError):
            return True
        if isinstance(error, OSError) and error.errno in ERRORS_OF_GONE_FILES:
            return False
        if not self._forgives(file):
            return True
        try:
            return verify_trajectory(Path(file.path)) < 1
        except CorruptTrajectoryError:
            return True
        except OSError as again:
            return again.errno in ERRORS_OF_BAD_FILES

    def _forgives(self, file: TrajFile) -> bool:
        """Whether the file may have another look; notes that it had one."""
        now = time.monotonic()
        since, times = self._forgiven.pop(file, (now, 0))
        if now - since > FORGIVEN_SECONDS:
            since, times = now, 0
        if len(self._forgiven) >= MOST_FORGIVEN:
            del self._forgiven[next(iter(self._forgiven))]
        self._forgiven[file] = since, times + 1
        return times < TIMES_FORGIVEN

    def take(self, path: Path, reason: str, *, may_move: bool) -> None:
        """Warns about a file that is no trajectory, and moves it here if this process may."""
        if may_move:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                os.replace(path, self._free_place(path.name))
            except FileNotFoundError:
                return  # another process of this run has moved it, and warned
            except OSError as error:
                reason = f"{reason} (and it cannot be moved: {error})"
            else:
                warnings.warn(f"moved {path} to {self.folder}: {reason}", AmagoWarning, stacklevel=2)
                return
        warnings.warn(f"skipping {path}: {reason}", AmagoWarning, stacklevel=2)

    def _free_place(self, name: str) -> Path:
        """Where nothing lies that was taken before."""
        names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
        return next(place for place in map(self.folder.joinpath, names) if not os.path.lexists(place))


def is_gone(error: Exception) -> bool:
    """Whether the file that caused `error` is gone, for now at least."""
    return isinstance(error, OSError) and error.errno in ERRORS_OF_GONE_FILES


def is_of_the_machine(error: Exception) -> bool:
    """Whether `error` is no fault of the file that was to be read, as when there are no more file handles."""
    return isinstance(error, OSError) and error.errno not in ERRORS_OF_GONE_FILES | ERRORS_OF_BAD_FILES
