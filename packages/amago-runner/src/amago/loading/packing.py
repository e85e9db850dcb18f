"""A batch in one piece of memory, so that it moves between processes and to a GPU as one thing.

Every tensor that a loader worker hands over costs a shared-memory file and a message, and every copy to a GPU a
launch; a batch has nine or more tensors.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amago.agent.batch import Batch

ALIGNMENT = 64
"""Bytes; every tensor begins at a multiple of it, which suits any dtype."""

Allocate = Callable[[int], Tensor]
"""Makes a buffer, uint8 (n,)."""


class Place(NamedTuple):
    """Where a tensor lies in the buffer; `key` is a field of Batch, or a key of its observations."""

    key: str
    is_obs: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class Part(NamedTuple):
    """A tensor that a batch is to have."""

    key: str
    is_obs: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The bytes of a batch, uint8 (n,), and where its tensors lie in them."""

    buffer: Tensor
    places: tuple[Place, ...]

    @classmethod
    def empty(cls, parts: Sequence[Part], allocate: Allocate) -> PackedBatch:
        """Memory for a batch of these parts, not yet filled."""
        places: list[Place] = []
        end = 0
        for part in parts:
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            places.append(Place(*part, offset))
            end = offset + places[-1].nbytes
        return cls(allocate(end), tuple(places))

    def arrays(self) -> list[NDArray[Any]]:
        """The parts as arrays over the buffer, in the order of `places`."""
        memory = self.buffer.numpy()
        return [
            np.ndarray(place.shape, place.dtype, buffer=memory, offset=place.offset) for place in self.places
        ]

    def unpack(self) -> Batch:
        """The batch, its tensors views of the buffer."""
        obs: dict[str, Tensor] = {}
        fields: dict[str, Tensor] = {}
        for place, tensor in zip(self.places, self._tensors(), strict=True):
            (obs if place.is_obs else fields)[place.key] = tensor
        return Batch(obs=obs, **fields)

    def to(self, device: torch.device) -> PackedBatch:
        """The same on `device`; from pinned memory the copy does not block."""
        return PackedBatch(self.buffer.to(device, non_blocking=True), self.places)

    def _tensors(self) -> list[Tensor]:
        if self.buffer.device.type == "cpu":
            return [torch.from_numpy(array) for array in self.arrays()]
        return [
            self.buffer[place.offset : place.offset + place.nbytes]
            .view(_torch_dtype(place.dtype))
            .view(place.shape)
            for place in self.places
        ]


@dataclass(frozen=True, slots=True)
class PackedBatches:
    """Several batches in one buffer, uint8 (n,), where each begins, and the places in it.

    `was_piped` tells that they came by value, for want of shared memory.
    """

    buffer: Tensor
    batches: tuple[tuple[int, tuple[Place, ...]], ...]
    was_piped: bool = False

    @classmethod
    def alone(cls, batch: PackedBatch) -> PackedBatches:
        """One batch, not copied."""
        return cls(batch.buffer, ((0, batch.places),))

    @classmethod
    def pack(cls, batches: Sequence[PackedBatch], allocate: Allocate) -> PackedBatches:
        """Copies the batches into one buffer."""
        offsets, end = [], 0
        for batch in batches:
            offsets.append(-(-end // ALIGNMENT) * ALIGNMENT)
            end = offsets[-1] + batch.buffer.nbytes
        buffer = allocate(end)
        for offset, batch in zip(offsets, batches, strict=True):
            buffer[offset : offset + batch.buffer.nbytes] = batch.buffer
        return cls(buffer, tuple((o, b.places) for o, b in zip(offsets, batches, strict=True)))

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @property
    def nbytes(self) -> int:
        """Bytes of the batches."""
        return sum(places[-1].offset + places[-1].nbytes for _, places in self.batches)

    def unpack(self) -> list[PackedBatch]:
        """The batches, as views of the buffer."""
        return [PackedBatch(self.buffer[offset:], places) for offset, places in self.batches]

    def pin_memory(self) -> PackedBatches:
        """The same in page-locked memory; DataLoader calls this when asked to pin."""
        return PackedBatches(self.buffer.pin_memory(), self.batches, self.was_piped)

    def to(self, device: torch.device) -> PackedBatches:
        """The same on `device`; from pinned memory the copy does not block."""
        return PackedBatches(self.buffer.to(device, non_blocking=True), self.batches)


class PipedBatches:
    """Batches that travel by value, through a pipe: for want of shared memory."""

    __slots__ = ("batches", "memory")

    def __init__(self, packed: PackedBatches) -> None:
        self.memory: NDArray[np.uint8] = packed.buffer.numpy()
        self.batches = packed.batches

    def received(self) -> PackedBatches:
        """The batches, in this process's memory."""
        return PackedBatches(torch.from_numpy(self.memory), self.batches, was_piped=True)

    def pin_memory(self) -> PackedBatches:
        """The same in page-locked memory; DataLoader calls this when asked to pin."""
        return self.received().pin_memory()


class SharedMemoryFullError(OSError):
    """There is no room for more shared memory, which on Linux is that of the folder /dev/shm."""


def private_memory(nbytes: int) -> Tensor:
    """A buffer for this process."""
    return torch.empty(nbytes, dtype=torch.uint8)


def pinned_memory(nbytes: int) -> Tensor:
    """A page-locked buffer, from which a GPU copies by itself."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def shared_memory(nbytes: int) -> Tensor:
    """A buffer that another process can take over without a copy; raises SharedMemoryFullError."""
    try:
        storage = torch.UntypedStorage._new_shared(nbytes)
    except RuntimeError as error:
        if f"({errno.ENOSPC})" not in str(error):
            raise
        raise SharedMemoryFullError(errno.ENOSPC, f"no shared memory for {nbytes} bytes") from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def packed_to_send(batches: Sequence[PackedBatch]) -> PackedBatches | PipedBatches:
    """The batches in fresh shared memory, or by value where there is none left."""
    try:
        return PackedBatches.pack(batches, shared_memory)
    except SharedMemoryFullError:
        return PipedBatches(PackedBatches.pack(batches, private_memory))


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
