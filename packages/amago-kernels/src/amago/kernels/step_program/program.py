"""`StepProgram`: appending operations, giving them weights, running them.

Shapes: B rows, W slots of the ring cache, H heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from amago.kernels.backends import Backend, requested
from amago.kernels.native import STEP_PROGRAM

Weights = Callable[[], tuple[Tensor | None, Tensor | None]]
"""The present weights of an operation: a matrix (or the scale of a norm) and a vector; either may be missing."""
Table = Callable[[int], Tensor]
"""What positions 0 to n - 1 look up: (n, width)."""

_FIRST_POSITIONS = 1024
_MOST_POSITIONS = 1 << 18  # of a table; an episode that is longer runs elsewhere


def wanted() -> bool:
    """Whether `use_backend` leaves room for a program."""
    return requested(None) in (None, Backend.CPP)


def why_not() -> list[str]:
    """Why no program can run here, such as no compiler; nothing if one can. Builds it if need be."""
    return STEP_PROGRAM.failures()


def native_watch() -> Any:
    """An empty `Watch` of dictionary entries and tensors, see csrc/step_program.cpp."""
    return STEP_PROGRAM.load().Watch()


@dataclass(slots=True, kw_only=True)
class Memory:
    """What the rows remember, written in place unless said otherwise; contiguous float32 tensors.

    Args:
        keys: of the ring caches of all attention layers, (layers, B, W, H, D).
        values: likewise.
        lengths: (B,) int64, steps that each row has taken; a run adds one.
        hidden: of all recurrent layers, (layers, B, width); only read.
        new_hidden: where their next state goes, likewise.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    lengths: Tensor | None = None
    hidden: Tensor | None = None
    new_hidden: Tensor | None = None


@dataclass(slots=True)
class _Record:
    """An operation before it is built: its name, and arguments in which values are given as `_Ref`."""

    kind: str
    arguments: tuple[Any, ...]
    weights: Weights | None = None
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class _Ref:
    value: int


