"""Writes trajectory files: small ones in batches by the caller, the rest by a thread beside it.

While the disk is quick, a thread costs a rollout more than it saves. Each of its system calls passes the
interpreter lock to and fro, and the rollout waits for it; and files written one after the other take half of the
time of files written between other things.
"""

import contextlib
import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amago.hindsight import remove_unfinished, write_trajectory
from amago.hindsight.trajectory import FrozenTraj

MAX_PENDING = 1024
MAX_PENDING_BYTES = 256 * 2**20
# When the first of the queue has waited for so long, the caller writes a batch; if nobody calls, the thread does.
GATHER_SECONDS = 0.02
THREAD_SECONDS = 0.1
# A batch lasts no longer than that, and larger files are left to the thread. So are all after a write that was not
# quick, until so many times its own duration have passed: slow writes take a hundredth of the caller's time. One
# that hangs holds the caller up until it is over.
BATCH_SECONDS = 0.02
MAX_BATCHED_BYTES = 2**16
QUICK_SECONDS = 0.0003
PAUSE_AFTER_SLOW = 100


class TrajectoryWriteError(OSError):
    """A trajectory could not be written. It is kept in memory and tried again."""


@dataclass(slots=True, eq=False)
class _Pending:
    trajectory: FrozenTraj
    name: str
    env_name: str
    nbytes: int
    total_bytes: int  # up to this one; kept here, so that an interrupt cannot part the sum from the queue
    arrived: float  # on the monotonic clock


