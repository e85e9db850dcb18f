"""`StepProgram`: giving operations their places and weights, and running them.

Shapes: B rows, W slots of the ring cache, H heads, D head dimension.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from amago.kernels.backends import Backend, requested
from amago.kernels.native import STEP_PROGRAM
from amago.kernels.step_program.operations import Operations, Ref

_FIRST_POSITIONS = 1024


def wanted() -> bool:
    """Whether `use_backend` leaves room for a program."""
    return requested(None) in (None, Backend.CPP)


def why_not() -> list[str]:
    """Why no program can run here, such as no compiler; nothing if one can. Builds it if need be."""
    return STEP_PROGRAM.failures()


def peak_rate() -> float:
    """Floating point operations per second that one thread reaches in registers: what no program exceeds."""
    rate: float = STEP_PROGRAM.load().peak_rate()
    return rate


def native_watch() -> Any:
    """An empty `Watch` of dictionary entries and tensors, see csrc/step_program.cpp."""
    return STEP_PROGRAM.load().Watch()


@dataclass(slots=True, kw_only=True)
class Memory:
    """What the rows remember; contiguous float32 tensors.

    Args:
        keys: of the ring caches of all attention layers, (layers, B, W, H, D), written in place.
        values: likewise.
        lengths: (B,) int64, steps that each row has taken; a run adds one.
        states: of recurrent layers, each (B, ...): where it lies before the step, and where it is written.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    lengths: Tensor | None = None
    states: Sequence[tuple[Tensor, Tensor]] = ()


@dataclass(slots=True)
class Run:
    """A timestep of every row. One that is dropped unfinished was not taken: the memory's lengths stay.

    Attributes:
        beyond: the position without an entry that kept rows from being released, None if none did.
    """

    _native: Any
    _codes: Any
    beyond: int | None = None

    def release(self, rows: int) -> bool:
        """Lets the first `rows` rows be computed, which hold what they are to be computed from.

        Returns:
            False if that cannot be: a row's position has no entry in a table, or the program has begun another one
            since. Then the timestep is of no use any more.

        Raises:
            ValueError: if there are fewer rows than were released before, or more than there are.
        """
        code: int = self._native.release(rows)
        if code == self._codes.WRONG_ROWS:
            raise ValueError(
                f"rows is {rows}: rows are released in order, up to the number that was prepared"
            )
        if code >= 0:
            self.beyond = code
        return bool(code == self._codes.DONE)

    def finish(self) -> None:
        """Waits until every row is done.

        Raises:
            RuntimeError: if a row's choice cannot be drawn, because probabilities are not finite; or if rows were
                not released.
            MemoryError: if there is no memory left.
        """
        code: int = self._native.finish()
        if code == self._codes.UNDRAWABLE:
            raise RuntimeError("no action can be drawn: the policy's probabilities are not finite")
        if code == self._codes.OUT_OF_MEMORY:
            raise MemoryError("there is no memory left for a timestep")
        if code != self._codes.DONE:
            raise RuntimeError("the timestep cannot be finished: not all of its rows were released")


