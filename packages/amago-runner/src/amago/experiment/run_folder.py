"""The folder of a run: its files, the lock of the process that writes them, and which run is in it.

    {run folder}/
        run.json            identity, arguments, gin bindings: what the run is rebuilt from
        config.txt          the same for people
        metrics.jsonl       all metrics
        summary.json        figures of the run when it ended or was stopped
        learning_curve.png  a picture of them
        ckpts/              checkpoints
        run.lock            locked by the process that writes the folder; run.holder.json names that process

A run has an identity, `run_id`, that its checkpoints carry too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from filelock import FileLock, Timeout

from amago.distributed.processes import Processes
from amago.experiment.checkpointer import Checkpointer, write_json
from amago.experiment.config import ExperimentConfig
from amago.experiment.run_json import RUN_FILE, read_run
from amago.loading.replay_buffer import get_path_to_trajs
from amago.utils import amago_warning

SUMMARY_FILE = "summary.json"
METRICS_FILE = "metrics.jsonl"
PICTURE_FILE = "learning_curve.png"
LOCK_FILE = "run.lock"
HOLDER_FILE = "run.holder.json"
# Deleted when a run is replaced; whatever else is in its folder stays. The buffer is a case of its own.
WRITTEN_BY_A_RUN = (
    RUN_FILE,
    SUMMARY_FILE,
    METRICS_FILE,
    PICTURE_FILE,
    "config.txt",
    "report.html",
    "episodes.gif",
    "episodes.mp4",
    "ckpts",
    "wandb_logs",
    "tensorboard",
    "nonfinite",
    "status",
    "collectors",
    "logs",
)
# What the folder of a run may contain.
RUN_CONTENTS = {*WRITTEN_BY_A_RUN, LOCK_FILE, HOLDER_FILE, "buffer"}


class RunInUseError(RuntimeError):
    """Another process, or another Experiment of this process, writes the run's folder."""


class RunIdentity(NamedTuple):
    """Tells a run from all others, also from one that was in the same folder before.

    Attributes:
        run_id: 12 hexadecimal digits, drawn when the run is first started.
        created: That time in Unix seconds.
    """

    run_id: str
    created: float


