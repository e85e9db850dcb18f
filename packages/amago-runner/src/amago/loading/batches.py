"""Feeds the learner: batches in the order of their numbers, from this process or from loader workers.

A batch is named by (epoch, first sample), every sample has its own random stream, and workers hand over whole
batches in order, so that the batches do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from amago.agent.batch import Batch
from amago.envs.interrupts import defer_interrupts
from amago.kernels.memory import keep_freed_memory
from amago.loading.dataset import RLDataset
from amago.loading.packing import (
    PackedBatches,
    PipedBatches,
    SharedMemoryFullError,
    packed_to_send,
    pinned_memory,
    private_memory,
    shared_memory,
)
from amago.loading.slots import ReceivedSlots, SlotMessage, WorkerSlots, free_slots, most_shared_bytes
from amago.utils import amago_warning

PREFETCH_BATCHES = 4
"""Messages that each worker prepares ahead."""

MESSAGE_BYTES = 4 << 20
"""Small batches travel together up to this size: a message costs more than drawing one of them."""

MOST_BATCHES = 8
"""Batches in a message at most."""

Message = PackedBatches | SlotMessage | PipedBatches


class BatchKey(NamedTuple):
    """Names consecutive batches, and brings what a worker's copy of the dataset must know before it draws."""

    visit: int
    epoch: int
    first: int
    batches: int
    state: Any


