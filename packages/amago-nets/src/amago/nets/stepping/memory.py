"""What trajectory encoders remember, as a step program reads and writes it.

Shapes: B rows, W slots of a ring cache, H heads, D head dimension, I channels and N states of a Mamba, K timesteps
that its convolution sees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amago.kernels.step_program import Memory
from amago.nets.traj_encoders.mamba import MambaHiddenState
from amago.nets.transformer.cache import TformerHiddenState

Taken = tuple[Memory, Any]
"""What a step reads and writes, and the hidden state after it."""


class NoMemory:
    """Of an encoder without memory, which passes hidden states on."""

    def take(self, batch: int, hidden_state: Any) -> Taken | None:
        """For B rows."""
        return Memory(), hidden_state

    def can_forget(self, hidden_state: Any) -> bool:
        """Whether `forget` does what the encoder's `reset_hidden_state` does, in place."""
        return hidden_state is None  # else it is passed on, and the encoder's to forget

    def forget(self, hidden_state: Any, rows: slice, starts: Tensor) -> None:
        """Does nothing: there is nothing to forget."""


class RingMemory:
    """The ring caches of a Transformer, written in place.

    Args:
        layers, heads, dim: sizes of the caches.
    """

    def __init__(self, layers: int, heads: int, dim: int) -> None:
        self.layers, self.heads, self.dim = layers, heads, dim
        self._memory = Memory()

    def take(self, batch: int, hidden_state: Any) -> Taken | None:
        """For B rows; None for a hidden state of another kind. What was usable before is not looked at again."""
        if type(hidden_state) is not TformerHiddenState:
            return None
        keys, values = hidden_state.key_cache.data, hidden_state.val_cache.data
        lengths = hidden_state.seq_lens
        memory = self._memory
        if keys is memory.keys and values is memory.values and lengths is memory.lengths:
            return (memory, hidden_state) if lengths.shape[0] == batch else None
        ring = (self.layers, batch, keys.shape[2], self.heads, self.dim)
        if not _usable(keys, ring) or not _usable(values, ring):
            return None
        if lengths.shape != (batch,) or lengths.dtype != torch.int64 or not lengths.is_contiguous():
            return None
        self._memory = memory = Memory(keys=keys, values=values, lengths=lengths)
        return memory, hidden_state

    def can_forget(self, hidden_state: Any) -> bool:
        """Whether `forget` does what the encoder's `reset_hidden_state` does, in place."""
        return True

    def forget(self, hidden_state: TformerHiddenState, rows: slice, starts: Tensor) -> None:
        """Sets the rows that start anew, (R,) bool, to no steps among `rows`."""
        hidden_state.seq_lens[rows].masked_fill_(starts, 0)


class RecurrentMemory:
    """The hidden states of a GRU's layers, new ones at every step.

    Args:
        layers, width: sizes.
    """

    def __init__(self, layers: int, width: int) -> None:
        self.layers, self.width = layers, width

    def take(self, batch: int, hidden_state: Any) -> Taken | None:
        """For B rows, zeros if there is none yet; None for a hidden state of another kind."""
        shape = (self.layers, batch, self.width)
        if hidden_state is None:
            hidden_state = torch.zeros(shape)
        if not isinstance(hidden_state, Tensor) or not _usable(hidden_state, shape):
            return None
        after = torch.empty(shape)
        return Memory(states=list(zip(hidden_state.unbind(), after.unbind(), strict=True))), after

    def can_forget(self, hidden_state: Any) -> bool:
        """Whether `forget` does what the encoder's `reset_hidden_state` does, in place."""
        return hidden_state is not None  # `take` makes zeros in its place, which nobody else holds

    def forget(self, hidden_state: Tensor, rows: slice, starts: Tensor) -> None:
        """Sets the rows that start anew, (R,) bool, to zero among `rows`."""
        hidden_state[:, rows].masked_fill_(starts[:, None], 0.0)


class MambaMemory:
    """The states of Mamba layers, new ones at every step: a layer's convolution, then its recurrence, and so on.

    Args:
        layers: their number.
        conv: (K - 1, I) of each layer.
        ssm: (I, N) of each layer.
    """

    def __init__(self, layers: int, conv: tuple[int, int], ssm: tuple[int, int]) -> None:
        self.layers, self.conv, self.ssm = layers, conv, ssm

    def take(self, batch: int, hidden_state: Any) -> Taken | None:
        """For B rows; None for a hidden state of another kind, or none."""
        if type(hidden_state) is not MambaHiddenState:
            return None
        before = (hidden_state.conv, hidden_state.ssm)
        shapes = ((batch, *self.conv), (batch, *self.ssm))
        for parts, shape in zip(before, shapes, strict=True):
            if len(parts) != self.layers or not all(_usable(part, shape) for part in parts):
                return None
        after = tuple(torch.empty(self.layers, *shape).unbind() for shape in shapes)
        states = [
            (before[kind][layer], after[kind][layer]) for layer in range(self.layers) for kind in (0, 1)
        ]
        return Memory(states=states), MambaHiddenState(*after)

    def can_forget(self, hidden_state: Any) -> bool:
        """Whether `forget` does what the encoder's `reset_hidden_state` does, in place."""
        return True

    def forget(self, hidden_state: MambaHiddenState, rows: slice, starts: Tensor) -> None:
        """Sets the rows that start anew, (R,) bool, to zero among `rows`."""
        for state in (*hidden_state.conv, *hidden_state.ssm):
            state[rows].masked_fill_(starts[:, None, None], 0.0)


MemoryKind = NoMemory | RingMemory | RecurrentMemory | MambaMemory


def _usable(x: Tensor, shape: tuple[int, ...]) -> bool:
    return x.shape == shape and x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()
