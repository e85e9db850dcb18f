"""BatchLoader: feeds batches to the learner through torch's DataLoader.

A batch is identified by (epoch, first sample), and every sample has its own random stream. Batches therefore
do not depend on the number of loader workers.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge
from torch.utils.data import DataLoader, Dataset, get_worker_info

from amago.agent.batch import Batch
from amago.envs.arguments import Count, Positive, Size, check_arguments
from amago.kernels.memory import keep_freed_memory
from amago.loading.collate import RLData_pad_collate
from amago.loading.dataset import RLDataset
from amago.utils import amago_warning

WORKER_TIMEOUT = 600.0
"""Seconds to wait for a batch of a loader worker before training stops with an error."""


class BatchKey(NamedTuple):
    """Identifies a batch, and carries the dataset's state to the workers.

    Attributes:
        visit: number of the call of `BatchLoader.epoch`.
        epoch: epoch of the random streams.
        first: index of the first sample.
        state: `RLDataset.worker_state` at the beginning of the epoch.
    """

    visit: int
    epoch: int
    first: int
    state: Any


class BatchLoader:
    """Samples the batches of an epoch.

    Worker processes are started by the first epoch and stay alive until `close`. They are restarted at every epoch
    only if the dataset's class requires it (`RLDataset.workers_can_persist`).

    Args:
        dataset: a configured dataset. Its seed and rank are set from the arguments below.
        batch_size: sequences in a batch.
        batches_per_epoch: batches in an epoch.
        workers: number of loader processes; 0 samples in this process, which is fast for small trajectories.
        device: device of the batches. For a GPU they pass through pinned memory and copies do not block.
        seed: seed of all samples; None uses fresh entropy.
        rank: rank of this process in data-parallel training.
        worker_timeout: seconds to wait for a batch of the workers; then iteration raises a RuntimeError.

    Raises:
        ValueError: if a number is out of range, or the dataset is configured for fewer samples per epoch.
    """

    @check_arguments
    def __init__(
        self,
        dataset: RLDataset,
        *,
        batch_size: Size,
        batches_per_epoch: Annotated[int, Ge(1)],
        workers: Count,
        device: torch.device | str,
        seed: Count | None,
        rank: Count = 0,
        worker_timeout: Positive = WORKER_TIMEOUT,
    ) -> None:
        if len(dataset) < batch_size * batches_per_epoch:
            raise ValueError(
                f"{batches_per_epoch} batches of {batch_size} need {batch_size * batches_per_epoch} items per "
                f"epoch, but {dataset.dset_name} is configured for {len(dataset)}"
            )
        if workers and not dataset.workers_can_persist:
            amago_warning(
                f"{type(dataset).__name__} overrides on_end_of_collection without worker_state: the {workers} "
                "loader workers are started anew in every epoch, so that they see its changes. Define "
                "worker_state and load_worker_state to keep them."
            )
        dataset.seed_sampling(seed, rank)
        self.dataset = dataset
        self.workers, self.worker_timeout = workers, worker_timeout
        self._waiting_since: float | None = None
        self._timed_out = False
        self.device = torch.device(device)
        self._next_epoch = 0
        self.batch_size, self.batches_per_epoch = batch_size, batches_per_epoch
        self._keys: list[BatchKey] = []
        self._batches = _Batches(dataset, batch_size)
        self._loader: DataLoader[Batch] | None = None
        self._visits = 0

    def __len__(self) -> int:
        """Batches per epoch."""
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the epoch after the last one, from 0."""
        return self.epoch(self._next_epoch)

    def epoch(self, epoch: int, *, only_files_of_now: bool = False) -> Iterator[Batch]:
        """Yields the batches of `epoch` on the device. An epoch may be abandoned before its end.

        Args:
            epoch: the epoch.
            only_files_of_now: batches must not have data that appear during the epoch, so wait until every worker
                has listed what there is.
        """
        self._next_epoch = epoch + 1
        if self.workers and not self.dataset.workers_can_persist:
            self.close()
        self.dataset.set_epoch(epoch)
        self._visits += 1
        state = self.dataset.worker_state() if self.workers else None
        self._keys[:] = [
            BatchKey(self._visits, epoch, batch * self.batch_size, state)
            for batch in range(self.batches_per_epoch)
        ]
        if self._loader is None:
            self._loader = self._make_loader()
        batches: Iterator[Batch] = iter(self._watched(self._loader) if self.workers else self._loader)
        if only_files_of_now:
            # The workers deliver in turns, each after it has listed the files.
            batches = itertools.chain(list(itertools.islice(batches, self.workers)), batches)
        return (batch.to(self.device) for batch in batches)

    def _watched(self, loader: DataLoader[Batch]) -> Iterator[Batch]:
        """The batches of the workers; if one does not come in time, the workers are killed and an error is raised.

        DataLoader's own timeout does not end a wait for the memory of a tensor, which its worker must hand over.
        """
        finished = threading.Event()
        threading.Thread(target=self._watch, args=(finished,), daemon=True).start()
        self._waiting_since = time.monotonic()
        try:
            for batch in loader:
                self._waiting_since = None
                yield batch
                self._waiting_since = time.monotonic()
        except (RuntimeError, OSError, EOFError) as error:
            if not self._timed_out:
                raise
            running = getattr(self._loader, "_iterator", None)
            for worker in [] if running is None else running._workers:
                with contextlib.suppress(RuntimeError):  # torch raises it once for a worker that was killed
                    worker.join(timeout=10)
            self._loader, self._timed_out = None, False
            raise RuntimeError(
                f"the loader workers delivered no batch for {self.worker_timeout:g} s: one of them hangs, for "
                "example on a file system that does not answer, or was stopped. Check the disk of the buffer; "
                "dloader_workers=0 loads in the main process, where Ctrl-C shows what it waits for."
            ) from error
        finally:
            self._waiting_since = None
            finished.set()

    def _watch(self, finished: threading.Event) -> None:
        while not finished.wait(min(1.0, self.worker_timeout / 2)):
            since = self._waiting_since
            if since is not None and time.monotonic() - since > self.worker_timeout:
                self._timed_out = True
                self._kill_workers()
                return

    def close(self) -> None:
        """Ends the workers. The next epoch starts new ones."""
        running = getattr(self._loader, "_iterator", None)
        if running is not None and self.workers:
            # Otherwise workers end when the iterator is collected, which the traceback of an exception may delay.
            running._shutdown_workers()
            self._kill_workers()
        self._loader = None

    def _kill_workers(self) -> None:
        """Kills workers that did not end by themselves; Python would wait for them for ever when it exits."""
        running = getattr(self._loader, "_iterator", None)
        for worker in [] if running is None else running._workers:
            worker.kill()

    def _make_loader(self) -> DataLoader[Batch]:
        has_workers = self.workers > 0
        return DataLoader(
            self._batches,
            batch_size=None,
            sampler=self._keys,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=has_workers,
            worker_init_fn=_start_worker,
            # Without a generator, DataLoader draws the workers' seed from torch's global generator.
            generator=torch.Generator(),
        )


class _Batches(Dataset[Batch]):
    """Maps a `BatchKey` to its batch. Each worker holds a copy."""

    def __init__(self, dataset: RLDataset, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self._visit = 0

    def __getitem__(self, key: BatchKey) -> Batch:
        if get_worker_info() is not None and key.visit != self._visit:
            self._visit = key.visit
            self.dataset.load_worker_state(key.state)
            self.dataset.set_epoch(key.epoch)
        return RLData_pad_collate([self.dataset[i] for i in range(key.first, key.first + self.batch_size)])


def _start_worker(worker: int) -> None:
    # Ctrl-C and cluster schedulers signal the whole process group; the main process decides when its workers end.
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    keep_freed_memory()  # windows of the same size are allocated again and again
