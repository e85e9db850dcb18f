"""The operations of step programs, as they are appended before a program is built.

Shapes: B rows, W slots of the ring cache, H heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Weights = Callable[[], tuple[Tensor | None, Tensor | None]]
"""The present weights of an operation: a matrix (or the scale of a norm) and a vector; either may be missing."""
Table = Callable[[int], Tensor]
"""What positions 0 to n - 1 look up: (n, width)."""

_MOST_POSITIONS = 1 << 18  # of a table; an episode that is longer runs elsewhere


@dataclass(slots=True)
class Record:
    """An operation before it is built: its name, and arguments in which values are given as `Ref`."""

    kind: str
    arguments: tuple[Any, ...]
    weights: Weights | None = None
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    value: int


@dataclass
class Operations:
    """Operations in the order in which they are appended; a value is known by its number.

    Methods that append an operation return the value that it makes.
    """

    widths: list[int] = field(default_factory=list)
    table_limit: int | None = None
    _records: list[Record] = field(default_factory=list)
    _learned: bool = False

    def _value(self, width: int) -> Ref:
        self.widths.append(width)
        return Ref(len(self.widths) - 1)

    def _append(self, kind: str, *arguments: Any, **more: Any) -> None:
        self._records.append(Record(kind, arguments, **more))

    def gather(self, pieces: Sequence[tuple[int, int, int]], symlog: bool = False) -> int:
        """Inputs side by side: (index of the input, its width, how many of its first numbers count as 0)."""
        out = self._value(sum(width for _, width, _ in pieces))
        self._append("gather", out, [list(piece) for piece in pieces], symlog)
        return out.value

    def standardise(self, x: int, weights: Weights, limit: float) -> int:
        """(x - mean) / deviation, cut off at ±limit; `weights` gives deviations and means."""
        out = self._value(self.widths[x])
        self._append("standardise", Ref(x), out, limit, weights=weights)
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
        self._append("linear", Ref(x), out, *activation, self._maybe(add), weights=weights)
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
        self._append("norm", Ref(x), out, kind, number, *activation, self._maybe(add), weights=weights)
        return out.value

    def add_position(self, x: int, table: Table, limit: int | None = None) -> None:
        """x += table[position], in place; `limit`: positions that a learned table has, None for
        one that never changes and goes on for as long as wanted."""
        self._limit(limit)
        self._learned = self._learned or limit is not None
        self._append("add_position", Ref(x), table=table)

    def rotate(self, qkv: int, heads: int, dim: int, table: Table) -> None:
        """Rotary positions on queries and keys of a packed (3, H, D), in place; the table holds D/2 cosines, then
        D/2 sines."""
        self._limit(None)
        self._append("rotate", Ref(qkv), heads, dim, table=table)

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
        self._append("attend", Ref(qkv), out, layer, heads, dim, back, sink, sink_bias, clip, scale)
        return out.value

    def recall(self, state: int, width: int) -> int:
        """A state, by its number in `Memory.states`."""
        out = self._value(width)
        self._append("recall", out, state)
        return out.value

    def gru_cell(self, from_input: int, from_hidden: int, hidden: int, state: int) -> int:
        """The hidden state after this timestep, from the gates' (3 · width) shares of input and hidden state."""
        out = self._value(self.widths[hidden])
        self._append("gru_cell", Ref(from_input), Ref(from_hidden), Ref(hidden), out, state)
        return out.value

    def convolve(self, x: int, width: int, taps: int, state: int, weights: Weights) -> int:
        """silu of a causal convolution, one filter per channel, of the first `width` numbers of x.

        `weights` gives the filters (taps, width), the present timestep's last, and the biases; the state is
        (B, taps - 1, width), the inputs before this one.
        """
        out = self._value(width)
        self._append("convolve", Ref(x), out, taps, state, weights=weights)
        return out.value

    def scan(self, u: int, delta: int, bc: int, xz: int, state: int, weights: Weights) -> int:
        """A timestep of `selective_scan` with a softplus: y (I) from the state (B, I, N).

        `bc` has B and C (N each), `xz` has the gate as its second half; `weights` gives A (I, N) and D (I).
        """
        out = self._value(self.widths[u])
        self._append("scan", Ref(u), Ref(delta), Ref(bc), Ref(xz), out, state, weights=weights)
        return out.value

    def emit(self, x: int) -> None:
        """Writes x to the output, float32 (B, width)."""
        self._append("emit", Ref(x))

    def choose(self, x: int, components: Sequence[tuple[int, float, float]]) -> None:
        """One choice per component of the logits: its size, and the bounds of a probability before normalising.

        Output int64 (B, components); noise: uniform numbers in [0, 1) of that shape.
        """
        sizes, lows, highs = (list(column) for column in zip(*components, strict=True))
        self._append("choose", Ref(x), sizes, lows, highs)

    def squash(self, x: int, low: float, high: float) -> None:
        """tanh(mean + deviation · normal) from A means and A raw deviations, which tanh maps into (low, high).

        Output float32 (B, A); noise: normal numbers of that shape.
        """
        self._append("squash", Ref(x), math.log(low), math.log(high))

    @staticmethod
    def _maybe(value: int | None) -> Ref | int:
        return -1 if value is None else Ref(value)

    def _limit(self, limit: int | None) -> None:
        own = _MOST_POSITIONS if limit is None else limit
        self.table_limit = own if self.table_limit is None else min(own, self.table_limit)