class RunLock:
    """The lock of a run's folder, held from `Experiment.start` to `close`.

    The operating system releases it when the process ends, however it ends, so that a run that was killed can be
    resumed at once.

    Args:
        folder: the run's folder, created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Not bound to a thread: close() may be called in another one than start().
        self._lock = FileLock(folder / LOCK_FILE, thread_local=False)

    def acquire(self) -> None:
        """Takes the lock and writes down who holds it.

        Raises:
            RunInUseError: it is held; names the process that holds it.
            OSError: the folder cannot be created or written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            # Without the chained Timeout, since the error is sent to the other processes of the run.
            raise RunInUseError(self._refusal()) from None
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join(sys.argv),
            "started": time.time(),
        }
        write_json(holder, self._folder / HOLDER_FILE)

    def release(self) -> None:
        """Releases the lock; does nothing if it is not held."""
        if self._lock.is_locked:
            (self._folder / HOLDER_FILE).unlink(missing_ok=True)
            self._lock.release()

    def _refusal(self) -> str:
        try:
            holder = json.loads((self._folder / HOLDER_FILE).read_text())
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
            who = f"process {holder['pid']} on {holder['host']}, since {since} ({holder['command']})"
            is_own = (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
        except (OSError, ValueError, KeyError, TypeError):  # it has not written the file yet
            who, is_own = "another process", False
        remedy = (
            "close() the Experiment of this process that was started before"
            if is_own
            else "wait until it ends, stop it, or choose another run_name"
        )
        return f"the run in {self._folder} is in use by {who}: {remedy}"


class OpenedFolder(NamedTuple):
    """What `open_folder` found or began.

    Attributes:
        resumed: Epoch of the checkpoint to resume from; None for a new run.
        identity: Identity of the run; None for a collector that starts before its learner.
    """

    resumed: int | None
    identity: RunIdentity | None


def open_folder(
    config: ExperimentConfig, processes: Processes, on_close: Callable[[Callable[[], None]], object]
) -> OpenedFolder:
    """Locks the run's folder in the main process, and empties it for a new run.

    A process that only collects or evaluates leaves the folder to the one that learns.

    Args:
        config: The experiment.
        processes: Its processes. All of them raise what the main one does, so that none waits for it in vain.
        on_close: Called with the function that releases the lock.

    Raises:
        FileExistsError, FileNotFoundError, RunInUseError, ValueError: as `Experiment.start`.
    """
    problem: Exception | None = None
    opened = OpenedFolder(None, None)
    if processes.is_main:
        try:
            opened = _open_folder(config, on_close)
        except (OSError, RunInUseError, ValueError) as error:
            problem = error
    shared: tuple[Exception | None, OpenedFolder] = processes.broadcast_from_main((problem, opened))
    problem, opened = shared
    if problem is not None:
        raise problem
    return opened


def _open_folder(config: ExperimentConfig, on_close: Callable[[Callable[[], None]], object]) -> OpenedFolder:
    folder, name, writes = config.run_dir, config.run_name, config.saves_policy
    if writes:
        lock = RunLock(folder)
        lock.acquire()
        on_close(lock.release)
        Checkpointer(folder, name).remove_unfinished()
        continued = is_to_be_continued(folder, name, resume=config.resume, overwrite=config.overwrite)
    else:
        continued = is_to_be_continued(folder, name, resume=config.resume, overwrite=True)
    resumed = Checkpointer(folder, name).newest_epoch() if continued else None
    is_read = (folder / RUN_FILE).is_file() and not (writes and config.overwrite)
    record = read_run(folder) if is_read else None
    if writes and not continued and (config.overwrite or record is not None):
        # Without `overwrite`: a run that was stopped before its first checkpoint, started again by "auto".
        clear_folder(folder, with_buffer=config.collects)
        _warn_of_older_trajectories(config)
        record = None
    if record is not None:
        return OpenedFolder(resumed, RunIdentity(record.run_id, record.created))
    return OpenedFolder(resumed, _new_identity() if writes else None)


def _warn_of_older_trajectories(config: ExperimentConfig) -> None:
    """Warns if the run that is replaced left trajectories outside of its folder."""
    folder = config.dataset.save_new_trajs_to if config.dataset is not None else None
    if config.dataset is None and config.dset_root is not None and config.dset_name is not None:
        folder = get_path_to_trajs(Path(config.dset_root), config.dset_name, fifo=True)
    if config.collects and folder is not None and folder.is_dir() and any(folder.iterdir()):
        amago_warning(
            f"the run in {config.run_dir} is replaced, but the trajectories in {folder} stay, since other runs "
            "may use them: the new run also learns from them. Delete them with delete_buffer_from_disk() "
            "before, or use another dset_name."
        )


def _new_identity() -> RunIdentity:
    return RunIdentity(uuid4().hex[:12], time.time())


def has_run(folder: Path, run_name: str) -> bool:
    """Whether a run was started in the folder: it holds a run.json or checkpoints."""
    return (folder / RUN_FILE).is_file() or bool(Checkpointer(folder, run_name).epochs())


def is_to_be_continued(folder: Path, run_name: str, *, resume: bool | str, overwrite: bool) -> bool:
    """Whether the run in the folder is continued, as `resume` and `overwrite` of an Experiment say.

    "auto" continues a run that has a checkpoint, and starts a new one otherwise.

    Raises:
        FileExistsError: there is a run, and neither is set.
    """
    if resume == "auto":
        return bool(Checkpointer(folder, run_name).epochs())
    if not resume and not overwrite and has_run(folder, run_name):
        raise FileExistsError(
            f"{folder} contains a run: continue it with resume=True (or 'auto', which also starts a new one where "
            "there is none), replace it with overwrite=True, or choose another run_name"
        )
    return bool(resume)


def clear_folder(folder: Path, *, with_buffer: bool) -> None:
    """Deletes the files of an earlier run, and nothing else in the folder.

    Args:
        folder: The run's folder, locked by the caller.
        with_buffer: Delete the trajectories in `buffer/` too, except the protected ones.
    """
    paths = [folder / name for name in WRITTEN_BY_A_RUN]
    if with_buffer:
        # Not the folders of trajectories themselves: a dataset created them in its constructor.
        paths += [path for path in folder.glob("buffer/*/*") if path.parent.name != "protected"]
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
