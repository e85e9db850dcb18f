"""Finds the trajectory files of a path given on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from amago.cli.options import UsageProblem
from amago.hindsight import SUFFIXES, UNFINISHED_SUFFIX

# Folders of a buffer, in the order of reports
BUFFER_FOLDERS = ("fifo", "protected", "on_hold", "newer_than_checkpoint", "quarantine")
_SAMPLED = ("fifo", "protected")


class Found(NamedTuple):
    """Contents of a folder: trajectory files by suffix, unfinished files, and others."""

    folder: Path
    files: list[Path]
    unfinished: list[Path]
    foreign: list[Path]


def find_files(path: Path, *, only_sampled: bool = False) -> dict[str, Found]:
    """The files of a buffer by folder ("fifo", "protected", ...), or of a plain folder or single file under "".

    Args:
        path: a dataset's folder, its `buffer`, a folder of files, or one file.
        only_sampled: only the folders that training samples from.

    Raises:
        UsageProblem: if the path does not exist or cannot be read.
    """
    try:
        return _find_files(path, only_sampled)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}.", str(path)) from error


def _find_files(path: Path, only_sampled: bool) -> dict[str, Found]:
    if path.is_file():
        return {"": Found(path.parent, [path], [], [])}
    if not path.is_dir():
        raise UsageProblem(f"there is no file or folder {path}.", str(path))
    root = path / "buffer" if (path / "buffer").is_dir() else path
    names = [name for name in BUFFER_FOLDERS if (root / name).is_dir()]
    if only_sampled:
        names = [name for name in names if name in _SAMPLED]
    folders = {name: root / name for name in names} or {"": root}
    return {name: _list(folder) for name, folder in folders.items()}


def _list(folder: Path) -> Found:
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
