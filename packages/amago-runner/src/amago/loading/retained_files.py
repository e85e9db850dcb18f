"""Deletion that keeps the last checkpoint resumable.

A resumed run must sample from the files that its checkpoint lists. A deleted file that the last checkpoint
lists is therefore moved to `on_hold`, and removed once a newer checkpoint without it has been written.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from amago.utils import AmagoWarning


class RetainedFiles:
    """The files of one folder that checkpoints list.

    Args:
        folder: the files.
        on_hold: deleted files that the last checkpoint lists.
        aside: files newer than the checkpoint from which a run was resumed.
    """

    def __init__(self, folder: Path, on_hold: Path, aside: Path) -> None:
        self.folder = folder
        self.on_hold = on_hold
        self.aside = aside
        self._listed: set[str] = set()
        self._next_listed: set[str] | None = None
        self._held: set[str] = set()

    def delete(self, names: Iterable[str]) -> None:
        """Removes files from the folder; those that the last checkpoint lists are moved to `on_hold`."""
        needed = self._listed | (self._next_listed or set())
        for name in names:
            if name not in needed:
                (self.folder / name).unlink(missing_ok=True)
            elif _move(self.folder / name, self.on_hold):
                self._held.add(name)

    def state_dict(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The file names for a checkpoint: those of the folder and those on hold."""
        self._next_listed = set(names)
        return {"files": sorted(self._next_listed), "on_hold": sorted(self._held)}

    def checkpoint_written(self) -> None:
        """Removes the files on hold that the newest checkpoint, now on disk, no longer lists."""
        if self._next_listed is None:
            return
        self._listed, self._next_listed = self._next_listed, None
        for name in self._held - self._listed:
            (self.on_hold / name).unlink(missing_ok=True)
        self._held &= self._listed

    def load_state_dict(
        self, state: dict[str, list[str]], present: Iterable[str], *, move_later_files_aside: bool
    ) -> None:
        """Restores the files that a checkpoint lists, as far as they still exist.

        Args:
            state: result of `state_dict`.
            present: names of the files that are in the folder now.
            move_later_files_aside: move files that the checkpoint does not list to `aside`.

        Raises:
            ValueError: if a name leads out of the folder.
        """
        for name in (*state["files"], *state["on_hold"]):
            if os.path.basename(name) != name:
                raise ValueError(f"the checkpoint lists {name!r}, which is not a file name in {self.folder}")
        listed, here = set(state["files"]), set(present)
        missing = {name for name in listed - here if not _move(self.on_hold / name, self.folder)}
        if missing:
            warnings.warn(
                f"{len(missing)} of {len(listed)} trajectory files that the checkpoint lists are no longer in "
                f"{self.folder}, so the resumed run samples differently; one is {min(missing)}",
                AmagoWarning,
                stacklevel=3,
            )
        if move_later_files_aside:
            for name in here - listed:
                _move(self.folder / name, self.aside)
        self._listed, self._next_listed = listed, None
        self._held = {name for name in state["on_hold"] if (self.on_hold / name).exists()}


def _move(source: Path, folder: Path) -> bool:
    """Moves a file into `folder`, which is created if needed; False if the file does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(source, folder / source.name)
        return True
    return False
