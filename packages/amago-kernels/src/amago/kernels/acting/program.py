"""`Program`: operations on one timestep, appended one by one, compiled once and then run for every step.

Shapes: B rows, W slots of a ring cache, H heads, D head dimension, I channels and N states of a Mamba layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amago.kernels.backends import Backend, requested
from amago.kernels.native import ACTING

Table = Callable[[int], Tensor]
"""Returns the vectors (n, width) of positions 0 to n - 1."""
Activation = tuple[str, float]
"""none, relu, leaky_relu (with its slope), gelu or mish."""

NO_ACTIVATION: Activation = ("none", 0.0)
_FIRST_POSITIONS = 1024
_MAX_POSITIONS = 1 << 18  # entries of a table; longer episodes run through the modules


def unavailable() -> list[str]:
    """Why programs cannot run here; empty if they can. Builds the extension if necessary.

    The reasons are those of the compiler, or a call of `use_backend` that asks for another backend than C++.
    """
    if requested(None) not in (None, Backend.CPP):
        return [f"use_backend asks for {requested(None)}"]
    return ACTING.missing(build=True)


@dataclass(slots=True, kw_only=True)
class StateBuffers:
    """Memory of the rows' hidden states; contiguous float32 tensors.

    Args:
        keys: ring caches of all attention layers, (layers, B, W, H, D), updated in place.
        values: ring caches like `keys`.
        lengths: (B,) int64, steps that each row has taken; a step increments them.
        states: states of recurrent layers, each (B, ...): input buffers and output buffers of the step.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    lengths: Tensor | None = None
    states: Sequence[tuple[Tensor, Tensor]] = ()


@dataclass(frozen=True, slots=True)
class _Value:
    """A value among the arguments of an operation."""

    index: int