class TrajectoryWriter:
    """A queue of trajectories, written in order by the thread that fills it or by one of its own.

    What cannot be written stays at the head of the queue; the error waits for the next call of
    `raise_failure` or `flush`, and the thread tries again after it was raised.

    Args:
        folder: made if it does not exist; unfinished files of writers that died long ago are removed from it.
        save_as: "npz", "npz-compressed" or "traj".
        on_written: called with the path of each file after it was written, in the thread that wrote it; once more
            if that was interrupted.
    """

    def __init__(self, folder: Path, save_as: str, on_written: Callable[[Path], None] | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        self.folder = folder
        self._folder_name = str(folder)
        self.files_written = 0
        self._save_as = save_as
        self._on_written = on_written
        self._pending: deque[_Pending] = deque()
        self._failure: Exception | None = None
        self._attempts = 0
        self._stopping = False
        self._idle = True  # whether the thread sleeps until it is called
        self._taker: int | None = None  # the thread that is writing the first of the queue
        self._hurried = False
        # From when on the caller may write, on the monotonic clock; zlib can compress beside it.
        self._quick_from = math.inf if save_as == "npz-compressed" else 0.0
        # Entered by itself: an interrupt in a Condition's own __enter__, which is Python, would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def put(self, trajectory: FrozenTraj, name: str, env_name: str) -> None:
        """Takes a trajectory for the file `name`; waits while the queue is full, unless writing fails."""
        nbytes = trajectory.nbytes
        if self._stopping:
            raise RuntimeError(f"the recorder of {self.folder} is closed: make a new one")
        self._let_go()
        with self._lock:
            if not self._has_thread():
                self._start_thread()
            if self._is_full() and self._has_thread():
                self._changed.wait_for(lambda: self._failure is not None or not self._is_full())
            now = time.monotonic()
            total = nbytes + (self._pending[-1].total_bytes if self._pending else 0)
            first = self._pending[0] if self._pending else None
            self._pending.append(_Pending(trajectory, name, env_name, nbytes, total, now))
            if self._idle or self._is_full():
                self._idle = False
                self._changed.notify_all()
        waits_since = now if first is None else first.arrived
        if now >= max(self._quick_from, waits_since + GATHER_SECONDS):
            self._write_batch(until=now + BATCH_SECONDS)

    def _write_batch(self, until: float) -> None:
        """Writes small files in the caller's thread, as long as nothing is slow."""
        start = time.monotonic()
        while start < until and (head := self._take(MAX_BATCHED_BYTES)):
            written = self._write(head)
            end = time.monotonic()
            is_slow = end - start > QUICK_SECONDS
            if is_slow:
                self._quick_from = end + PAUSE_AFTER_SLOW * (end - start)
            if is_slow or not written:
                break
            start = end
        if self._hurried:
            with self._lock:
                self._changed.notify_all()

    def _has_thread(self) -> bool:
        return self._thread is not None and self._thread.ident is not None

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="trajectory-writer", daemon=True)
        # An interpreter that is shutting down may start no thread; `flush` and `stop` then write by themselves.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    @property
    def pending_transitions(self) -> int:
        """Transitions handed over that are not in a whole file yet."""
        with self._lock:
            return sum(len(pending.trajectory) for pending in self._pending)

    def _is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING or self._pending_bytes() > MAX_PENDING_BYTES

    def _pending_bytes(self) -> int:
        if not self._pending:
            return 0
        first = self._pending[0]
        return self._pending[-1].total_bytes - first.total_bytes + first.nbytes

    def _is_urgent(self) -> bool:
        """Whether somebody waits for the thread."""
        return self._hurried or self._stopping or self._is_full()

    def raise_failure(self) -> None:
        """Raises TrajectoryWriteError if a write failed since the last call; the thread then tries again."""
        if self._failure is None:
            return
        with self._lock:
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
        self._let_go()
        if time.monotonic() >= self._quick_from:
            self._write_batch(until=math.inf)
        while not self._has_thread() and (head := self._take(math.inf)) and self._write(head):
            pass
        try:
            with self._lock:
                self._hurried = True
                self._changed.notify_all()
                # What failed before this call may work by now, so only an attempt that begins after it counts.
                earlier = self._attempts
                while self._pending and self._has_thread():
                    if self._failure is not None:
                        if self._attempts > earlier:
                            break
                        self._failure = None
                        self._changed.notify_all()
                    self._changed.wait()
        finally:
            self._hurried = False
        self.raise_failure()

    def stop(self) -> None:
        """Writes what is queued and ends the thread; warns of what a last attempt could not write."""
        # A forked process has a copy of the queue, but neither the thread nor the duty.
        if os.getpid() != self._owner or self._stopping:
            return
        self._stopping = True
        self._let_go()
        with self._lock:
            self._failure = None
            self._changed.notify_all()
        if self._thread is not None and self._has_thread():
            self._thread.join()
            self._thread = None
        else:
            self._run()
        if self._pending:
            warnings.warn(
                f"{len(self._pending)} trajectories could not be written to {self.folder} and are lost "
                f"({self.pending_transitions} transitions): {self._failure}",
                stacklevel=2,
            )

    def _take(self, max_bytes: float) -> _Pending | None:
        """The first of the queue for the calling thread to write, unless it is larger or must wait."""
        with self._lock:
            if self._taker is not None or self._failure is not None or not self._pending:
                return None
            if self._pending[0].nbytes > max_bytes:
                return None
            self._taker = threading.get_ident()
            return self._pending[0]

    def _let_go(self) -> None:
        """Gives back what this thread had taken when an interrupt ended its last call."""
        if self._taker == threading.get_ident():
            self._taker = None

    def _write(self, head: _Pending) -> bool:
        """Writes the first of the queue, which was taken, and removes it; if it cannot, notes why."""
        failure, written = None, False
        try:
            path = write_trajectory(
                head.trajectory, self._folder_name, head.name, self._save_as, head.env_name
            )
            if self._on_written is not None:
                self._on_written(Path(path))
            written = True
        except Exception as error:
            failure = error
        finally:
            with self._lock:
                self._taker = None
                self._failure = failure
                # A signal's handler that flushed meanwhile has written it once more and removed it.
                if written and self._pending and self._pending[0] is head:
                    self._pending.popleft()
                    self.files_written += 1
        return written

    def _run(self) -> None:
        while (head := self._wait_until_due()) is not None:
            written = self._write(head)
            with self._lock:
                self._changed.notify_all()
            if not written and self._stopping:
                return

    def _wait_until_due(self) -> _Pending | None:
        """Waits for something that the thread is to write, and takes it; None if there will be no more."""
        with self._lock:
            while not self._is_due():
                self._idle = not self._pending
                self._changed.wait(self._patience())
            self._idle = False
            if not self._pending:
                return None
            self._attempts += 1
            self._taker = threading.get_ident()
            return self._pending[0]

    def _is_due(self) -> bool:
        if self._taker is not None or self._failure is not None:
            return False
        if not self._pending:
            return self._stopping
        return self._is_urgent() or self._waited() >= THREAD_SECONDS

    def _patience(self) -> float | None:
        """Seconds until the thread looks again by itself."""
        if not self._pending or self._failure is not None:
            return None
        # A caller that is writing calls the thread if there is a hurry.
        return THREAD_SECONDS if self._taker is not None else max(THREAD_SECONDS - self._waited(), 0.001)

    def _waited(self) -> float:
        """Seconds that the first of the queue has been in it."""
        return time.monotonic() - self._pending[0].arrived
