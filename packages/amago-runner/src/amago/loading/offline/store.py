"""Many trajectories in a few long arrays: a window is a slice, whatever their number.

In memory, or as files in a folder that are mapped, so that loader workers and later runs share the pages that are
read and nothing has to fit into memory. The folder appears whole.

n = trajectories, R = transitions of all, A = width of the action representation.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amago.hindsight import FrozenTraj

Array = npt.NDArray[Any]

STORE_VERSION = 2
_HEADER = "store.json"
_TRANSITION_ARRAYS = ("rews", "dones", "actions")


class EpisodeStore:
    """Trajectories by number.

    Args:
        arrays: by the names of `FrozenTraj.to_dict`: rews (R, 1), dones (R, 1) and actions (R, A); all others have
            one row more for each trajectory.
        lengths: (n,) transitions of each.
        folder: which they are mapped from; None if they are in memory.
    """

    def __init__(self, arrays: Mapping[str, Array], lengths: Array, folder: Path | None = None) -> None:
        self.folder = folder
        self.lengths = np.asarray(lengths, np.int64)
        self.transitions_up_to = np.cumsum(self.lengths)
        self._starts = self.transitions_up_to - self.lengths
        self._arrays = dict(arrays)

    def __len__(self) -> int:
        """n."""
        return len(self.lengths)

    def slice(self, number: int, start: int, stop: int) -> FrozenTraj:
        """Transitions [start, stop) of a trajectory, with timesteps [start, stop + 1), as views."""
        first = int(self._starts[number])
        rows: dict[str, Array] = {}
        for name, array in self._arrays.items():
            if name in _TRANSITION_ARRAYS:
                rows[name] = array[first + start : first + stop]
            else:
                rows[name] = array[first + number + start : first + number + stop + 1]
        return FrozenTraj.from_dict(rows)

    def whole(self, number: int) -> FrozenTraj:
        """A trajectory, its arrays the caller's own."""
        views = self.slice(number, 0, int(self.lengths[number])).to_dict()
        return FrozenTraj.from_dict({name: array.copy() for name, array in views.items()})

    def __getstate__(self) -> dict[str, Any]:
        # Mapped arrays would travel to loader workers by value.
        return {"folder": self.folder} if self.folder is not None else dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["folder"] is not None:
            state = EpisodeStore.open(state["folder"]).__dict__
        self.__dict__.update(state)

    @classmethod
    def in_memory(cls, episodes: Iterable[FrozenTraj]) -> EpisodeStore:
        """Keeps the episodes; raises ValueError if there are none, or they differ in their arrays."""
        parts: dict[str, list[Array]] = {}
        lengths: list[int] = []
        shapes: dict[str, Any] = {}
        for episode in episodes:
            arrays = episode.to_dict()
            shapes = _check_alike(shapes, arrays, len(lengths))
            for name, array in arrays.items():
                parts.setdefault(name, []).append(array)
            lengths.append(len(episode))
        _check_some(lengths)
        return cls({name: np.concatenate(part) for name, part in parts.items()}, np.array(lengths))

    @classmethod
    def convert(
        cls, episodes: Iterable[FrozenTraj], folder: Path, origin: str, stamp: list[int] | None = None
    ) -> EpisodeStore:
        """Writes the episodes, one after the other, into a new folder, and maps it.

        Args:
            origin: kept in the folder; says what it was made from.
            stamp: kept beside it; whatever tells versions of a source apart without reading it, if anything does.

        Raises:
            ValueError: as `in_memory`.
            OSError: if it cannot be written; nothing is left behind then.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        aside.mkdir()
        try:
            _write(episodes, aside, {"origin": origin, "stamp": stamp})
            os.rename(aside, folder)
        except OSError:
            if not (folder / _HEADER).exists():  # or else another process was quicker
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> EpisodeStore:
        """Maps what `convert` wrote; raises ValueError if the folder holds no such store."""
        header = read_header(folder)
        arrays: dict[str, Array] = {}
        for name, entry in header["arrays"].items():
            shape = tuple(entry["shape"])
            path = folder / entry["file"]
            dtype = np.dtype(entry["dtype"])
            if path.stat().st_size != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
                raise ValueError(f"{path} was changed: remove {folder}, and it is made anew")
            arrays[name] = np.memmap(path, dtype, "r", shape=shape).view(np.ndarray)
        return cls(arrays, np.fromfile(folder / "lengths", np.int64), folder)


def read_header(folder: Path) -> dict[str, Any]:
    """What a store's folder says about itself; ValueError if it is none."""
    try:
        header: dict[str, Any] = json.loads((folder / _HEADER).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} is there, but holds no converted dataset: give another store") from error
    if header.get("version") != STORE_VERSION:
        raise ValueError(
            f"{folder} has version {header.get('version')}, and this release reads version {STORE_VERSION}: "
            "remove it, and it is made anew"
        )
    return header


class _Content:
    """A digest of all arrays of episodes that are added one by one."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, arrays: Mapping[str, Array]) -> None:
        for name, array in sorted(arrays.items()):
            self._hash.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def digest(self) -> str:
        return self._hash.hexdigest()


def content_of(episodes: Iterable[FrozenTraj]) -> str:
    """The digest that the header of a store of these episodes has as "content"."""
    content = _Content()
    for episode in episodes:
        content.add(episode.to_dict())
    return content.digest()


def _write(episodes: Iterable[FrozenTraj], folder: Path, told: Mapping[str, Any]) -> None:
    content = _Content()
    lengths: list[int] = []
    shapes: dict[str, Any] = {}
    files: dict[str, Any] = {}
    try:
        for episode in episodes:
            arrays = episode.to_dict()
            shapes = _check_alike(shapes, arrays, len(lengths))
            content.add(arrays)
            for i, (name, array) in enumerate(arrays.items()):
                if name not in files:
                    files[name] = (folder / f"array{i}").open("xb")
                files[name].write(np.ascontiguousarray(array).data)
            lengths.append(len(episode))
    finally:
        for file in files.values():
            file.close()
    _check_some(lengths)
    np.array(lengths, np.int64).tofile(folder / "lengths")
    transitions, count = sum(lengths), len(lengths)
    entries = {
        name: {
            "file": Path(files[name].name).name,
            "dtype": dtype.str,
            "shape": [transitions if name in _TRANSITION_ARRAYS else transitions + count, *shape],
        }
        for name, (dtype, shape) in shapes.items()
    }
    header = {"version": STORE_VERSION, **told, "content": content.digest(), "arrays": entries}
    (folder / _HEADER).write_text(json.dumps(header, indent=2) + "\n")


def _check_alike(shapes: dict[str, Any], arrays: Mapping[str, Array], number: int) -> dict[str, Any]:
    found = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
    if shapes and found != shapes:
        name = next(name for name in {**shapes, **found} if found.get(name) != shapes.get(name))
        raise ValueError(
            f"episode {number} has {name} of (dtype, shape) {found.get(name)}, the ones before it "
            f"{shapes.get(name)}: episodes of one dataset must have the same arrays"
        )
    return found


def _check_some(lengths: list[int]) -> None:
    if not lengths:
        raise ValueError("there is no episode with a transition in the data")
