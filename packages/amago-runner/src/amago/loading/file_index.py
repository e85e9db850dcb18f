"""Index of the trajectory files of a replay buffer, and the quarantine for files that do not belong there.

The index is a listing of the folders `fifo` and `protected`. It is refreshed between epochs; nothing is
locked, so any number of processes may write to the same buffer.
"""

from __future__ import annotations

import heapq
import os
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from amago.hindsight import SUFFIXES, parse_filename
from amago.utils import AmagoWarning

NO_FILE_ID = "~"
"""File id of a file whose name has another form; sorts after all hex digits."""

SETTLED_NS = 100_000_000
"""Age of a folder's modification time after which no further change can have the same time stamp."""


class TrajFile(NamedTuple):
    """A trajectory file, ordered by writer and sequence number.

    Attributes:
        file_id: eight hex digits, writer and sequence number.
        name: file name.
        folder: folder of the file.
        env_name: name of the environment; empty if the file name has another form.
        unix_time: when it was written, by its writer's clock; 0 if the file name has another form.
        inode: distinguishes the file from a later one with the same name.
    """

    file_id: str
    name: str
    folder: str
    env_name: str
    unix_time: float
    inode: int

    @property
    def path(self) -> str:
        """Path of the file."""
        return f"{self.folder}/{self.name}"


class _Folder:
    """Sorted listing of the trajectory files in one folder.

    Args:
        path: the folder; it may be missing.
        any_name: accept files whose names do not follow `trajectory_filename`.
    """

    def __init__(self, path: Path, *, any_name: bool) -> None:
        self.path = path
        self.any_name = any_name
        self.files: list[TrajFile] = []
        self.rejected: set[tuple[str, int]] = set()  # (name, inode) of files to leave out
        self._mtime_ns: int | None = None

    def refresh(self, *, force: bool = False) -> tuple[bool, list[Path]]:
        """Lists the folder if it changed; returns whether files changed, and foreign entries."""
        foreign: list[Path] = []
        files: list[TrajFile] = []
        try:
            mtime_ns = self.path.stat().st_mtime_ns
            if mtime_ns == self._mtime_ns and not force:
                return False, []
            known = {file.name: file for file in self.files}
            rejected: set[tuple[str, int]] = set()
            with os.scandir(self.path) as entries:
                for entry in entries:
                    name, inode = entry.name, entry.inode()
                    if name.startswith("."):
                        continue  # still being written
                    if (name, inode) in self.rejected:
                        rejected.add((name, inode))
                        continue
                    file = known.get(name)
                    if file is None or file.inode != inode:
                        file = self._parse(name, inode) if _is_file(entry) else None
                    if file is None:
                        foreign.append(self.path / name)
                        rejected.add((name, inode))
                    else:
                        files.append(file)
        except FileNotFoundError:
            mtime_ns, rejected = 0, set()
        self._mtime_ns = mtime_ns if time.time_ns() - mtime_ns > SETTLED_NS else None
        self.rejected = rejected
        files.sort()
        changed = files != self.files
        self.files = files
        return changed, foreign

    def _parse(self, name: str, inode: int) -> TrajFile | None:
        if not name.endswith(SUFFIXES):
            return None
        try:
            env_name, file_id, unix_time = parse_filename(name)
        except ValueError:
            return TrajFile(NO_FILE_ID, name, str(self.path), "", 0.0, inode) if self.any_name else None
        return TrajFile(file_id, name, str(self.path), env_name, unix_time, inode)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


class FileIndex:
    """The trajectory files of a replay buffer.

    Args:
        buffer: folder that contains `fifo` and `protected`, and `quarantine` once it is needed.

    Attributes:
        may_move: whether this process may move files to the quarantine.
        files: all files: `protected`, then `fifo`, each by writer and sequence number. Replaced when files change.
    """

    def __init__(self, buffer: Path) -> None:
        self.quarantine_folder = buffer / "quarantine"
        self._fifo = _Folder(buffer / "fifo", any_name=False)
        self._protected = _Folder(buffer / "protected", any_name=True)
        self.may_move = False
        self.files: list[TrajFile] = []

    @property
    def fifo(self) -> list[TrajFile]:
        """Files of `fifo`, by writer and sequence number."""
        return self._fifo.files

    @property
    def protected(self) -> list[TrajFile]:
        """Files of `protected`, by writer and sequence number."""
        return self._protected.files

    def oldest(self, count: int) -> list[TrajFile]:
        """The `count` files of `fifo` that were written first."""
        return heapq.nsmallest(count, self.fifo, key=lambda file: (file.unix_time, file.file_id))

    def refresh(self, *, force: bool = False) -> None:
        """Lists the folders again if they changed, or in any case with `force`."""
        for folder in (self._protected, self._fifo):
            changed, foreign = folder.refresh(force=force)
            if changed:
                self.files = self._protected.files + self._fifo.files
            for path in foreign:
                self._move_to_quarantine(path, "it is not named like a trajectory file, or is not a file")

    def discard(self, file: TrajFile) -> None:
        """Takes a file off the list that another process has deleted."""
        for folder in (self._protected, self._fifo):
            if file in folder.files:
                folder.files.remove(file)
                self.files = self._protected.files + self._fifo.files

    def quarantine(self, file: TrajFile, reason: str) -> None:
        """Takes a file off the list for good, with a warning; moves it to the quarantine if that is allowed."""
        self.discard(file)
        for folder in (self._protected, self._fifo):
            if str(folder.path) == file.folder:
                folder.rejected.add((file.name, file.inode))
        self._move_to_quarantine(Path(file.path), reason)

    def _move_to_quarantine(self, path: Path, reason: str) -> None:
        done = f"skipping {path}"
        if self.may_move:
            target = self.quarantine_folder / path.name
            number = 1
            while os.path.lexists(target):
                number += 1
                target = self.quarantine_folder / f"{path.name}.{number}"
            try:
                self.quarantine_folder.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
                done = f"moved {path} to {self.quarantine_folder}"
            except FileNotFoundError:
                return  # another process moved it and warned
            except OSError as error:
                reason = f"{reason} (moving it to {self.quarantine_folder} failed: {error})"
        warnings.warn(f"{done}: {reason}", AmagoWarning, stacklevel=2)
