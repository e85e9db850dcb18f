"""Deleting files in such a way that the last checkpoint can still be resumed.

A resumed run must draw from the files that its checkpoint knew. So a file which the last checkpoint lists is
not deleted but put on hold, in a folder beside the buffer's, and removed for good once a newer checkpoint
without it is on disk.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from amago.utils import AmagoWarning


class CheckpointedFiles:
    """The files of one folder as checkpoints list them.

    Args:
        folder: where the files live.
        hold: where deleted files wait that the last checkpoint lists.
        aside: where files go that are newer than the checkpoint a run is resumed from.
    """

    def __init__(self, folder: Path, hold: Path, aside: Path) -> None:
        self.folder, self.hold, self.aside = folder, hold, aside
        self._listed: set[str] = set()
        self._next_listed: set[str] | None = None
        self._held: set[str] = set()

    def delete(self, names: Iterable[str]) -> list[str]:
        """Takes files out of the folder: for good, or on hold if the last checkpoint lists them.

        Returns:
            The names of folders among them, which stay where they are.
        """
        needed = self._listed | (self._next_listed or set())
        folders = []
        for name in names:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                folders.append(name)
            elif name not in needed:
                _remove(path)
            elif _move(path, self.hold):
                self._held.add(name)
        return folders

    def state_dict(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The listing that goes into a checkpoint: the folder's files and those on hold."""
        self._next_listed = set(names)
        return {"files": sorted(self._next_listed), "on_hold": sorted(self._held)}

    def checkpoint_written(self) -> None:
        """Removes the files on hold that the newest checkpoint, now on disk, no longer lists."""
        if self._next_listed is None:
            return
        self._listed, self._next_listed = self._next_listed, None
        for name in self._held - self._listed:
            _remove(self.hold / name)
        self._held &= self._listed

    def load_state_dict(
        self, state: dict[str, list[str]], present: Iterable[str], *, move_later_files_aside: bool
    ) -> None:
        """Makes the folder hold the files that `state` lists, as far as they still exist.

        Args:
            state: what `state_dict` returned.
            present: names of the files in the folder now.
            move_later_files_aside: whether files that the checkpoint does not know leave the folder.
        """
        listed, here = set(state["files"]), set(present)
        for name in listed - here:
            _move(self.hold / name, self.folder)
        gone = {name for name in listed - here if not (self.folder / name).exists()}
        if gone:
            warnings.warn(
                f"{len(gone)} of {len(listed)} trajectory files that the checkpoint lists are no longer in "
                f"{self.folder}, so the run goes on with other samples than it would have; one is {min(gone)}",
                AmagoWarning,
                stacklevel=3,
            )
        if move_later_files_aside:
            for name in here - listed:
                _move(self.folder / name, self.aside)
        self._listed, self._next_listed = listed, None
        self._held = {name for name in state["on_hold"] if (self.hold / name).exists()}


def _remove(path: Path) -> None:
    """Removes a file, unless another process was faster."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.ESTALE:  # how network file systems say that it is gone
            raise


def _move(source: Path, folder: Path) -> bool:
    """Moves a file into `folder`, made if need be; False if it is gone, as when another process was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, folder / source.name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        return False
    return True
