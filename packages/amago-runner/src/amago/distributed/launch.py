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

QUICK_DEATH_SECONDS = 60.0
"""A collector that ends sooner than this after its start has died quickly."""
MAX_QUICK_DEATHS = 3
"""After so many quick deaths in a row a collector is not started again."""
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
class Deaths:
    """Decides whether a collector that died is started again."""

    quick: int = 0
    began: float = field(default_factory=time.monotonic)

    def another(self) -> bool:
        """Counts a death; whether to start again."""
        self.quick = self.quick + 1 if time.monotonic() - self.began < QUICK_DEATH_SECONDS else 0
        self.began = time.monotonic()
        return self.quick < MAX_QUICK_DEATHS


@dataclass
class _Member:
    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes]
    deaths: Deaths = field(default_factory=Deaths)


class LocalLaunch:
    """Runs a learner and collectors as processes of this machine.

    The launch ends when the learner does, or when no collector is left. A collector that dies is started again,
    until it has died quickly several times in a row.

    Args:
        learner: Command line of the learner.
        collector: Command line of a collector.
        collectors: Number of collectors.
        log_dir: Folder of the processes' output, `learner.log` and `collector-{n}.log`.
        tell: Receives what a person should know.
    """

    def __init__(
        self,
        learner: Sequence[str],
        collector: Sequence[str],
        *,
        collectors: int,
        log_dir: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._commands = {"learner": learner, **{f"collector-{n}": collector for n in range(collectors)}}
        self._log_dir = log_dir
        self._tell = tell
        self._members: dict[str, _Member] = {}
        # The cores are shared out, since otherwise every process would start as many threads as there are cores.
        threads = max(1, available_cores() // (collectors + 1))
        self._environ = {"OMP_NUM_THREADS": str(threads), **os.environ}

    def start(self) -> None:
        """Starts all processes."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for name, command in self._commands.items():
            log = self._log_dir / f"{name}.log"
            self._members[name] = _Member(name, command, log, self._popen(command, log))

    def poll(self, seconds: float) -> int | None:
        """Restarts dead collectors, then waits; the exit status once the launch is over, None before."""
        for member in list(self._members.values()):
            status = member.process.poll()
            if status is None:
                continue
            if member.name == "learner":
                if status:
                    self._tell(f"The learner ended with {_reason(status)}.\n{last_lines(member.log)}")
                return 1 if status else 0
            self._replace(member, status)
        if len(self._members) == 1:
            self._tell("No collector is left.")
            return 1
        time.sleep(seconds)
        return None

    def stop(self) -> None:
        """Interrupts all processes, which then save and end, and kills those that have not after `END_SECONDS`."""
        processes = [member.process for member in self._members.values()]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + END_SECONDS
        for process in processes:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._tell(f"Process {process.pid} did not end and is killed.")
                process.kill()
                process.wait()

    def _replace(self, member: _Member, status: int) -> None:
        if member.deaths.another():
            self._tell(f"{member.name} ended with {_reason(status)} and is started again; see {member.log}.")
            member.process = self._popen(member.command, member.log)
            return
        self._tell(
            f"{member.name} ended with {_reason(status)}, {MAX_QUICK_DEATHS} times within "
            f"{QUICK_DEATH_SECONDS:.0f} s of its start, and is not started again.\n{last_lines(member.log)}"
        )
        del self._members[member.name]

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
