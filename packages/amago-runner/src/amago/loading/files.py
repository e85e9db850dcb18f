"""Which trajectory files a folder holds right now, found without reading it more often than it changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from amago.hindsight import parse_filename

SUFFIXES = (".npz", ".traj")

NO_WRITER = "~"
"""Stands for the writer of a file whose name tells none; sorts after all hex digits."""

SETTLE_NS = 2_000_000_000
"""A folder changed less than this before it was read may change again under the same time stamp."""


class TrajFile(NamedTuple):
    """A trajectory file. `inode` tells it from another file that later takes its name."""

    path: str
    name: str
    inode: int
    file_id: str
    unix_time: float

    @property
    def sampling_key(self) -> tuple[str, str]:
        """Order of the lists that are sampled from: by writer and sequence number, the clock left out."""
        return self.file_id, self.name

    @property
    def age_key(self) -> tuple[float, str]:
        """Order of deletion, oldest first."""
        return self.unix_time, self.file_id


class Listing(NamedTuple):
    """What a `refresh` found: files that came, files that went, and names that are no trajectory files'."""

    added: list[TrajFile]
    removed: list[TrajFile]
    foreign: list[str]


NOTHING_NEW = Listing([], [], [])


class TrajFolder:
    """The trajectory files of one folder, kept current by `refresh`.

    Args:
        path: the folder; it may come into being later.
        any_name: whether files keep their place under names that do not follow the pattern of trajectory
            files. Such files come last, by name, as nothing is known about their writer.
    """

    def __init__(self, path: Path, *, any_name: bool = False) -> None:
        self.path = path
        self.any_name = any_name
        self.files: dict[str, TrajFile] = {}
        self._ignored: dict[str, int] = {}
        self._seen_mtime_ns = -1

    def refresh(self, *, force: bool = False) -> Listing:
        """Reads the folder again if it may have changed since the last time, or if `force`d to."""
        try:
            mtime_ns = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            removed, self.files, self._seen_mtime_ns = list(self.files.values()), {}, -1
            return Listing([], removed, [])
        if mtime_ns == self._seen_mtime_ns and not force:
            return NOTHING_NEW
        settled = time.time_ns() - mtime_ns > SETTLE_NS
        self._seen_mtime_ns = mtime_ns if settled else -1
        return self._read()

    def forget(self, file: TrajFile, *, for_good: bool) -> None:
        """Takes `file` off the list; `for_good`, it stays off even if it stays in the folder."""
        if self.files.get(file.name) != file:
            return
        del self.files[file.name]
        if for_good:
            self._ignored[file.name] = file.inode

    def _read(self) -> Listing:
        added: list[TrajFile] = []
        foreign: list[str] = []
        present: dict[str, TrajFile] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                name, inode = entry.name, entry.inode()
                if name.startswith(".") or self._ignored.get(name) == inode:
                    continue  # a leading dot marks files that are still being written
                known = self.files.get(name)
                if known is not None and known.inode == inode:
                    present[name] = known
                    continue
                file = self._parse(entry.path, name, inode)
                if file is None:
                    self._ignored[name] = inode
                    foreign.append(name)
                else:
                    present[name] = file
                    added.append(file)
        removed = [file for name, file in self.files.items() if present.get(name) != file]
        self.files = present
        return Listing(added, removed, foreign)

    def _parse(self, path: str, name: str, inode: int) -> TrajFile | None:
        if not name.endswith(SUFFIXES):
            return None
        try:
            parsed = parse_filename(name)
        except ValueError:
            return TrajFile(path, name, inode, NO_WRITER, 0.0) if self.any_name else None
        return TrajFile(path, name, inode, parsed.file_id, parsed.unix_time)
