"""Which trajectory files a folder holds right now, found without reading it more often than necessary.

Listing 200,000 names takes a fifth of a second, so a large folder is not listed at every change: this process
tells of the files that it writes and deletes itself, and those of others are found by listings that take a small
share of the time. Nothing here trusts a clock but this process's own, nor that the folder's time stamp is fine or
always moves: on network file systems it may do neither.
"""

from __future__ import annotations

import bisect
import errno
import heapq
import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from amago.hindsight import parse_filename

SUFFIXES = (".npz", ".traj")

NO_WRITER = "~"
"""Stands for the writer of a file whose name tells none; sorts after all hex digits."""

SETTLE_SECONDS = 2.0
"""A folder may change again under the same time stamp for so long after the stamp was first seen."""

LARGE = 1000
"""Files from which on a folder is not listed at every change."""

LISTING_SHARE = 0.05
"""The share of the time that listings of a large folder may take."""

UNASKED_SECONDS = 30.0
"""Time after which a folder is listed though its time stamp stands still."""

ABSENT_SECONDS = 1.0
"""Time for which a file that was listed but could not be opened is left alone, unless a look is forced."""

FEW = 64
"""Changes that are put into the sorted list one by one, or so many for each `SORTED_AT_ONCE` files; with more
changes the whole list is sorted."""

SORTED_AT_ONCE = 128


class TrajFile(NamedTuple):
    """A trajectory file. `inode` tells it from another file that later takes its name."""

    folder: str
    name: str
    inode: int

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{self.folder}/{self.name}"

    @property
    def env_name(self) -> str:
        """The environment that the name tells; empty if it tells none."""
        return self.name.split("_", 1)[0] if self.file_id != NO_WRITER else ""

    @property
    def file_id(self) -> str:
        """Writer and sequence number, eight hex digits."""
        try:
            return parse_filename(self.name).file_id
        except ValueError:
            return NO_WRITER

    @property
    def unix_time(self) -> float:
        """When it was written, by its writer's clock; 0 if the name does not tell."""
        try:
            return parse_filename(self.name).unix_time
        except ValueError:
            return 0.0


def sampling_key(file: TrajFile) -> tuple[str, str]:
    """Order of the lists that are sampled from: by writer and sequence number, the clock left out."""
    return file.file_id, file.name


def age_key(file: TrajFile) -> tuple[float, str]:
    """Order of deletion, oldest first."""
    return file.unix_time, file.file_id


class Listing(NamedTuple):
    """What a `refresh` found: files that came, files that went, and names that are no trajectory files'."""

    added: list[TrajFile]
    removed: list[TrajFile]
    foreign: list[str]


NOTHING_NEW = Listing([], [], [])


