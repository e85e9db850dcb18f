"""The worker process of AsyncVectorEnv: receives commands from a pipe and executes them on an `EnvGroup`.

A message is the pickled name and arguments of an `EnvGroup` method; the reply is the pickled result. Step
arrays are in shared memory, so the message of a step is empty, and its reply is empty unless there are
metrics, new environment names or an error. The worker does not use torch, which is not fork-safe.
"""

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from amago.envs.vector.env_group import EnvGroup, ExplorationSetup, MakeEnv
from amago.envs.vector.gin_bindings import SentBinding, bind_received
from amago.envs.vector.shared_arrays import Field, StepArrays, carve, required_bytes

STEP = b""
# Descriptions of EnvGroup methods for error messages.
DOING = {
    "make": "being made",
    "reset": "being reset",
    "step": "stepping",
    "render": "rendering",
    "close": "being closed",
}


@dataclass(slots=True, kw_only=True)
class WorkerSetup:
    """Arguments of a worker process.

    Args:
        make_envs: one callable per environment of this worker.
        first_index: global index of this worker's first environment.
        exploration: exploration wrapper of each environment and its random stream.
        gin_bindings: gin bindings of the main process, if they are not inherited by fork.
    """

    make_envs: Sequence[MakeEnv]
    first_index: int
    exploration: ExplorationSetup
    gin_bindings: Sequence[SentBinding] = ()


@dataclass(slots=True, kw_only=True)
class SharedRows:
    """A worker's rows of the shared memory block. The block's file descriptor is sent separately."""

    fields: dict[str, Field]
    num_rows: int
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class WorkerFailure:
    """Last message of a worker after an exception."""

    environment: str
    doing: str
    error: str
    worker_traceback: str


def worker_main(conn: Connection, inherited: Sequence[Connection], setup: WorkerSetup) -> None:
    """Executes commands until "close", an exception in an environment, or the exit of the main process.

    Args:
        conn: the worker's end of its pipe.
        inherited: ends of other pipes copied by the fork; closed here, so that each pipe closes with its
            owner.
        setup: the worker's environments.
    """
    # Ctrl-C and cluster schedulers signal the whole process group; only the main process ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGUSR1"):
        if hasattr(
            signal, name
        ):  # a function, because programs that environments start would inherit SIG_IGN
            signal.signal(getattr(signal, name), _ignore)
    for other in inherited:
        other.close()
    multiprocessing.current_process().daemon = False  # lets environments start child processes
    if hasattr(os, "register_at_fork"):
        # A copy of the pipe in a child process would keep the pipe open after this process exits.
        os.register_at_fork(after_in_child=conn.close)
    worker = _Worker(conn)
    try:
        worker.run(setup)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the main process has exited
    except BaseException as error:  # includes SystemExit raised by an environment
        if worker.doing == "close":
            traceback.print_exc()  # the main process no longer reads replies
        with contextlib.suppress(OSError):
            conn.send_bytes(pickle.dumps(worker.failure(error)))
    finally:
        with contextlib.suppress(Exception):
            worker.group.close()
        conn.close()


def _ignore(number: int, frame: object) -> None:
    """Signal handler that does nothing."""


class _Worker:
    """State of a worker process; `failure` describes an exception with it."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.doing = "make"  # the EnvGroup method in progress
        self.args: tuple[Any, ...] = ()
        self.group = EnvGroup(0)

    def run(self, setup: WorkerSetup) -> None:
        bind_received(setup.gin_bindings)
        self.group.first_index = setup.first_index
        self.group.make(setup.make_envs, setup.exploration)
        self.conn.send_bytes(pickle.dumps(self.group.spec))
        shared = pickle.loads(self.conn.recv_bytes())
        if not isinstance(shared, SharedRows):
            return  # a close command: another worker failed to create its environments
        arrays = self._map(shared)
        self.group.attach(arrays)
        while self.doing != "close":
            self.conn.send_bytes(self._answer(arrays, self.conn.recv_bytes()))

    def _map(self, shared: SharedRows) -> StepArrays:
        descriptor = reduction.recv_handle(self.conn)
        block = mmap.mmap(descriptor, required_bytes(shared.fields, shared.num_rows))
        os.close(descriptor)
        return carve(shared.fields, shared.num_rows, block).rows(shared.start, shared.stop)

    def _answer(self, arrays: StepArrays, message: bytes) -> bytes:
        if message == STEP:
            # Copied because environments may keep a reference, and the next action overwrites this memory.
            self.doing, self.args = "step", (arrays.policy_actions.copy(),)
        else:
            self.doing, self.args = pickle.loads(message)
        answer = getattr(self.group, self.doing)(*self.args)
        return b"" if answer is None else pickle.dumps(answer)

    def failure(self, error: BaseException) -> WorkerFailure:
        """Describes the exception and the environment that raised it."""
        doing = DOING.get(self.doing, self.doing)
        if self.doing == "step":
            doing += f" with action {self.group.active_rows(*self.args).tolist()}"
        elif self.doing == "call":
            doing = f"its {self.args[0]!r} was called"
        return WorkerFailure(
            environment=self.group.active_name,
            doing=doing,
            error="".join(traceback.format_exception_only(error)).strip(),
            worker_traceback=traceback.format_exc(),
        )
