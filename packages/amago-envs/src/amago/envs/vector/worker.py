"""What runs in a worker process: a group of environments that steps when a token arrives.

The arrays lie in shared memory, so the pipe carries one byte to the worker and, unless there are metrics, new
names or an error to tell, an empty message back. Torch is never touched here: forked processes may not use
it.
"""

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from amago.envs.vector.buffers import Field, StepArrays, block_size, carve
from amago.envs.vector.configuration import SentBinding, bind_received
from amago.envs.vector.group import EnvGroup
from amago.envs.vector.group_spec import ExplorationSetup, MakeEnv
from amago.envs.vector.hanging import answer_with_stack
from amago.envs.vector.watching import Watch
from amago.hindsight.timestep import Array

STEP, RESET, RENDER, GET_EXPLORATION, SET_EXPLORATION, CLOSE = b"s", b"r", b"v", b"g", b"l", b"c"
PARENT_CHECK_SECONDS = 1.0
BEING_CLOSED = "being closed"


@dataclass(slots=True, kw_only=True)
class WorkerSetup:
    """What a worker process is started with.

    Args:
        make_envs: one callable per environment of this worker.
        first_index: number of the first of them among all environments.
        exploration: wrapped around each of them.
        trace: where the worker writes what it is doing when it is asked because it does not answer.
        awake: whether to stay awake between commands that come in quick succession.
        gin_bindings: bound first, in processes that do not inherit the bindings of the main process.
    """

    make_envs: Sequence[MakeEnv]
    first_index: int
    exploration: ExplorationSetup
    trace: Connection
    awake: bool
    gin_bindings: Sequence[SentBinding] = ()


@dataclass(slots=True, kw_only=True)
class SharedRows:
    """Which rows of the shared block belong to a worker; its descriptor is sent separately."""

    fields: dict[str, Field]
    num_rows: int
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class WorkerFailure:
    """What a worker reports before it ends because an environment raised."""

    environment: str
    doing: str
    error: str
    worker_traceback: str


def worker_main(conn: Connection, inherited: Sequence[Connection], setup: WorkerSetup) -> None:
    """Runs until told to close, an environment raises, or the main process is gone.

    Args:
        conn: the worker's end of its pipe.
        inherited: ends of pipes that a fork copied into this process; closed, so that every pipe ends with
            its owner.
        setup: the environments.
    """
    # Ctrl-C reaches the whole process group; the main process decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # see interrupts_waiting
    for other in inherited:
        other.close()
    group_of_parent = _lead_own_group(conn)
    answer_with_stack(setup.trace)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    worker = _Worker(conn)
    try:
        worker.run(setup)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The main process is gone: nobody is left to tell.
        pass
    except BaseException as error:  # also of an environment that calls sys.exit
        with contextlib.suppress(OSError):
            conn.send_bytes(pickle.dumps(worker.failure(error)))
    finally:
        with contextlib.suppress(Exception):
            worker.close()
        _end_own_processes(group_of_parent)
        conn.close()


def _lead_own_group(conn: Connection) -> int:
    """Lets environments start processes, in a group that ends with this process; returns the group left for it."""
    multiprocessing.current_process().daemon = False  # daemons may have no children
    if not hasattr(os, "setpgid"):
        return 0
    # With a copy in a child of this process, its death would not end the pipe.
    os.register_at_fork(after_in_child=conn.close)
    group_of_parent = os.getpgid(0)
    os.setpgid(0, 0)
    return group_of_parent


def _end_own_processes(group_of_parent: int) -> None:
    """Kills what environments started and did not end; those with a session of their own were meant to stay."""
    if hasattr(os, "setpgid"):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in one of the groups
            os.setpgid(0, group_of_parent)
            os.killpg(os.getpid(), signal.SIGKILL)


def _exit_with_parent(parent: int) -> None:
    """Ends this process when the main one has died without a word, even in the middle of a long step."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    if hasattr(os, "killpg"):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


class _Worker:
    """The state of a worker process, kept apart so that a failure can be described from it."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.doing = "being made"
        self.group = EnvGroup(0)
        self.actions: Array = np.empty(0)

    def run(self, setup: WorkerSetup) -> None:
        if setup.gin_bindings:
            bind_received(setup.gin_bindings)
        self.group.first_index = setup.first_index
        self.group.make(setup.make_envs, setup.exploration)
        self.conn.send_bytes(pickle.dumps(self.group.spec))
        arrays = self._map(pickle.loads(self.conn.recv_bytes()))
        self.group.attach(arrays)
        commands = Watch(self.conn, awake=setup.awake)
        while (message := commands.receive())[:1] != CLOSE:
            self.conn.send_bytes(self._answer(arrays, message))
        self.doing = BEING_CLOSED
        self.group.close()
        self.conn.send_bytes(b"")

    def _map(self, shared: SharedRows) -> StepArrays:
        descriptor = reduction.recv_handle(self.conn)
        block = mmap.mmap(descriptor, block_size(shared.fields, shared.num_rows))
        os.close(descriptor)
        return carve(shared.fields, shared.num_rows, block).rows(shared.start, shared.stop)

    def _answer(self, arrays: StepArrays, message: bytes) -> bytes:
        command, group = message[:1], self.group
        answer: Any = None
        if command == STEP:
            self.doing = "stepping"
            # A copy: environments may keep their action, and the next one arrives in the same memory.
            self.actions = arrays.policy_actions.copy()
            answer = group.step(self.actions)
        elif command == RESET:
            self.doing = "being reset"
            answer = group.reset(pickle.loads(message[1:]))
        elif command == RENDER:
            self.doing = "rendering"
            group.render()
        elif command == GET_EXPLORATION:
            answer = group.exploration_state()
        elif command == SET_EXPLORATION:
            group.load_exploration_state(pickle.loads(message[1:]))
        return b"" if answer is None else pickle.dumps(answer)

    def failure(self, error: BaseException) -> WorkerFailure:
        """What happened, where, and to whom."""
        doing = self.doing
        if doing == "stepping":
            doing += f" with action {self.group.active_rows(self.actions).tolist()}"
        return WorkerFailure(
            environment=self.group.active_name,
            doing=doing,
            error="".join(traceback.format_exception_only(error)).strip(),
            worker_traceback=traceback.format_exc(),
        )

    def close(self) -> None:
        self.group.close()