@dataclass
class StepProgram(Operations):
    """Operations that can be run.

    After the last one is appended: `build`, then `refresh` whenever weights have changed, and `run` for every
    timestep, or `begin` and `finish` with other things to do between the two.
    """

    _native: Any = None
    _numbers: list[int] = field(default_factory=list)
    _tables: list[Tensor] = field(default_factory=list)
    _positions: int = 0
    _filling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _codes: Any = None

    def _offsets(self, stride: Callable[[int], int]) -> list[int]:
        """A place in the workspace for every value; values that are never needed together share theirs."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, record in enumerate(self._records):
            for argument in record.arguments:
                if isinstance(argument, Ref):
                    first.setdefault(argument.value, number)
                    last[argument.value] = number
        offsets = [0] * len(self.widths)
        placed: list[int] = []
        for value in sorted(first, key=lambda v: first[v]):
            placed = [other for other in placed if last[other] >= first[value]]
            offset = 0
            for other in sorted(placed, key=lambda v: offsets[v]):
                if offset + stride(self.widths[value]) <= offsets[other]:
                    break
                offset = max(offset, offsets[other] + stride(self.widths[other]))
            offsets[value] = offset
            placed.append(value)
        return offsets

    def build(self) -> None:
        """Makes the native program; nothing can be appended afterwards."""
        module = STEP_PROGRAM.load()
        self._native, self._codes = module.Program(), module
        for offset, width in zip(self._offsets(module.row_stride), self.widths, strict=True):
            self._native.value(offset, width)
        for record in self._records:
            plain = [a.value if isinstance(a, Ref) else a for a in record.arguments]
            self._numbers.append(getattr(self._native, record.kind)(*plain))

    def operations(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name of each operation, and inputs and outputs of those that are linear layers."""
        found: list[tuple[str, tuple[int, ...]]] = []
        for record in self._records:
            sizes = [self.widths[a.value] for a in record.arguments[:2] if isinstance(a, Ref)]
            found.append((record.kind, tuple(sizes) if record.kind == "linear" else ()))
        return found

    def profile(self) -> list[float]:
        """Seconds that each operation has taken in runs by one thread, counted from the first call of this on."""
        seconds: list[float] = self._native.profile()
        return seconds

    def refresh(self) -> None:
        """Gives every operation its present weights; they are copied."""
        for number, record in zip(self._numbers, self._records, strict=True):
            if record.weights is not None:
                self._set(number, *record.weights())
        if self.table_limit is not None and (self._learned or not self._tables):
            self._fill_tables(min(max(self._positions, _FIRST_POSITIONS), self.table_limit))

    def _set(self, number: int, matrix: Tensor | None, vector: Tensor | None) -> None:
        if matrix is not None:
            matrix = matrix.detach().contiguous()
        if vector is not None:
            vector = vector.detach().contiguous()
        rows, columns = (0, 0) if matrix is None else (matrix.numel() // matrix.shape[-1], matrix.shape[-1])
        self._native.set(
            number,
            0 if matrix is None else matrix.data_ptr(),
            rows,
            columns,
            0 if vector is None else vector.data_ptr(),
            0 if vector is None else len(vector),
        )

    def _fill_tables(self, positions: int) -> None:
        with self._filling:  # of several threads, one after the other, and never less than there was
            positions, tables = max(positions, self._positions), []
            for number, record in zip(self._numbers, self._records, strict=True):
                if record.table is not None:
                    table = record.table(positions).detach().to(torch.float32, copy=True).contiguous()
                    self._set(number, table, None)
                    tables.append(table)
            self._tables = tables  # the program reads them where they lie
            self._positions = positions

    def prepare(
        self,
        batch: int,
        inputs: Sequence[tuple[int, int]],
        positions: Tensor,
        memory: Memory,
        noise: Tensor | None,
        out: Tensor,
        keep: object = None,
    ) -> Run:
        """Prepares one timestep of every row; helper threads may compute those that are released.

        Args:
            batch: B.
            inputs: address and distance between rows, in numbers, of each float32 input.
            positions: (B, ...) int64 with one number per row, contiguous.
            memory: of the rows.
            noise: see `choose` and `squash`; None for the likeliest action.
            out: what the last operation fills, contiguous.
            keep: what else must live until the step is finished, such as the inputs' tensors.

        Returns:
            The timestep. Until it is finished, nobody may write to the rows that were released, or read `out` or
            what the memory becomes.
        """
        m = memory
        run = self._native.prepare(
            batch,
            inputs,
            positions.data_ptr(),
            1,
            -1 if self.table_limit is None else self._positions,
            0 if m.keys is None else m.keys.data_ptr(),
            0 if m.values is None else m.values.data_ptr(),
            0 if m.lengths is None else m.lengths.data_ptr(),
            0 if m.keys is None else m.keys.shape[2],
            [(before.data_ptr(), after.data_ptr()) for before, after in m.states],
            0 if noise is None else noise.data_ptr(),
            out.data_ptr(),
            noise is not None,
            torch.get_num_threads(),
            (self, positions, memory, noise, out, keep),
        )
        return Run(run, self._codes)

    def begin(
        self,
        batch: int,
        inputs: Sequence[tuple[int, int]],
        positions: Tensor,
        memory: Memory,
        noise: Tensor | None,
        out: Tensor,
        keep: object = None,
    ) -> Run | None:
        """`prepare`, and release all rows; tables grow as they must.

        Returns:
            None if a row's position has no entry in a table and cannot get one; then nothing was done.
        """
        while True:
            run = self.prepare(batch, inputs, positions, memory, noise, out, keep)
            if run.release(batch):
                return run
            beyond = run.beyond
            if self.table_limit is None or beyond is None or beyond >= self.table_limit:
                return None
            self._fill_tables(min(max(2 * self._positions, beyond + 1), self.table_limit))

    def run(
        self,
        batch: int,
        inputs: Sequence[tuple[int, int]],
        positions: Tensor,
        memory: Memory,
        noise: Tensor | None,
        out: Tensor,
    ) -> bool:
        """`begin` and `finish`; False where `begin` returns None.

        Raises:
            RuntimeError: if a row's choice cannot be drawn, because probabilities are not finite.
        """
        run = self.begin(batch, inputs, positions, memory, noise, out)
        if run is None:
            return False
        run.finish()
        return True
