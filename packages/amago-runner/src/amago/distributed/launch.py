"""LocalLaunch: a learner and its collectors as processes of this machine, started and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from amago.envs.env_utils import available_cores

EARLY_EXIT_SECONDS = 60.0
"""The exit of a collector is early if it comes sooner than this after its start."""
MAX_EARLY_EXITS = 3
"""After so many early exits in a row a collector is not started again."""
END_SECONDS = 60.0
"""Seconds that processes have to save and end before they are killed."""


class Launch(Protocol):
    """A learner and its collectors, on this machine or on a cluster."""

    def start(self) -> None:
        """Starts all of them."""

    def poll(self, seconds: float) -> int | None:
        """Takes care of all for `seconds`; the exit status once the launch is over, None before."""

    def stop(self) -> None:
        """Ends all of them; may be called more than once."""


@dataclass
class RestartPolicy:
    """Decides whether a collector whose process has ended is started again."""

    early_exits: int = 0
    started: float = field(default_factory=time.monotonic)

    def should_restart(self) -> bool:
        """Whether to start again; called once after every exit."""
        is_early = time.monotonic() - self.started < EARLY_EXIT_SECONDS
        self.early_exits = self.early_exits + 1 if is_early else 0
        self.started = time.monotonic()
        return self.early_exits < MAX_EARLY_EXITS


@dataclass
class _ManagedProcess:
    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes]
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


class LocalLaunch:
    """Runs a learner and collectors as processes of this machine.

    The launch ends when the learner does, or when no collector is left. A collector that dies is started again,
    until it has ended early several times in a row.

    Args:
        learner: Command line of the learner.
        collector: Command line of a collector.
        collectors: Number of collectors.
        log_dir: Folder of the processes' output, `learner.log` and `collector-{n}.log`.
        report: Receives messages for the user.
    """

    def __init__(
        self,
        learner: Sequence[str],
        collector: Sequence[str],
        *,
        collectors: int,
        log_dir: Path,
        report: Callable[[str], None],
    ) -> None:
        self._commands = {"learner": learner, **{f"collector-{n}": collector for n in range(collectors)}}
        self._log_dir = log_dir
        self._report = report
        self._managed: dict[str, _ManagedProcess] = {}
        # The cores are shared out, since otherwise every process would start as many threads as there are cores.
        threads = max(1, available_cores() // (collectors + 1))
        self._environ = {"OMP_NUM_THREADS": str(threads), **os.environ}

    def start(self) -> None:
        """Starts all processes."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for name, command in self._commands.items():
            log = self._log_dir / f"{name}.log"
            self._managed[name] = _ManagedProcess(name, command, log, self._popen(command, log))

    def poll(self, seconds: float) -> int | None:
        """Restarts dead collectors, then waits; the exit status once the launch is over, None before."""
        for managed in list(self._managed.values()):
            status = managed.process.poll()
            if status is None:
                continue
            if managed.name == "learner":
                if status:
                    self._report(f"The learner ended with {_reason(status)}.\n{last_lines(managed.log)}")
                return 1 if status else 0
            self._replace(managed, status)
        if len(self._managed) == 1:
            self._report("No collector is left.")
            return 1
        time.sleep(seconds)
        return None

    def stop(self) -> None:
        """Interrupts all processes, which then save and end, and kills those that have not after `END_SECONDS`."""
        processes = [managed.process for managed in self._managed.values()]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + END_SECONDS
        for process in processes:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._report(f"Process {process.pid} did not end and is killed.")
                process.kill()
                process.wait()

    def _replace(self, managed: _ManagedProcess, status: int) -> None:
        if managed.restarts.should_restart():
            self._report(
                f"{managed.name} ended with {_reason(status)} and is started again; see {managed.log}."
            )
            managed.process = self._popen(managed.command, managed.log)
            return
        self._report(
            f"{managed.name} ended with {_reason(status)}, {MAX_EARLY_EXITS} times within "
            f"{EARLY_EXIT_SECONDS:.0f} s of its start, and is not started again.\n{last_lines(managed.log)}"
        )
        del self._managed[managed.name]

    def _popen(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the launcher, which ends the others.
            )


def last_lines(path: Path, count: int = 15) -> str:
    """The last lines of a text file, indented."""
    lines = path.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines)


def _reason(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
