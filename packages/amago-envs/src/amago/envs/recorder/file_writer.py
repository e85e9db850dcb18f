"""FileWriter: a background thread that writes trajectory files from a bounded queue."""

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amago.hindsight import FrozenTraj, remove_unfinished, write_trajectory

MAX_PENDING = 1024
MAX_PENDING_BYTES = 256 * 2**20


class TrajectoryWriteError(OSError):
    """A trajectory could not be written. It is kept in memory and retried."""


@dataclass(slots=True, eq=False)
class _Pending:
    trajectory: FrozenTraj
    name: str
    env_name: str


class FileWriter:
    """Writes queued trajectories in first-in, first-out order.

    After a failed write, the trajectory stays first in the queue. The next call of `raise_failure` or `flush`
    raises the error, and the thread then retries.

    Args:
        folder: directory of the files, created if missing; temporary files of dead writers are removed.
        save_as: "npz", "npz-compressed" or "traj".
        on_written: called in the writer thread with the path of each written file. An exception counts as a
            failed write.
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
        self._stopping = False
        self._changed = threading.Condition()
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="trajectory-writer", daemon=True)
        self._thread.start()

    def put(self, trajectory: FrozenTraj, name: str, env_name: str) -> None:
        """Queues a trajectory for the file `name`; blocks while the queue is full, unless a write failed."""
        if self._stopping:
            raise RuntimeError(f"the recorder of {self.folder} is closed: make a new one")
        with self._changed:
            self._pending.append(_Pending(trajectory, name, env_name))
            self._pending_bytes += trajectory.nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure is not None or not self._is_full())

    def _is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES

    @property
    def pending_transitions(self) -> int:
        """Number of transitions in the queue."""
        with self._changed:
            return sum(len(pending.trajectory) for pending in self._pending)

    def raise_failure(self) -> None:
        """Raises TrajectoryWriteError if a write failed since the last call; the thread then retries."""
        if self._failure is None:
            return
        with self._changed:
            failure, kept = self._failure, len(self._pending)
            self._failure = None
            self._changed.notify_all()
        raise TrajectoryWriteError(
            f"trajectories cannot be written to {self.folder} ({type(failure).__name__}: {failure}); "
            f"{kept} are kept in memory and will be retried: free disk space or restore the folder"
        ) from failure

    def flush(self) -> None:
        """Waits until the queue is on disk; raises TrajectoryWriteError if a write fails."""
        if os.getpid() != self._owner or self._stopping:
            return  # a forked process has a copy of the queue, but not the thread
        with self._changed:
            self._failure = None  # retry: the cause of an earlier failure may be gone
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure is not None or not self._pending)
        self.raise_failure()

    def stop(self) -> None:
        """Writes the queue and stops the thread; warns if the last retry fails and trajectories are lost."""
        if os.getpid() != self._owner or self._stopping:
            return
        with self._changed:
            self._stopping = True
            self._failure = None
            self._changed.notify_all()
        self._thread.join()
        if self._pending:
            warnings.warn(
                f"{len(self._pending)} trajectories could not be written to {self.folder} and are lost "
                f"({self.pending_transitions} transitions): {self._failure}",
                stacklevel=2,
            )

    def _run(self) -> None:
        """Thread function: writes the queue in order; pauses after a failure until the failure is raised."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or (self._pending and self._failure is None))
                if not self._pending or self._failure is not None:
                    return
                first = self._pending[0]
            failure = self._write(first)
            with self._changed:
                self._failure = failure
                if failure is None:
                    self._pending.popleft()
                    self._pending_bytes -= first.trajectory.nbytes
                    self.files_written += 1
                self._changed.notify_all()

    def _write(self, pending: _Pending) -> Exception | None:
        try:
            path = write_trajectory(
                pending.trajectory, str(self.folder), pending.name, self._save_as, pending.env_name
            )
            if self._on_written is not None:
                self._on_written(Path(path))
        except Exception as error:
            return error
        return None