class BatchLoader:
    """Draws the batches of an epoch.

    Workers are processes that start with the first epoch and stay until `close`; only where the dataset cannot
    tell them what changed (`RLDataset.workers_can_persist`) are they started anew for every epoch.

    Args:
        dataset: a configured dataset. Its seed and rank are set from those given here.
        batch_size: sequences in a batch.
        batches_per_epoch: batches in an epoch.
        workers: loader processes; 0 draws in this process, which is fast for small trajectories.
        device: where batches are needed. For a GPU they go through pinned memory and copies do not block.
        seed: fixes all draws; None takes fresh entropy.
        rank: number of this process among those that train in parallel.
        mp_context: how workers are started ("fork", "spawn", "forkserver"); None leaves it to Python.

    Raises:
        ValueError: for a number out of range, or if the dataset's epoch is too short for the batches.
    """

    def __init__(
        self,
        dataset: RLDataset,
        *,
        batch_size: int,
        batches_per_epoch: int,
        workers: int,
        device: torch.device | str,
        seed: int | None,
        rank: int = 0,
        mp_context: str | None = None,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("batches_per_epoch", batches_per_epoch, 1),
            ("workers", workers, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value!r}")
        if len(dataset) < batch_size * batches_per_epoch:
            raise ValueError(
                f"{batches_per_epoch} batches of {batch_size} need {batch_size * batches_per_epoch} items per "
                f"epoch, but {dataset.dset_name} is configured for {len(dataset)}"
            )
        dataset.seed_sampling(seed, rank)
        self.dataset = dataset
        self.batch_size, self.batches_per_epoch = batch_size, batches_per_epoch
        self.workers, self.mp_context = workers, mp_context
        self.device = torch.device(device)
        self._batches = _Batches(dataset, batch_size)
        self._keys = _Keys(batch_size, workers)
        self._loader: DataLoader[Message] | None = None
        self._received: ReceivedSlots | None = None
        self._running: Any = None
        self._visits = 0
        self._told_of_pipes = False

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of `epoch` on the device. An epoch that is left early may be followed by another."""
        self.dataset.set_epoch(epoch)
        self._visits += 1
        state = self.dataset.worker_state() if self.workers else None
        self._keys.begin(BatchKey(self._visits, epoch, 0, 1, state), self.batches_per_epoch)
        return self._from_workers() if self.workers else self._from_here()

    def close(self) -> None:
        """Ends the workers. The loader can be used again; new workers are then started."""
        if self._running is not None:
            # What the iterator does when it is collected, which an exception's traceback can put off.
            self._running._shutdown_workers()
        self._loader = self._running = self._received = None

    def _from_here(self) -> Iterator[Batch]:
        allocate = pinned_memory if self.device.type == "cuda" else private_memory
        for first in range(0, self.batch_size * self.batches_per_epoch, self.batch_size):
            packed = self.dataset.draw_batch(first, self.batch_size, allocate)
            yield packed.to(self.device).unpack()

    def _from_workers(self) -> Iterator[Batch]:
        if not self.dataset.workers_can_persist:
            self.close()
        if self._loader is None:
            # Elsewhere a copy may still read a slot when its batch is let go; for CUDA there is pinned memory.
            if self.device.type == "cpu":
                state = free_slots(self.workers)
                self._batches.slots, self._received = state, ReceivedSlots(state)
            self._loader = DataLoader(
                self._batches,
                batch_size=None,
                sampler=self._keys,
                num_workers=self.workers,
                collate_fn=_as_it_is,
                pin_memory=self.device.type == "cuda",
                prefetch_factor=PREFETCH_BATCHES,
                persistent_workers=True,
                # Without a generator the loader would draw its workers' seed from torch's global one.
                generator=torch.Generator(),
                worker_init_fn=_start_worker,
                multiprocessing_context=self.mp_context,
            )
        # Workers start here, the first time; an interrupt that met a fork would be lost.
        with defer_interrupts():
            self._running = iter(self._loader)
        for message in self._running:
            yield from self._unpacked(message)

    def _unpacked(self, message: Message) -> list[Batch]:
        if isinstance(message, PipedBatches):
            message = message.received()
        batches = message if self._received is None else self._received.receive(message)
        assert isinstance(batches, PackedBatches)
        if batches.was_piped and not self._told_of_pipes:
            self._tell_of_pipes(batches.nbytes)
        self._keys.message_bytes(len(batches), batches.nbytes)
        return [packed.unpack() for packed in batches.to(self.device).unpack()]

    def _tell_of_pipes(self, message_bytes: int) -> None:
        self._told_of_pipes = True
        most = most_shared_bytes(self.workers, message_bytes) / 2**20
        amago_warning(
            "there is too little shared memory (/dev/shm) for all loader workers, so that some batches go through "
            f"pipes, which is slower: {self.workers} workers with batches of this size use up to {most:.0f} MiB. "
            "Give the container more (docker run --shm-size), or start fewer loader workers."
        )


class _Batches(Dataset[Message]):
    """Batches by key, packed for the way between processes; a worker holds a copy of it, and of the dataset."""

    def __init__(self, dataset: RLDataset, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self.slots: torch.Tensor | None = None
        self._slots: WorkerSlots | None = None
        self._visit = 0

    def start_worker(self, worker: int, workers: int) -> None:
        """Called in a worker on its copy."""
        self.dataset.start_worker(workers)
        if self.slots is not None:
            self._slots = WorkerSlots(worker, self.slots)

    def __getitem__(self, key: BatchKey) -> Message:
        if key.visit != self._visit:
            self._visit = key.visit
            self.dataset.load_worker_state(key.state)
            self.dataset.set_epoch(key.epoch)
        firsts = range(key.first, key.first + key.batches * self.batch_size, self.batch_size)
        if self._slots is not None:
            self._slots.begin(key.visit)
            allocate = self._slots.allocate
            return self._slots.send([self.dataset.draw_batch(f, self.batch_size, allocate) for f in firsts])
        if key.batches == 1:
            with contextlib.suppress(SharedMemoryFullError):
                return PackedBatches.alone(self.dataset.draw_batch(key.first, self.batch_size, shared_memory))
        return packed_to_send([self.dataset.draw_batch(f, self.batch_size, private_memory) for f in firsts])


class _Keys(Sampler[BatchKey]):
    """The keys of an epoch, of more batches each once it is known how small they are.

    Args:
        batch_size: sequences in a batch.
        workers: loader processes, all of which are to have something to do.
    """

    def __init__(self, batch_size: int, workers: int) -> None:
        self.batch_size, self.workers = batch_size, workers
        self._batches = 1

    def begin(self, first: BatchKey, batches: int) -> None:
        """Sets the epoch, by its first key and its number of batches."""
        self._first, self._count = first, batches

    def message_bytes(self, batches: int, nbytes: int) -> None:
        """Takes note of the size of a message."""
        self._batches = max(1, min(MOST_BATCHES, MESSAGE_BYTES * batches // max(nbytes, 1)))

    def __iter__(self) -> Iterator[BatchKey]:
        done = 0
        while done < self._count:
            share = (self._count - done) // (2 * max(self.workers, 1))
            batches = max(1, min(self._batches, share))
            yield self._first._replace(first=done * self.batch_size, batches=batches)
            done += batches

    def __len__(self) -> int:
        return self._count


def _as_it_is(batch: Any) -> Any:
    return batch


def _start_worker(worker: int) -> None:
    # Ctrl-C reaches the whole process group; the main process decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    info = get_worker_info()
    assert info is not None
    keep_freed_memory()  # windows of one size are read again and again
    info.dataset.start_worker(worker, info.num_workers)  # type: ignore[attr-defined]
