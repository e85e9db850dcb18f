"""Shared memory that loader workers use again: never while anybody looks at it, and soon after."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from amago.agent.batch import Batch
from amago.loading import DiskTrajDataset
from amago.loading import BatchLoader
from amago.loading.packing import PackedBatch, Part, packed_to_send
from amago.loading.slots import SLOTS, ReceivedSlots, SlotMessage, WorkerSlots, free_slots
from amago.utils import AmagoWarning

Fill = Callable[..., list[Path]]
BATCHES = 40


@pytest.fixture
def make_loader(make_dataset, fill) -> Callable[..., BatchLoader]:
    """Loaders of one buffer, whose batches differ in length."""
    filled: list[Path] = []

    def make(workers: int, **options: object) -> BatchLoader:
        dataset: DiskTrajDataset = make_dataset(items=4 * BATCHES, length=300)
        if not filled:
            filled.extend(
                fill(dataset.fifo_folder, 12, transitions=[3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 20, 30])
            )
        settings = {"batch_size": 4, "batches_per_epoch": BATCHES, "device": "cpu", "seed": 0} | options
        return BatchLoader(dataset, workers=workers, **settings)

    return make


def assert_equal(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one.obs, other.obs, rtol=0, atol=0)
        for name in ("rl2s", "rews", "dones", "actions", "time_idxs", "lengths", "flat_idxs"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def two_epochs(loader: BatchLoader) -> list[Batch]:
    kept = [batch for epoch in range(2) for batch in loader.epoch(epoch)]
    loader.close()
    return kept


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_that_are_kept_stay_as_they_are(make_loader, workers) -> None:
    """Many more than there are slots."""
    assert workers * SLOTS < 2 * BATCHES
    assert_equal(two_epochs(make_loader(workers)), two_epochs(make_loader(0)))


def test_slots_that_were_free_too_early_would_be_noticed(make_loader, monkeypatch) -> None:
    def at_once(self: ReceivedSlots, message: SlotMessage) -> object:
        received = receive(self, message)
        self._state[...] = 0  # the fault: free as soon as it has arrived
        return received

    receive = ReceivedSlots.receive
    monkeypatch.setattr(ReceivedSlots, "receive", at_once)
    kept = two_epochs(make_loader(1))
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        assert_equal(kept, two_epochs(make_loader(0)))


def test_a_tensor_of_a_batch_keeps_its_memory_alone(make_loader) -> None:
    loader = make_loader(1)
    kept = [(batch.rews, batch.rews.clone()) for epoch in range(3) for batch in loader.epoch(epoch)]
    loader.close()
    for tensor, copy in kept:
        assert torch.equal(tensor, copy)


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_memory_is_used_again_from_epoch_to_epoch(make_loader) -> None:
    loader = make_loader(1)
    counts = []
    for epoch in range(6):
        for _ in loader.epoch(epoch):
            pass
        counts.append(len(loader._received._memory))
        if epoch == 2:
            before = handles()
    assert counts[-1] <= SLOTS
    assert handles() <= before + 1
    loader.close()


def test_epochs_that_are_left_early_lose_no_slot(make_loader, monkeypatch) -> None:
    loader, expected = make_loader(2), make_loader(0)
    for epoch in range(3 * SLOTS):
        next(loader.epoch(epoch))
    kinds = []

    def noted(self: ReceivedSlots, message: object) -> object:
        kinds.append(type(message))
        return receive(self, message)

    receive = ReceivedSlots.receive
    monkeypatch.setattr(ReceivedSlots, "receive", noted)
    for batch, same in zip(loader.epoch(99), expected.epoch(99), strict=True):
        assert_equal([batch], [same])
        del batch
    loader.close()
    assert kinds
    assert set(kinds) == {SlotMessage}, "fresh memory is taken where no slot is free"


@pytest.mark.parametrize("mp_context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_share_it_too(make_loader, mp_context) -> None:
    assert_equal(two_epochs(make_loader(1, mp_context=mp_context)), two_epochs(make_loader(0)))


class SmallSharedMemory:
    """torch's own call, and what it raises once so many buffers of this process are all that fit."""

    def __init__(self, buffers: int) -> None:
        self.left, self.new_shared = buffers, torch.UntypedStorage._new_shared

    def __call__(self, nbytes: int, **options: object) -> torch.UntypedStorage:
        if not self.left:
            name = "</torch_1_2_3>"
            raise RuntimeError(
                f"unable to allocate shared memory(shm) for file {name}: No space left on device (28)"
            )
        self.left -= 1
        return self.new_shared(nbytes, **options)


