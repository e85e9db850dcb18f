"""The worker process of AsyncVectorEnv: a group of environments that executes commands from a pipe.

A message is the pickled name and arguments of a method of `EnvGroup`; the answer is its pickled result. The arrays
of a step lie in shared memory, so the message of a step is empty, and so is its answer unless there are metrics,
new names or an error. Torch is never used here: forked processes may not use it.
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
# What a method of EnvGroup does, for error messages.
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
        first_index: number of the first of them among all environments.
        exploration: wrapped around each of them.
        gin_bindings: of the main process, if they are not inherited.
    """

    make_envs: Sequence[MakeEnv]
    first_index: int
    exploration: ExplorationSetup
    gin_bindings: Sequence[SentBinding] = ()


@dataclass(slots=True, kw_only=True)
class SharedRows:
    """The rows of the shared block that belong to a worker; its file descriptor is sent separately."""

    fields: dict[str, Field]
    num_rows: int
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class WorkerFailure:
    """The last message of a worker whose environment raised."""

    environment: str
    doing: str
    error: str
    worker_traceback: str


def worker_main(conn: Connection, inherited: Sequence[Connection], setup: WorkerSetup) -> None:
    """Executes commands until "close", an exception in an environment, or the end of the main process.

    Args:
        conn: the worker's end of its pipe.
        inherited: ends of other pipes that a fork copied; closed here, so that each pipe ends with its owner.
        setup: the environments.
    """
    # Ctrl-C reaches the whole process group; the main process decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    multiprocessing.current_process().daemon = False  # daemons may not start processes, and environments may
    if hasattr(os, "register_at_fork"):
        # With a copy in a child of this process, the pipe would not end with this process.
        os.register_at_fork(after_in_child=conn.close)
    worker = _Worker(conn)
    try:
        worker.run(setup)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the main process has ended
    except BaseException as error:  # also of an environment that calls sys.exit
        if worker.doing == "close":
            traceback.print_exc()  # nobody reads answers any more
        with contextlib.suppress(OSError):
            conn.send_bytes(pickle.dumps(worker.failure(error)))
    finally:
        with contextlib.suppress(Exception):
            worker.group.close()
        conn.close()


class _Worker:
    """The state of a worker process, from which a failure is described."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.doing = "make"  # the method of the group that is running
        self.args: tuple[Any, ...] = ()
        self.group = EnvGroup(0)

    def run(self, setup: WorkerSetup) -> None:
        bind_received(setup.gin_bindings)
        self.group.first_index = setup.first_index
        self.group.make(setup.make_envs, setup.exploration)
        self.conn.send_bytes(pickle.dumps(self.group.spec))
        shared = pickle.loads(self.conn.recv_bytes())
        if not isinstance(shared, SharedRows):
            return  # told to close, because environments of another worker could not be made
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
            # A copy: environments may keep their action, and the next one arrives in the same memory.
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
