"""Writes trajectory files in a thread of its own, so that stepping never waits for a disk that keeps up."""

import contextlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amago.hindsight.storage import remove_unfinished, save_trajectory
from amago.hindsight.trajectory import FrozenTraj

MAX_PENDING = 1024
MAX_PENDING_BYTES = 256 * 2**20
# Waking the thread interrupts the rollout, so it takes what some milliseconds bring at once.
GATHER_SECONDS = 0.02


class TrajectoryWriteError(OSError):
    """A trajectory could not be written. It is kept in memory and tried again."""


@dataclass(slots=True, eq=False)
class _Pending:
    trajectory: FrozenTraj
    name: str
    env_name: str
    nbytes: int


class TrajectoryWriter:
    """A queue of trajectories and the thread that writes them, in order.

    What cannot be written stays at the head of the queue; the error waits for the next call of
    `raise_failure` or `flush`, and the thread tries again after it was raised.

    Args:
        folder: made if it does not exist; unfinished files of writers that died long ago are removed from it.
        save_as: "npz", "npz-compressed" or "traj".
        on_written: called in the writing thread with the path of each file after it was written.
    """

    def __init__(self, folder: Path, save_as: str, on_written: Callable[[Path], None] | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        self.folder = folder
        self.files_written = 0
        self._save_as = save_as
        self._on_written = on_written
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._failure: Exception | None = None
        self._attempts = 0
        self._stopping = False
        self._idle = True
        self._hurried = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def put(self, trajectory: FrozenTraj, name: str, env_name: str) -> None:
        """Queues a trajectory for the file `name`; waits while the queue is full, unless writing fails."""
        nbytes = trajectory.nbytes
        if self._stopping:
            raise RuntimeError(f"the recorder of {self.folder} is closed: make a new one")
        with self._changed:
            if self._is_full():
                self._changed.wait_for(lambda: self._failure is not None or not self._is_full())
            self._pending.append(_Pending(trajectory, name, env_name, nbytes))
            self._pending_bytes += nbytes
            if self._thread is None:
                self._start_thread()
            if self._idle or self._is_full():
                self._idle = False
                self._changed.notify_all()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="trajectory-writer", daemon=True)
        # An interpreter that is shutting down may start no thread; `stop` then writes by itself.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    @property
    def pending_transitions(self) -> int:
        """Transitions handed over that are not in a whole file yet."""
        with self._changed:
            return sum(len(pending.trajectory) for pending in self._pending)

    def _is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES

    def _is_urgent(self) -> bool:
        """Whether somebody waits for the thread."""
        return self._hurried or self._stopping or self._is_full()

    def raise_failure(self) -> None:
        """Raises TrajectoryWriteError if a write failed since the last call; the thread then tries again."""
        if self._failure is None:
            return
        with self._changed:
            failure, kept = self._failure, len(self._pending)
            self._failure = None
            self._changed.notify_all()
        raise TrajectoryWriteError(
            f"trajectories cannot be written to {self.folder} ({type(failure).__name__}: {failure}); "
            f"{kept} are kept in memory and will be tried again: make room or restore the folder"
        ) from failure

    def flush(self) -> None:
        """Waits until everything queued is on disk; raises TrajectoryWriteError if a write fails now."""
        if os.getpid() != self._owner or self._stopping:
            return  # there is no thread to wait for, and `stop` has told what was lost
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            # What failed before this call may work by now, so only an attempt that begins after it counts.
            earlier = self._attempts
            while self._pending:
                if self._failure is not None:
                    if self._attempts > earlier:
                        break
                    self._failure = None
                    self._changed.notify_all()
                self._changed.wait()
            self._hurried = False
        self.raise_failure()

    def stop(self) -> None:
        """Writes what is queued and ends the thread; warns of what a last attempt could not write."""
        # A forked process has a copy of the queue, but neither the thread nor the duty.
        if os.getpid() != self._owner or self._stopping:
            return
        self._stopping = True
        with self._changed:
            self._failure = None
            self._changed.notify_all()
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
            self._thread = None
        if self._pending:
            warnings.warn(
                f"{len(self._pending)} trajectories could not be written to {self.folder} and are lost "
                f"({self.pending_transitions} transitions): {self._failure}",
                stacklevel=2,
            )

    def _next(self) -> _Pending | None:
        """Waits for a trajectory that may be written; None if there will be no more."""
        with self._changed:
            if not self._pending:
                self._idle = True
                self._changed.wait_for(lambda: self._pending or self._stopping)
                self._idle = False
                self._changed.wait_for(self._is_urgent, timeout=GATHER_SECONDS)
            self._changed.wait_for(lambda: self._failure is None)
            self._attempts += len(self._pending) > 0
            return self._pending[0] if self._pending else None

    def _run(self) -> None:
        while (head := self._next()) is not None:
            try:
                path = save_trajectory(head.trajectory, self.folder / head.name, self._save_as, head.env_name)
                if self._on_written is not None:
                    self._on_written(path)
            except Exception as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                    if self._stopping:
                        return
                continue
            with self._changed:
                self._pending.popleft()
                self._pending_bytes -= head.nbytes
                self.files_written += 1
                self._changed.notify_all()