class TrajFolder:
    """The trajectory files of one folder, kept current by `refresh`, `note_written` and `note_deleted`.

    Args:
        path: the folder; it may come into being later.
        any_name: whether files keep their place under names that do not follow the pattern of trajectory
            files. Such files come last, by name, as nothing is known about their writer.

    Attributes:
        files: by name.
        ordered: the same, by writer and sequence number.
        listings: how often the folder was listed.
    """

    def __init__(self, path: Path, *, any_name: bool = False) -> None:
        self.path = path
        self.any_name = any_name
        self.files: dict[str, TrajFile] = {}
        self.ordered: list[TrajFile] = []
        self.listings = 0
        self._ignored: dict[str, int] = {}
        self._absent: dict[str, tuple[int, float]] = {}
        self._written: deque[str] = deque()
        self._by_age: list[tuple[tuple[float, str], TrajFile]] | None = None
        self._mtime_ns = -1
        self._mtime_seen_at = 0.0
        self._is_settled = False
        self._listed_at = -float("inf")
        self._listing_took = 0.0

    def note_written(self, name: str) -> None:
        """Tells of a file that this process has put into the folder; may be called in any thread."""
        self._written.append(name)

    def take_written(self) -> list[TrajFile]:
        """Puts the files that were noted as written on the list, and returns them."""
        came: list[TrajFile] = []
        while self._written:
            name = self._written.popleft()
            try:
                inode = os.stat(self.path / name).st_ino
            except FileNotFoundError:
                continue  # deleted again, by this process or another
            file = self._parse(name, inode)
            if file is not None and self.files.get(name) != file and self._ignored.get(name) != inode:
                came.append(file)
        self._change(came, [self.files[file.name] for file in came if file.name in self.files])
        return came

    def note_deleted(self, names: Iterable[str]) -> None:
        """Tells of files that this process has taken out of the folder."""
        self._change([], [self.files[name] for name in names if name in self.files])

    def refresh(self, *, force: bool = False) -> Listing:
        """Reads the folder again if it may have changed since the last time, or if `force`d to."""
        came = self.take_written()
        if force:
            self._absent.clear()
        try:
            mtime_ns = self.path.stat().st_mtime_ns
            if not (force or self._is_due(mtime_ns)):
                return Listing(came, [], []) if came else NOTHING_NEW
            listing = self._read()
        except FileNotFoundError:
            removed = list(self.files.values())
            self._change([], removed)
            self._mtime_ns = -1
            return Listing([], removed, [])
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return Listing(came, [], [])  # the handle of a network file system, which the next look renews
        return Listing(came + listing.added, listing.removed, listing.foreign)

    def forget(self, file: TrajFile, *, for_good: bool = False, for_now: bool = False) -> None:
        """Takes `file` off the list until the next look at the folder.

        Args:
            file: which one.
            for_good: it stays off even if it stays in the folder.
            for_now: it stays off for a while, as it was listed before it could be seen.
        """
        if self.files.get(file.name) != file:
            return
        self._change([], [file])
        if for_good:
            self._ignored[file.name] = file.inode
        elif for_now:
            self._absent[file.name] = file.inode, time.monotonic()

    def oldest(self, count: int) -> list[TrajFile]:
        """The `count` files that were written first."""
        if self._by_age is None:
            self._by_age = [(age_key(file), file) for file in self.ordered]
            heapq.heapify(self._by_age)
        found: list[TrajFile] = []
        entries: list[tuple[tuple[float, str], TrajFile]] = []
        while self._by_age and len(found) < count:
            entry = heapq.heappop(self._by_age)
            # Files that went otherwise are still in the heap.
            if self.files.get(entry[1].name) == entry[1] and (not entries or entries[-1] != entry):
                entries.append(entry)
                found.append(entry[1])
        for entry in entries:
            heapq.heappush(self._by_age, entry)
        return found

    def _is_due(self, mtime_ns: int) -> bool:
        """Whether to list the folder, whose time stamp is `mtime_ns`."""
        now = time.monotonic()
        if mtime_ns != self._mtime_ns:
            self._mtime_ns, self._mtime_seen_at, self._is_settled = mtime_ns, now, False
        since = now - self._listed_at
        if self._is_settled and since < UNASKED_SECONDS:
            return False
        if len(self.files) > LARGE and since * LISTING_SHARE < self._listing_took:
            return False
        self._is_settled = now - self._mtime_seen_at > SETTLE_SECONDS
        return True

    def _read(self) -> Listing:
        began = time.monotonic()
        self.listings += 1
        folder, files, ignored, absent = str(self.path), self.files, self._ignored, self._absent
        for name in [name for name, (_, since) in absent.items() if began - since > ABSENT_SECONDS]:
            del absent[name]
        still_ignored: dict[str, int] = {}  # so that what left the folder may come back
        added: list[TrajFile] = []
        removed: list[TrajFile] = []
        foreign: list[str] = []
        present: set[str] = set()
        with os.scandir(folder) as entries:
            for entry in entries:
                name, inode = entry.name, entry.inode()
                known = files.get(name)
                if known is not None and known.inode == inode:
                    present.add(name)
                    continue
                if name.startswith("."):
                    continue  # these are still being written
                if ignored.get(name) == inode:
                    still_ignored[name] = inode
                    continue
                if name in absent and absent[name][0] == inode:
                    self._is_settled = False  # it is to be looked at again soon
                    continue
                file = self._parse(name, inode)
                if file is None:
                    still_ignored[name] = inode
                    foreign.append(name)
                else:
                    added.append(file)
        if len(present) < len(files):
            removed = [file for name, file in files.items() if name not in present]
        self._ignored = still_ignored
        self._change(added, removed)
        self._listed_at = time.monotonic()
        self._listing_took = self._listed_at - began
        return Listing(added, removed, foreign)

    def _change(self, added: list[TrajFile], removed: list[TrajFile]) -> None:
        if not (added or removed):
            return
        for file in removed:
            del self.files[file.name]
        self.files.update((file.name, file) for file in added)
        if len(added) + len(removed) <= max(FEW, len(self.files) // SORTED_AT_ONCE):
            for file in removed:
                place = bisect.bisect_left(self.ordered, sampling_key(file), key=sampling_key)
                while self.ordered[place] != file:
                    place += 1
                del self.ordered[place]
            for file in added:
                bisect.insort(self.ordered, file, key=sampling_key)
        else:
            self.ordered = sorted(self.files.values(), key=sampling_key)
        if self._by_age is not None:
            if len(self._by_age) > 2 * len(self.files) + FEW:
                self._by_age = None
            else:
                for file in added:
                    heapq.heappush(self._by_age, (age_key(file), file))

    def _parse(self, name: str, inode: int) -> TrajFile | None:
        if not name.endswith(SUFFIXES) or name.startswith("."):
            return None
        file = TrajFile(str(self.path), name, inode)
        return file if self.any_name or file.file_id != NO_WRITER else None
