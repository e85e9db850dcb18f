"""Index of the trajectory files of a replay buffer, and the quarantine for files that do not belong there.

The index is a listing of the folders `fifo` and `protected`. It is refreshed between epochs; nothing is
locked, so any number of processes may write to the same buffer.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

from amago.hindsight import SUFFIXES, parse_filename
from amago.utils import AmagoWarning

NO_FILE_ID = "~"
"""File id of a file whose name has another form; sorts after all hex digits."""


class TrajFile(NamedTuple):
    """A trajectory file, ordered by writer and sequence number.

    Attributes:
        file_id: eight hex digits, writer and sequence number.
        name: file name.
        folder: folder of the file.
        env_name: name of the environment; empty if the file name has another form.
        unix_time: when it was written, by its writer's clock; 0 if the file name has another form.
        inode: distinguishes the file from a later one with the same name.
        size: bytes; 0 if it was deleted meanwhile.
    """

    file_id: str
    name: str
    folder: str
    env_name: str
    unix_time: float
    inode: int
    size: int = 0

    @property
    def path(self) -> str:
        """Path of the file."""
        return f"{self.folder}/{self.name}"


class FileIndex:
    """The trajectory files of a replay buffer.

    Args:
        buffer: folder that contains `fifo` and `protected`, and `quarantine` once it is needed.

    Attributes:
        fifo: files of `fifo`, by writer and sequence number.
        protected: files of `protected`, by writer and sequence number; their names may have any form.
        files: `protected`, then `fifo`. A new list whenever files may have changed.
        may_move: whether this process may move files to the quarantine.
    """

    def __init__(self, buffer: Path) -> None:
        self.buffer = buffer
        self.quarantine_folder = buffer / "quarantine"
        self.may_move = False
        self.fifo: list[TrajFile] = []
        self.protected: list[TrajFile] = []
        self.files: list[TrajFile] = []
        self._skipped: set[tuple[str, int]] = set()  # (path, inode) of unusable files that were not moved

    def oldest(self, count: int) -> list[TrajFile]:
        """The `count` files of `fifo` that were written first."""
        return sorted(self.fifo, key=lambda file: (file.unix_time, file.file_id))[:count]

    def refresh(self) -> None:
        """Lists the folders again."""
        self.protected = self._list("protected", self.protected, any_name=True)
        self.fifo = self._list("fifo", self.fifo, any_name=False)
        self.files = self.protected + self.fifo

    def remove(self, file: TrajFile) -> None:
        """Takes a file off the list."""
        for files in (self.protected, self.fifo):
            if file in files:
                files.remove(file)
        self.files = self.protected + self.fifo

    def quarantine(self, file: TrajFile, reason: str) -> None:
        """Takes a file off the list for good, with a warning; moves it to the quarantine if that is allowed."""
        self.remove(file)
        self._quarantine(file.folder, file.name, file.inode, reason)

    def _list(self, name: str, before: list[TrajFile], *, any_name: bool) -> list[TrajFile]:
        folder = str(self.buffer / name)
        known = {file.name: file for file in before}
        files: list[TrajFile] = []
        is_new = False
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return []
        for entry in entries:
            file = known.get(entry.name)
            if file is None or file.inode != entry.inode():
                if entry.name.startswith(".") or (entry.path, entry.inode()) in self._skipped:
                    continue  # still being written, or unusable
                file = _parse(folder, entry, any_name=any_name) if _is_file(entry) else None
                if file is None:
                    reason = "it is not named like a trajectory file, or is not a file"
                    self._quarantine(folder, entry.name, entry.inode(), reason)
                    continue
                is_new = True
            files.append(file)
        if not is_new and len(files) == len(before):
            return before
        files.sort()
        return files

    def _quarantine(self, folder: str, name: str, inode: int, reason: str) -> None:
        path = f"{folder}/{name}"
        done = f"skipping {path}"
        self._skipped.add((path, inode))
        if self.may_move:
            try:
                self.quarantine_folder.mkdir(parents=True, exist_ok=True)
                os.replace(path, self.quarantine_folder / name)
                done = f"moved {path} to {self.quarantine_folder}"
            except FileNotFoundError:
                return  # another process moved it and warned
            except OSError as error:
                reason = f"{reason} (moving it to {self.quarantine_folder} failed: {error})"
        warnings.warn(f"{done}: {reason}", AmagoWarning, stacklevel=2)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        # Regular files need no system call here, so a concurrently deleted file still counts.
        return entry.is_file()
    except OSError:  # such as a link to itself
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # deleted by another process
        return 0


def _parse(folder: str, entry: os.DirEntry[str], *, any_name: bool) -> TrajFile | None:
    """The entry as a trajectory file, or None if it is not one."""
    name, inode = entry.name, entry.inode()
    if not name.endswith(SUFFIXES):
        return None
    try:
        env_name, file_id, unix_time = parse_filename(name)
    except ValueError:
        return TrajFile(NO_FILE_ID, name, folder, "", 0.0, inode, _size(entry)) if any_name else None
    return TrajFile(file_id, name, folder, env_name, unix_time, inode, _size(entry))
