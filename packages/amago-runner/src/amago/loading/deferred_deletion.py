"""Deletion of trajectory files that keeps the last checkpoint resumable.

A resumed run must sample from the files that its checkpoint lists. A deleted file that the last checkpoint
lists is therefore moved to `on_hold`, and removed once a newer checkpoint without it has been written.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from amago.hindsight import UNFINISHED_SUFFIX, parse_filename
from amago.utils import AmagoWarning


class DeferredDeletion:
    """Deletes files of one folder, those that the last checkpoint lists only after the next checkpoint.

    Args:
        folder: the files.
        on_hold: deleted files that the last checkpoint lists.
        newer_than_checkpoint: files that were newer than the checkpoint at the last resume.
    """

    def __init__(self, folder: Path, on_hold: Path, newer_than_checkpoint: Path) -> None:
        self.folder = folder
        self.on_hold = on_hold
        self.newer_than_checkpoint = newer_than_checkpoint
        self._listed: set[str] = set()  # by the last checkpoint on disk
        self._next_listed: set[str] | None = None  # by a checkpoint that may not be on disk yet

    def delete(self, names: Iterable[str]) -> None:
        """Removes files from the folder; those that the last checkpoint lists are moved to `on_hold`."""
        needed = self._listed | (self._next_listed or set())
        for name in names:
            if name in needed:
                _move(self.folder / name, self.on_hold)
            else:
                (self.folder / name).unlink(missing_ok=True)

    def state_dict(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The names of the folder's files, for a checkpoint."""
        self._next_listed = set(names)
        return {"files": sorted(self._next_listed)}

    def checkpoint_written(self) -> None:
        """Removes the files on hold that the newest checkpoint, now on disk, does not list."""
        if self._next_listed is None:
            return
        self._listed, self._next_listed = self._next_listed, None
        for path in self.on_hold.glob("*"):
            if path.name not in self._listed:
                path.unlink(missing_ok=True)

    def load_state_dict(
        self, state: dict[str, list[str]], present: Iterable[str], *, later_files_of: Collection[str] = ()
    ) -> None:
        """Restores the files that a checkpoint lists, as far as they still exist.

        Args:
            state: result of `state_dict`.
            present: names of the files that are in the folder now.
            later_files_of: writer ids. Files of these writers that the checkpoint does not list are moved to
                `newer_than_checkpoint`, which then holds no others; their unfinished files are deleted.

        Raises:
            ValueError: if a name is not that of a file in the folder.
        """
        listed, here = set(state["files"]), set(present)
        for name in listed:
            if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
                raise ValueError(f"the checkpoint lists {name!r}, which is not a file name in {self.folder}")
        missing = {name for name in listed - here if not _move(self.on_hold / name, self.folder)}
        if missing:
            warnings.warn(
                f"{len(missing)} of {len(listed)} trajectory files that the checkpoint lists are no longer in "
                f"{self.folder}, so the resumed run samples differently; one is {min(missing)}",
                AmagoWarning,
                stacklevel=3,
            )
        if later_files_of:
            shutil.rmtree(self.newer_than_checkpoint, ignore_errors=True)
            for name in here - listed:
                if _writer(name) in later_files_of:
                    _move(self.folder / name, self.newer_than_checkpoint)
            for path in self.folder.glob(f".*{UNFINISHED_SUFFIX}"):
                if _writer(path.name[1:].rsplit(".", 2)[0]) in later_files_of:
                    path.unlink(missing_ok=True)
        self._listed, self._next_listed = listed, None


def _writer(name: str) -> str | None:
    """The writer id in the name of a trajectory file; None if the name has another form."""
    try:
        return parse_filename(name).file_id[:3]
    except ValueError:
        return None


def _move(source: Path, folder: Path) -> bool:
    """Moves a file into `folder`, which is created if needed; False if the file does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, folder / source.name)
    except FileNotFoundError:
        return False
    return True
