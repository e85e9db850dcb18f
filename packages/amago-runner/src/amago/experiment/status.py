"""Live status of the processes of a run: `status/{role}-{index}.json`, for `amago-run watch` and `launch`.

Every main process writes its own file, at most once a second, and removes it when it ends. The file of a process
that was killed stays; its `time` tells.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amago.experiment.callbacks import Callback
from amago.experiment.checkpointer import read_json
from amago.experiment.shared_run import finite_or_none
from amago.experiment.summary import RETURN_METRIC
from amago.hindsight import atomic_file

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment

RATE_SECONDS = 60.0
"""Rates are means over this time, or since the start."""
_SECONDS_BETWEEN_WRITES = 1.0
_SILENT_SECONDS = 60.0  # a process of another machine that has not reported for so long counts as dead


def status_file(run_dir: Path, role: str, index: int) -> Path:
    """The status file of a process; `role` is "learner", "collector" or "both"."""
    return run_dir / "status" / f"{role}-{index}.json"


def read_status(run_dir: Path) -> list[dict[str, Any]]:
    """The status of every process of a run: learner first, collectors by index.

    Keys: role, index, pid, host, phase, epoch, epochs (None for no end), env_steps, gradient_steps,
    steps_per_second, updates_per_second, policy_epoch, buffer_files, return, time (unix seconds). Values that do
    not apply are None.
    """
    found = []
    for path in (run_dir / "status").glob("*.json"):
        status = read_json(path)
        if status is not None:  # else the process ended
            found.append(status)
    return sorted(found, key=lambda status: (status["role"] == "collector", status["index"]))


def is_alive(status: Mapping[str, Any]) -> bool:
    """Whether the process of a status file still runs."""
    if status.get("host") != socket.gethostname():
        return time.time() - float(status.get("time", 0.0)) < _SILENT_SECONDS
    try:
        os.kill(int(status["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_dead(run_dir: Path) -> None:
    """Removes the files of processes that were killed, and the folder if no other file is left."""
    for status in read_status(run_dir):
        if not is_alive(status):
            status_file(run_dir, status["role"], status["index"]).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (run_dir / "status").rmdir()


def write_status(status: Mapping[str, Any], path: Path) -> None:
    """Writes a status file atomically; creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, fsync=False) as file:
        file.write(json.dumps(status, allow_nan=False).encode())


class StatusWriter(Callback):
    """Writes the status file of this process between `open` and `close`; every Experiment has one.

    Attributes:
        phase: What the process does: "starting", "collecting", "evaluating", "learning", "waiting for data",
            "waiting for learner" or "waiting for collectors".
    """

    def __init__(self) -> None:
        self.phase = "starting"
        self._path: Path | None = None
        self._identity: dict[str, Any] = {}
        self._next_write = 0.0
        self._return: float | None = None
        self._samples: deque[tuple[float, int, int]] = deque()

    def open(self, experiment: Experiment, role: str, index: int) -> None:
        """Starts to write."""
        self._path = status_file(experiment.run_dir, role, index)
        self._identity = {"role": role, "index": index, "pid": os.getpid(), "host": socket.gethostname()}
        self.enter(experiment, "starting")

    def close(self) -> None:
        """Removes the file, and the folder if no other process has a file there."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._path.parent.rmdir()
            self._path = None

    def enter(self, experiment: Experiment, phase: str) -> None:
        """Writes the file now if the phase is a new one, else if a second has passed."""
        if phase != self.phase:
            self.phase, self._next_write = phase, 0.0
        self.refresh(experiment)

    def refresh(self, experiment: Experiment) -> None:
        """Writes the file if a second has passed since it was written."""
        if self._path is None or time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + _SECONDS_BETWEEN_WRITES
        # A full disk is reported by those who write what matters.
        with contextlib.suppress(OSError):
            write_status(self._status(experiment), self._path)

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        self.enter(experiment, "collecting" if section == "train" else "evaluating")

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self.refresh(experiment)

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        if section == "train" or not experiment.collects:
            self._return = metrics.get(RETURN_METRIC, self._return)

    def on_waiting_for_data(self, experiment: Experiment, seconds: float) -> None:
        self.enter(experiment, "waiting for data")

    def on_waiting_for_learner(self, experiment: Experiment, seconds: float) -> None:
        self.enter(experiment, "waiting for learner")

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        self.enter(experiment, "learning")

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self.refresh(experiment)

    def _status(self, experiment: Experiment) -> dict[str, Any]:
        counters = experiment.counters
        now = time.monotonic()
        samples = self._samples
        samples.append((now, counters.env_steps, counters.gradient_steps))
        while samples[0][0] < now - RATE_SECONDS:
            samples.popleft()
        began, env_steps, gradient_steps = samples[0]
        seconds = max(now - began, 1e-9)
        fifo = getattr(getattr(experiment.dataset, "index", None), "fifo", None)
        return {
            **self._identity,
            "phase": self.phase,
            "epoch": counters.epoch,
            "epochs": finite_or_none(experiment.epochs),
            "env_steps": counters.env_steps,
            "gradient_steps": counters.gradient_steps,
            "steps_per_second": round((counters.env_steps - env_steps) / seconds, 2),
            "updates_per_second": round((counters.gradient_steps - gradient_steps) / seconds, 2),
            "policy_epoch": experiment.policy_epoch,
            "buffer_files": None if fifo is None else len(fifo),
            "return": finite_or_none(self._return),
            "time": time.time(),
        }