@dataclass
class StepProgram:
    """Operations in the order in which they are appended; a value is known by its number.

    Methods that append an operation return the value that it makes. After the last one: `build`, then `refresh`
    whenever weights have changed, and `run` for every timestep.
    """

    widths: list[int] = field(default_factory=list)
    table_limit: int | None = None
    _records: list[_Record] = field(default_factory=list)
    _native: Any = None
    _numbers: list[int] = field(default_factory=list)
    _tables: list[Tensor] = field(default_factory=list)
    _positions: int = 0
    _learned: bool = False
    _done: int = 0
    _undrawable: int = 0

    def _value(self, width: int) -> _Ref:
        self.widths.append(width)
        return _Ref(len(self.widths) - 1)

    def _append(self, kind: str, *arguments: Any, **more: Any) -> None:
        self._records.append(_Record(kind, arguments, **more))

    def gather(self, pieces: Sequence[tuple[int, int, int]], symlog: bool = False) -> int:
        """Inputs side by side: (index of the input, its width, how many of its first numbers count as 0)."""
        out = self._value(sum(width for _, width, _ in pieces))
        self._append("gather", out, [list(piece) for piece in pieces], symlog)
        return out.value

    def standardise(self, x: int, weights: Weights, limit: float) -> int:
        """(x - mean) / deviation, cut off at ±limit; `weights` gives deviations and means."""
        out = self._value(self.widths[x])
        self._append("standardise", _Ref(x), out, limit, weights=weights)
        return out.value

    def linear(
        self,
        x: int,
        width: int,
        weights: Weights,
        activation: tuple[str, float] = ("none", 0.0),
        add: int | None = None,
    ) -> int:
        """activation(x W^T + b) + add, for W (width, inputs); the number is a leaky ReLU's slope."""
        out = self._value(width)
        self._append("linear", _Ref(x), out, *activation, self._maybe(add), weights=weights)
        return out.value

    def norm(
        self,
        x: int,
        kind: str,
        number: float = 0.0,
        weights: Weights | None = None,
        activation: tuple[str, float] = ("none", 0.0),
        add: int | None = None,
    ) -> int:
        """activation(norm(x)) + add; kinds: none, layer, rms, unit_ball, hypersphere (number: epsilon), simplex
        (number: size of a group)."""
        out = self._value(self.widths[x])
        self._append("norm", _Ref(x), out, kind, number, *activation, self._maybe(add), weights=weights)
        return out.value

    def add_position(self, x: int, table: Table, limit: int | None = None) -> None:
        """x += table[position], in place; `limit`: positions that a learned table has, None for
        one that never changes and goes on for as long as wanted."""
        self._limit(limit)
        self._learned = self._learned or limit is not None
        self._append("add_position", _Ref(x), table=table)

    def rotate(self, qkv: int, heads: int, dim: int, table: Table) -> None:
        """Rotary positions on queries and keys of a packed (3, H, D), in place; the table holds D/2 cosines, then
        D/2 sines."""
        self._limit(None)
        self._append("rotate", _Ref(qkv), heads, dim, table=table)

    def attend(
        self,
        qkv: int,
        layer: int,
        heads: int,
        dim: int,
        *,
        window: int | None = None,
        sink: int = 0,
        sink_bias: float = 0.0,
        logit_clip: float | None = None,
    ) -> int:
        """Attention of a packed (3, H, D) to the layer's ring cache, options as in `attention_step`: (H, D)."""
        out = self._value(heads * dim)
        clip = math.inf if logit_clip is None else logit_clip
        back = -1 if window is None else window
        scale = 1.0 / math.sqrt(dim)
        self._append("attend", _Ref(qkv), out, layer, heads, dim, back, sink, sink_bias, clip, scale)
        return out.value

    def recall(self, layer: int, width: int) -> int:
        """A recurrent layer's hidden state."""
        out = self._value(width)
        self._append("recall", out, layer)
        return out.value

    def gru_cell(self, from_input: int, from_hidden: int, hidden: int, layer: int) -> int:
        """The hidden state after this timestep, from the gates' (3 · width) shares of input and hidden state."""
        out = self._value(self.widths[hidden])
        self._append("gru_cell", _Ref(from_input), _Ref(from_hidden), _Ref(hidden), out, layer)
        return out.value

    def emit(self, x: int) -> None:
        """Writes x to the output, float32 (B, width)."""
        self._append("emit", _Ref(x))

    def choose(self, x: int, components: Sequence[tuple[int, float, float]]) -> None:
        """One choice per component of the logits: its size, and the bounds of a probability before normalising.

        Output int64 (B, components); noise: uniform numbers in [0, 1) of that shape.
        """
        sizes, lows, highs = (list(column) for column in zip(*components, strict=True))
        self._append("choose", _Ref(x), sizes, lows, highs)

    def squash(self, x: int, low: float, high: float) -> None:
        """tanh(mean + deviation · normal) from A means and A raw deviations, which tanh maps into (low, high).

        Output float32 (B, A); noise: normal numbers of that shape.
        """
        self._append("squash", _Ref(x), math.log(low), math.log(high))

    @staticmethod
    def _maybe(value: int | None) -> _Ref | int:
        return -1 if value is None else _Ref(value)

    def _limit(self, limit: int | None) -> None:
        own = _MOST_POSITIONS if limit is None else limit
        self.table_limit = own if self.table_limit is None else min(own, self.table_limit)

    def _offsets(self, stride: Callable[[int], int]) -> list[int]:
        """A place in the workspace for every value; values that are never needed together share theirs."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, record in enumerate(self._records):
            for argument in record.arguments:
                if isinstance(argument, _Ref):
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
        self._native, self._done, self._undrawable = module.Program(), module.DONE, module.UNDRAWABLE
        for offset, width in zip(self._offsets(module.row_stride), self.widths, strict=True):
            self._native.value(offset, width)
        for record in self._records:
            plain = [a.value if isinstance(a, _Ref) else a for a in record.arguments]
            self._numbers.append(getattr(self._native, record.kind)(*plain))

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
        tables = []
        for number, record in zip(self._numbers, self._records, strict=True):
            if record.table is not None:
                table = record.table(positions).detach().to(torch.float32).contiguous()
                self._set(number, table, None)
                tables.append(table)
        self._tables = tables  # the program reads them where they lie
        self._positions = positions

    def run(
        self,
        batch: int,
        inputs: Sequence[tuple[int, int]],
        positions: Tensor,
        memory: Memory,
        noise: Tensor | None,
        out: Tensor,
    ) -> bool:
        """One timestep of every row.

        Args:
            batch: B.
            inputs: address and distance between rows, in numbers, of each float32 input.
            positions: (B, ...) int64 with one number per row, contiguous.
            memory: of the rows.
            noise: see `choose` and `squash`; None for the likeliest action.
            out: what the last operation fills, contiguous.

        Returns:
            False if a row's position has no entry in a table and cannot get one; then nothing was done.

        Raises:
            RuntimeError: if a row's choice cannot be drawn, because probabilities are not finite.
        """
        while True:
            m = memory
            beyond = self._native.run(
                batch,
                inputs,
                positions.data_ptr(),
                1,
                -1 if self.table_limit is None else self._positions,
                0 if m.keys is None else m.keys.data_ptr(),
                0 if m.values is None else m.values.data_ptr(),
                0 if m.lengths is None else m.lengths.data_ptr(),
                0 if m.keys is None else m.keys.shape[2],
                0 if m.hidden is None else m.hidden.data_ptr(),
                0 if m.new_hidden is None else m.new_hidden.data_ptr(),
                0 if noise is None else noise.data_ptr(),
                out.data_ptr(),
                noise is not None,
                torch.get_num_threads(),
            )
            if beyond == self._done:
                return True
            if beyond == self._undrawable:
                raise RuntimeError("no action can be drawn: the policy's probabilities are not finite")
            if self.table_limit is None or beyond < 0 or beyond >= self.table_limit:
                return False
            self._fill_tables(min(max(2 * self._positions, beyond + 1), self.table_limit))
