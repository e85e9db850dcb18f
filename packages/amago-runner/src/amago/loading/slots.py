"""Memory that loader workers share with the main process and use again and again.

A message in fresh shared memory costs a file, a descriptor and a fault for every page, on both sides, which for
small batches is more than drawing them. So every worker has a few slots of shared memory. It draws batches
straight into a free one and sends its number; once nothing in the main process looks at the batches any more, the
slot is free again. Whoever keeps batches keeps their slots, and the worker then falls back to fresh memory. Where
there is no shared memory left, as in containers that were given little of it, batches go through a pipe.

W = workers. An epoch is told by the number of its visit, from 1 on, so that messages of an epoch that was left
early, and which nobody will ever receive, do not hold their slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amago.loading.packing import (
    ALIGNMENT,
    PackedBatch,
    PackedBatches,
    PipedBatches,
    SharedMemoryFullError,
    packed_to_send,
    private_memory,
    shared_memory,
)

SLOTS = 8
"""Slots of a worker: what it prepares ahead, what the learner works on, and one or two to spare."""

SPARE = 1.25
"""A slot is made larger than its first message by this factor, as messages differ a little."""


def free_slots(workers: int) -> Tensor:
    """The state of all slots, int64 (2, W, SLOTS), in shared memory.

    [0] is the visit in which a worker sent the slot, 0 once it is free again; [1] is 1 while the main process
    looks at it. Workers write the first, the main process the second, and it clears the first before the second.
    """
    state = torch.zeros(2, workers, SLOTS, dtype=torch.int64)
    state.share_memory_()
    return state


class SlotMessage:
    """Batches in a slot; `memory` travels with the first message in it, and again when it was replaced.

    Args:
        worker: whose slot it is.
        slot: its number.
        memory: of the slot, uint8 (n,), where the main process does not know it yet.
        batches: see `PackedBatches`.
    """

    __slots__ = ("batches", "memory", "slot", "worker")

    def __init__(self, worker: int, slot: int, memory: Tensor | None, batches: Any) -> None:
        self.worker, self.slot, self.memory, self.batches = worker, slot, memory, batches


class WorkerSlots:
    """The slots of one worker, on its own side.

    Args:
        worker: its number.
        state: see `free_slots`.
    """

    def __init__(self, worker: int, state: Tensor) -> None:
        self.worker = worker
        self._sent: NDArray[np.int64] = state[0, worker].numpy()
        self._seen: NDArray[np.int64] = state[1, worker].numpy()
        self._memory: list[Tensor | None] = [None] * SLOTS
        self._slot: int | None = None
        self._is_unknown = False
        self._visit = self._used = 0

    def begin(self, visit: int) -> None:
        """Takes a free slot for the next message, if there is one."""
        free = np.flatnonzero((self._seen == 0) & (self._sent != visit))
        with_memory = (slot for slot in free.tolist() if self._memory[slot] is not None)
        self._slot = next(with_memory, int(free[0])) if len(free) else None
        # A message that nobody received may have been the one that brought the memory.
        self._is_unknown = self._slot is not None and bool(self._sent[self._slot])
        self._visit, self._used = visit, 0

    def allocate(self, nbytes: int) -> Tensor:
        """Memory for a batch of the message, in the slot if it fits."""
        memory = None if self._slot is None else self._memory[self._slot]
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if memory is None or start + nbytes > len(memory):
            return private_memory(nbytes)
        self._used = start + nbytes
        return memory[start : self._used]

    def send(self, batches: list[PackedBatch]) -> SlotMessage | PackedBatches | PipedBatches:
        """The message; batches that did not fit have their slot replaced by a larger one, if there is room."""
        if self._slot is None:
            return packed_to_send(batches)
        offsets = self._offsets(batches)
        if offsets is None:
            try:
                offsets = self._replace(batches)
            except SharedMemoryFullError:
                return packed_to_send(batches)
        memory = self._memory[self._slot]
        self._sent[self._slot] = self._visit
        places = tuple((offset, b.places) for offset, b in zip(offsets, batches, strict=True))
        return SlotMessage(self.worker, self._slot, memory if self._is_unknown else None, places)

    def _offsets(self, batches: list[PackedBatch]) -> list[int] | None:
        """Where the batches lie in the slot; None unless all do."""
        assert self._slot is not None
        memory = self._memory[self._slot]
        if memory is None:
            return None
        offsets = [batch.buffer.data_ptr() - memory.data_ptr() for batch in batches]
        inside = all(0 <= offset < len(memory) for offset in offsets)
        return offsets if inside else None

    def _replace(self, batches: list[PackedBatch]) -> list[int]:
        assert self._slot is not None
        packed = PackedBatches.pack(batches, lambda nbytes: shared_memory(int(SPARE * nbytes)))
        self._memory[self._slot], self._is_unknown = packed.buffer, True
        return [offset for offset, _ in packed.batches]


def most_shared_bytes(workers: int, message_bytes: int) -> int:
    """What the slots take if all are used, for messages of that size, none of whose batches are kept."""
    return int(workers * SLOTS * SPARE * message_bytes)


class ReceivedSlots:
    """The slots of all workers, as the main process knows them.

    Args:
        state: see `free_slots`.
    """

    def __init__(self, state: Tensor) -> None:
        self._state: NDArray[np.int64] = state.numpy()
        self._memory: dict[tuple[int, int], Tensor] = {}

    def receive(self, message: SlotMessage | PackedBatches) -> PackedBatches:
        """The batches of a message; their slot is free once nothing refers to their memory."""
        if isinstance(message, PackedBatches):
            return message
        key = message.worker, message.slot
        if message.memory is not None:
            self._memory[key] = message.memory
        lease = _Lease(self._memory[key], self._state[:, message.worker, message.slot])
        return PackedBatches(torch.from_numpy(np.asarray(lease)), message.batches)


class _Lease:
    """The memory of a slot for as long as arrays over it live, which hold on to this object."""

    def __init__(self, memory: Tensor, state: NDArray[np.int64]) -> None:
        self._array, self._state = memory.numpy(), state
        self._state[1] = 1
        self.__array_interface__ = self._array.__array_interface__

    def __del__(self) -> None:
        self._state[0] = 0
        self._state[1] = 0
