"""Windows of trajectories that wait to be written into a batch, in memory or still in their files.

A batch is allocated once its windows are drawn and their lengths known; each window then writes its rows to where
they belong, from the file if it is not in memory, without an array of its own in between.

Shapes: B sequences, T transitions of the longest one.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from amago.hindsight import CorruptTrajectoryError
from amago.hindsight.layout import FileIdentity, TrajectoryLayout, held_as, identity_of
from amago.hindsight.stored_array import Source, open_unchecked
from amago.hindsight.trajectory import OBS_KEY_PREFIX
from amago.loading.sample import RLData, TrajectoryArrays

Array = NDArray[Any]
FIELDS = {"rl2s": 1, "time_idxs": 1, "rews": 0, "dones": 0, "actions": 0}
"""Arrays of a sample beside the observations, and by how many rows they exceed the number of transitions."""

ONE_READ_BYTES = 1 << 17
"""Files up to this size are fetched in one read, which costs less than several of their parts."""

TIMESTEP_FIELDS = frozenset(name for name, extra_rows in FIELDS.items() if extra_rows)


class Field(NamedTuple):
    """An array of a sample: its name (an observation's key if `is_obs`) and what a row of it is."""

    name: str
    is_obs: bool
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def extra_rows(self) -> int:
        """1 for what timesteps have, 0 for what transitions have."""
        return 1 if self.is_obs else FIELDS[self.name]

    def __str__(self) -> str:
        return f"obs[{self.name!r}]" if self.is_obs else self.name


Spec = tuple[Field, ...]
_specs: dict[Spec, Spec] = {}


def spec_of(fields: Iterable[Field]) -> Spec:
    """The fields in one order, always as the same object, so that equal ones are told at a glance."""
    spec = tuple(sorted(fields, key=lambda field: (not field.is_obs, field.name)))
    return _specs.setdefault(spec, spec)


class Window(Protocol):
    """A stretch of a trajectory that can write itself into a row of a batch."""

    @property
    def spec(self) -> Spec:
        """Its arrays."""
        ...

    def __len__(self) -> int:
        """Its transitions."""
        ...

    def write_to(self, targets: Sequence[Array], row: int) -> None:
        """Fills the beginning of `row` in each of the targets (B, T or T + 1, ...), in the order of the spec.

        Raises:
            WindowLostError: if its file is gone or damaged.
        """
        ...


class WindowLostError(Exception):
    """The window of a row could not be read from its file; `redraw` draws another in its place."""

    def __init__(self, row: int, redraw: Callable[[], Window], error: Exception) -> None:
        super().__init__(str(error))
        self.row, self.redraw = row, redraw


class MemoryWindow:
    """Transitions `start` to `stop` of arrays in memory, which lie in the order of the spec."""

    __slots__ = ("_arrays", "_start", "_stop", "spec")

    def __init__(self, arrays: Sequence[Array], spec: Spec, start: int, stop: int) -> None:
        self._arrays, self.spec, self._start, self._stop = arrays, spec, start, stop

    @classmethod
    def of(cls, data: TrajectoryArrays) -> MemoryWindow:
        """The whole of a trajectory or sample."""
        arrays, spec = in_order(data)
        return cls(arrays, spec, 0, len(data.rews))

    def __len__(self) -> int:
        return self._stop - self._start

    def write_to(self, targets: Sequence[Array], row: int) -> None:
        """Copies its rows."""
        start, stop = self._start, self._stop
        steps = stop - start
        for target, array, field in zip(targets, self._arrays, self.spec, strict=True):
            if field.is_obs or field.name in TIMESTEP_FIELDS:
                target[row, : steps + 1] = array[start : stop + 1]
            else:
                target[row, :steps] = array[start:stop]


class FileWindow:
    """Transitions `start` to `stop` of a file whose layout is known.

    Args:
        path: the file.
        layout: its layout, `is_direct`.
        spec: `spec_of_layout` of it.
        start: first transition.
        stop: the one after the last.
        on_loss: draws another window, given the error, if this one cannot be read.
        content: of the file, if it was read already.
    """

    __slots__ = ("_content", "_layout", "_on_loss", "_path", "_start", "_stop", "spec")

    def __init__(
        self,
        path: str,
        layout: TrajectoryLayout,
        spec: Spec,
        start: int,
        stop: int,
        on_loss: Callable[[Exception], Window],
        content: io.BytesIO | None = None,
    ) -> None:
        self._path, self._layout, self.spec, self._content = path, layout, spec, content
        self._start, self._stop, self._on_loss = start, stop, on_loss

    def __len__(self) -> int:
        return self._stop - self._start

    def write_to(self, targets: Sequence[Array], row: int) -> None:
        """Reads its rows to their place."""
        try:
            if self._content is not None:
                self._write_from(self._content, targets, row)
                return
            with open_unchecked(self._path) as file:
                if identity_of(file) != self._layout.identity:
                    raise OSError(errno.ESTALE, "another file took its place", self._path)
                self._write_from(content_of(file, self._layout.identity), targets, row)
        except OSError as error:
            raise self._lost(row, error) from error
        except ValueError as error:
            raise self._lost(row, CorruptTrajectoryError(f"{self._path}: {error}")) from error

    def _write_from(self, source: Source, targets: Sequence[Array], row: int) -> None:
        steps = self._stop - self._start
        for target, array, field in zip(targets, self._layout.arrays, self.spec, strict=True):
            rows = steps + (field.is_obs or field.name in TIMESTEP_FIELDS)
            array.read_into(source, target[row, :rows], self._start)

    def _lost(self, row: int, error: Exception) -> WindowLostError:
        return WindowLostError(row, lambda: self._on_loss(error), error)


def in_order(data: TrajectoryArrays) -> tuple[list[Array], Spec]:
    """The arrays of a trajectory in the order of their spec, and the spec."""
    keys = sorted(data.obs)
    arrays = [data.obs[key] for key in keys] + [getattr(data, name) for name in sorted(FIELDS)]
    fields = [Field(key, True, data.obs[key].shape[1:], data.obs[key].dtype) for key in keys]
    for name, array in zip(sorted(FIELDS), arrays[len(keys) :], strict=True):
        fields.append(Field(name, False, array.shape[1:], array.dtype))
    return arrays, spec_of(fields)


def spec_of_layout(layout: TrajectoryLayout) -> Spec:
    """The spec of a file; its arrays are in the layout's order."""
    known = layout.notes.get("spec")
    if known is not None:
        return cast("Spec", known)
    fields = []
    for array in layout.arrays:
        is_obs = array.name.startswith(OBS_KEY_PREFIX)
        name = array.name.removeprefix(OBS_KEY_PREFIX) if is_obs else array.name
        fields.append(Field(name, is_obs, array.shape[1:], held_as(array)))
    layout.notes["spec"] = spec = spec_of(fields)
    return spec


def content_of(file: io.FileIO, identity: FileIdentity) -> Source:
    """The content of a small file, or the file."""
    return io.BytesIO(file.read(identity.size)) if identity.size <= ONE_READ_BYTES else file


def read_window(window: Window) -> RLData:
    """The window as a sample of its own."""
    targets = [np.empty((1, len(window) + f.extra_rows, *f.row_shape), f.dtype) for f in window.spec]
    window.write_to(targets, 0)
    fields = {
        field.name: target[0] for field, target in zip(window.spec, targets, strict=True) if not field.is_obs
    }
    obs = {field.name: target[0] for field, target in zip(window.spec, targets, strict=True) if field.is_obs}
    return RLData(obs=obs, **fields)