class Program:
    """Operations on one timestep; values are known by their index.

    Methods named after operations append one, and return the value that it computes. After the last one call
    `build` once, then `run` for every timestep. Weights are copied by `build`: to act with others, build
    another program.
    """

    def __init__(self) -> None:
        self.widths: list[int] = []
        self.table_limit: int | None = None
        self._operations: list[tuple[str, tuple[Any, ...]]] = []
        self._tables: dict[int, Table] = {}
        self._filled: list[Tensor] = []  # the native program reads tables in place
        self._positions = -1
        self._native: Any = None
        self._done = self._undrawable = 0

    def gather(self, parts: Sequence[tuple[int, int, int]], symlog: bool = False) -> int:
        """Concatenates inputs: (index of the input, its width, how many of its first elements become 0)."""
        out = self._new_value(sum(width for _, width, _ in parts))
        return self._append("gather", out, [list(part) for part in parts], symlog)

    def standardise(self, x: int, deviation: Tensor, mean: Tensor, limit: float) -> int:
        """(x - mean) / deviation, clamped to ±limit."""
        out = self._new_value(self.widths[x])
        return self._append("standardise", _Value(x), out, limit, deviation, mean)

    def linear(
        self,
        x: int,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation = NO_ACTIVATION,
        add: int | None = None,
    ) -> int:
        """activation(x W^T + b) + add, for W (outputs, inputs)."""
        out = self._new_value(weight.shape[0])
        return self._append("linear", _Value(x), out, weight, bias, _epilogue(activation, add))

    def norm(
        self,
        x: int,
        kind: str,
        number: float = 0.0,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        activation: Activation = NO_ACTIVATION,
        add: int | None = None,
    ) -> int:
        """activation(norm(x) * scale + shift) + add.

        Args:
            kind: none, layer, rms, unit_ball, hypersphere or simplex.
            number: epsilon, or the group size of a simplex.
        """
        out = self._new_value(self.widths[x])
        epilogue = _epilogue(activation, add)
        return self._append("norm", _Value(x), out, kind, number, scale, shift, epilogue)

    def add_position(self, x: int, table: Table, limit: int | None = None) -> None:
        """x += table[position], in place; `limit` is the number of positions that exist, None for any number."""
        self._add_table(table, limit)
        self._append("add_position", _Value(x))

    def rotate(self, qkv: int, heads: int, dim: int, table: Table) -> None:
        """Rotary positions on queries and keys of a packed (3, H, D), in place.

        The table holds D/2 cosines, then D/2 sines.
        """
        self._add_table(table, None)
        self._append("rotate", _Value(qkv), heads, dim)

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
        out = self._new_value(heads * dim)
        clip = math.inf if logit_clip is None else logit_clip
        back = -1 if window is None else window
        scale = 1.0 / math.sqrt(dim)
        return self._append("attend", _Value(qkv), out, layer, heads, dim, back, sink, sink_bias, clip, scale)

    def read_state(self, state: int, width: int) -> int:
        """A state of the previous step, by its index in `StateBuffers.states`."""
        return self._append("read_state", self._new_value(width), state)

    def gru_cell(self, from_input: int, from_hidden: int, hidden: int, state: int) -> int:
        """The next hidden state, from the contributions (3 * width) of input and hidden state to the gates."""
        out = self._new_value(self.widths[hidden])
        return self._append("gru_cell", _Value(from_input), _Value(from_hidden), _Value(hidden), out, state)

    def convolve(self, x: int, state: int, weight: Tensor, bias: Tensor) -> int:
        """silu of a causal convolution, one filter per channel, of the first I elements of x.

        `weight` is (K, I), the current timestep last; the state holds the K - 1 inputs before this one.
        """
        taps, width = weight.shape
        return self._append("convolve", _Value(x), self._new_value(width), taps, state, weight, bias)

    def scan(self, u: int, delta: int, bc: int, xz: int, state: int, rates: Tensor, skip: Tensor) -> int:
        """A step of `selective_scan` with softplus: y (I) from the state (B, I, N).

        `bc` holds B and C (N each), `xz` the gate as its second half; `rates` is A (I, N), `skip` D (I).
        """
        out = self._new_value(self.widths[u])
        inputs = (_Value(u), _Value(delta), _Value(bc), _Value(xz))
        return self._append("scan", *inputs, out, state, rates, skip)

    def emit(self, x: int) -> None:
        """Outputs x, float32 (B, width)."""
        self._append("emit", _Value(x))

    def choose(self, x: int, components: Sequence[tuple[int, float, float]]) -> None:
        """Outputs one categorical choice per component of the logits, int64 (B, components).

        Args:
            x: the logits.
            components: number of choices, and the bounds of a probability before normalisation.

        Sampling takes uniform noise in [0, 1) of the output's shape.
        """
        self._append("choose", _Value(x), list(components))

    def squash(self, x: int, low: float, high: float) -> None:
        """Outputs tanh(mean + deviation * noise), float32 (B, A), for standard normal noise.

        x holds A means and A raw deviations, which tanh maps into (low, high) on a logarithmic scale.
        """
        self._append("squash", _Value(x), math.log(low), math.log(high))

    def build(self) -> None:
        """Creates the native program; nothing can be appended afterwards."""
        module = ACTING.load()
        self._native, self._done, self._undrawable = module.Program(), module.DONE, module.UNDRAWABLE
        for offset, width in zip(self._offsets(module.row_stride), self.widths, strict=True):
            self._native.value(offset, width)
        for kind, arguments in self._operations:
            kept: list[Tensor] = []  # contiguous copies, until the native program has its own
            getattr(self._native, kind)(*(_native_argument(argument, kept) for argument in arguments))
        self._operations.clear()
        if self.table_limit is not None:
            self._fill_tables(min(_FIRST_POSITIONS, self.table_limit))

    def run(
        self,
        batch: int,
        inputs: Sequence[tuple[int, int]],
        positions: Tensor,
        buffers: StateBuffers,
        noise: Tensor | None,
        out: Tensor,
    ) -> bool:
        """Computes one timestep of every row.

        Args:
            batch: B.
            inputs: address and width of each input, contiguous float32 (B, width).
            positions: (B, ...) int64 with one number per row, contiguous.
            buffers: hidden states.
            noise: see `choose` and `squash`; None for the most likely action.
            out: the output of the last operation, contiguous.

        Returns:
            False if a position or a length of a ring cache is out of range; then nothing was written.

        Raises:
            RuntimeError: if an action cannot be drawn, because probabilities are not finite.
        """
        keys, values, lengths = buffers.keys, buffers.values, buffers.lengths
        while True:
            code: int = self._native.run(
                batch,
                inputs,
                positions.data_ptr(),
                self._positions,
                0 if keys is None else keys.data_ptr(),
                0 if values is None else values.data_ptr(),
                0 if lengths is None else lengths.data_ptr(),
                0 if keys is None else keys.shape[2],
                [(before.data_ptr(), after.data_ptr()) for before, after in buffers.states],
                0 if noise is None else noise.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
            if code == self._done:
                return True
            if code == self._undrawable:
                raise RuntimeError("no action can be drawn: the policy's probabilities are not finite")
            if code < 0 or self.table_limit is None or code >= self.table_limit:
                return False
            self._fill_tables(min(max(2 * self._positions, code + 1), self.table_limit))

    def _new_value(self, width: int) -> _Value:
        self.widths.append(width)
        return _Value(len(self.widths) - 1)

    def _append(self, kind: str, *arguments: Any) -> int:
        self._operations.append((kind, arguments))
        return len(self.widths) - 1

    def _add_table(self, table: Table, limit: int | None) -> None:
        self._tables[len(self._operations)] = table
        own = _MAX_POSITIONS if limit is None else limit
        self.table_limit = own if self.table_limit is None else min(own, self.table_limit)

    def _fill_tables(self, positions: int) -> None:
        filled = []
        for operation, table in self._tables.items():
            filled.append(table(positions).detach().to(torch.float32, copy=True).contiguous())
            self._native.set_table(operation, (filled[-1].data_ptr(), *filled[-1].shape))
        self._filled, self._positions = filled, positions

    def _offsets(self, stride: Callable[[int], int]) -> list[int]:
        """Workspace offset of every value; values whose lifetimes do not overlap share memory."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, (_, arguments) in enumerate(self._operations):
            for argument in arguments:
                for item in argument if isinstance(argument, tuple) else (argument,):
                    if isinstance(item, _Value):
                        first.setdefault(item.index, number)
                        last[item.index] = number
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


def _epilogue(activation: Activation, add: int | None) -> tuple[str, float, _Value | int]:
    """Activation, slope, and the value that is added."""
    return (*activation, -1 if add is None else _Value(add))


def _native_argument(argument: Any, kept: list[Tensor]) -> Any:
    """An argument as the native program takes it: values by index, tensors as (address, rows, columns)."""
    if argument is None:
        return (0, 0, 0)
    if isinstance(argument, Tensor):
        kept.append(argument.detach().contiguous())
        width = argument.shape[-1]
        return (kept[-1].data_ptr(), argument.numel() // width, width)
    if isinstance(argument, tuple):
        return tuple(_native_argument(item, kept) for item in argument)
    return argument.index if isinstance(argument, _Value) else argument
