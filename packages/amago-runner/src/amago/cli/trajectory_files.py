"""Where the trajectory files are that a path on the command line stands for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from amago.cli.options import UsageProblem
from amago.hindsight.filenames import SUFFIXES
from amago.hindsight.storage import UNFINISHED_SUFFIX

# Folders of a buffer, in the order in which they are told
BUFFER_FOLDERS = ("fifo", "protected", "on_hold", "aside", "quarantine")
_DRAWN_FROM = ("fifo", "protected")


class Found(NamedTuple):
    """What a folder holds: what is named as trajectory files are, unfinished ones, and others."""

    folder: Path
    files: list[Path]
    unfinished: list[Path]
    foreign: list[Path]


def find_files(path: Path, *, only_drawn_from: bool = False) -> dict[str, Found]:
    """The files of a buffer by folder ("fifo", "protected", ...), or of a plain folder or single file under "".

    Args:
        path: a dataset's folder, its `buffer`, a folder of files, or one file.
        only_drawn_from: leave out what training does not draw from.

    Raises:
        UsageProblem: if there is nothing, nothing that could be trajectories, or it may not be looked into.
    """
    try:
        return _find_files(path, only_drawn_from)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be looked into: {error.strerror}.", str(path)) from error


def _find_files(path: Path, only_drawn_from: bool) -> dict[str, Found]:
    if path.is_file():
        return {"": Found(path.parent, [path], [], [])}
    if not path.is_dir():
        raise UsageProblem(f"there is no file or folder {path}.", str(path))
    root = path / "buffer" if (path / "buffer").is_dir() else path
    names = [name for name in BUFFER_FOLDERS if (root / name).is_dir()]
    if only_drawn_from:
        names = [name for name in names if name in _DRAWN_FROM]
    folders = {name: root / name for name in names} or {"": root}
    return {name: _look_into(folder) for name, folder in folders.items()}


def _look_into(folder: Path) -> Found:
    found = Found(folder, [], [], [])
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            if path.name.endswith(UNFINISHED_SUFFIX):
                found.unfinished.append(path)
        elif path.suffix in SUFFIXES:
            found.files.append(path)
        else:
            found.foreign.append(path)
    return found