@pytest.mark.parametrize("uses_slots", [True, False], ids=["slots", "as for a GPU"])
@pytest.mark.parametrize("buffers", [0, 3])
def test_without_room_for_shared_memory_batches_come_all_the_same_and_it_is_told(
    make_loader, monkeypatch, buffers, uses_slots
) -> None:
    loader = make_loader(2, mp_context="fork")
    if not uses_slots:
        monkeypatch.setattr("amago.loading.batches.ReceivedSlots", lambda state: None)
        monkeypatch.setattr("amago.loading.batches._Batches.start_worker", lambda self, worker, workers: None)
    with monkeypatch.context() as small:
        # Workers are forked with the next batch.
        small.setattr(torch.UntypedStorage, "_new_shared", SmallSharedMemory(buffers))
        with pytest.warns(
            AmagoWarning, match=r"too little shared memory .*2 workers .* up to \d+ MiB"
        ) as told:
            drawn = two_epochs(loader)
    assert len(told) == 1
    assert_equal(drawn, two_epochs(make_loader(0)))


def test_another_error_of_shared_memory_is_no_reason_to_fall_back(monkeypatch) -> None:
    def refuse(nbytes: int) -> None:
        raise RuntimeError("unable to open shared memory object: Too many open files (24)")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refuse)
    with pytest.raises(RuntimeError, match="Too many open files"):
        packed_to_send([])


def packed(slots: WorkerSlots, rows: int, value: float) -> PackedBatch:
    part = Part("rews", False, torch.empty(0).numpy().dtype, (rows,))
    batch = PackedBatch.empty([part], slots.allocate)
    batch.arrays()[0][:] = value
    return batch


def values(received: ReceivedSlots, message: object) -> list[list[float]]:
    return [batch.arrays()[0].tolist() for batch in received.receive(message).unpack()]


def test_a_message_that_outgrows_its_slot_gets_a_larger_one() -> None:
    state = free_slots(1)
    slots, received = WorkerSlots(0, state), ReceivedSlots(state)
    for visit, rows in enumerate([10, 10, 10_000, 20, 50_000], start=1):
        slots.begin(visit)
        message = slots.send([packed(slots, rows, visit), packed(slots, rows, -visit)])
        assert message.slot == 0
        assert (message.memory is None) == (rows in (20,) or visit == 2)
        assert values(received, message) == [[visit] * rows, [-visit] * rows]


def test_when_no_slot_is_free_memory_is_fresh() -> None:
    state = free_slots(1)
    slots, received = WorkerSlots(0, state), ReceivedSlots(state)
    kept = []
    for number in range(SLOTS + 3):
        slots.begin(1)
        kept.append(received.receive(slots.send([packed(slots, 5, number)])))
    assert [batch.arrays()[0][0] for one in kept for batch in one.unpack()] == list(range(SLOTS + 3))
    assert state[1].all()
    del kept
    assert not state.any()


def test_memory_that_came_with_a_message_nobody_received_comes_again() -> None:
    state = free_slots(1)
    slots, received = WorkerSlots(0, state), ReceivedSlots(state)
    slots.begin(1)
    assert slots.send([packed(slots, 5, 1.0)]).memory is not None
    slots.begin(2)
    assert values(received, slots.send([packed(slots, 5, 2.0)])) == [[2.0] * 5]
