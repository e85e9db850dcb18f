"""AsyncVectorEnv: environments in worker processes, several per process, with one round trip per step.

Workers make their environments themselves and send their spaces; the main process then allocates the shared block
and sends its file descriptor. Nothing is left behind: the memory is anonymous, workers end with the main process,
and closing, a failed start, garbage collection and the interpreter's exit all end them.
"""

import contextlib
import mmap
import os
import pickle
import signal
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from amago.envs.interrupts import defer_interrupts
from amago.envs.vector.base import EnvWorkerError, ExplorationState, PolicyInput, VectorEnv, VectorStep
from amago.envs.vector.env_group import ExplorationSetup, GroupSpec, MakeEnv, merge_specs
from amago.envs.vector.gin_bindings import bindings_for_workers
from amago.envs.vector.shared_arrays import StepArrays, carve, layout, open_shared_block, required_bytes
from amago.envs.vector.worker import STEP, SharedRows, WorkerFailure, WorkerSetup, worker_main
from amago.hindsight import Array

CLOSE_SECONDS = 5.0  # for environments to close by themselves
TERMINATE_SECONDS = 1.0


class AsyncVectorEnv(VectorEnv):
    """A `VectorEnv` over worker processes.

    An error during a command closes all environments, because unread replies would be taken for replies to the
    next command.

    Args:
        groups: the callables of each worker's environments.
        exploration: exploration wrapper of each environment and its random stream.
        context: how processes start; those that inherit nothing receive gin's bindings.
        seed, rank, role: select the environments' random streams.
        first_index: number of the first environment, for its random stream and error messages.
        env_timeout: seconds to wait for a worker before it is terminated with an error; None waits without limit.

    Raises:
        EnvWorkerError: if an environment cannot be made.
        ValueError: if the environments have different spaces, or cannot be sent to their processes.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[MakeEnv]],
        exploration: ExplorationSetup,
        context: BaseContext,
        *,
        seed: int | None,
        rank: int,
        role: str,
        first_index: int = 0,
        env_timeout: float | None = None,
    ) -> None:
        self._env_timeout = env_timeout
        self._doing = "making its environments"
        self._envs_per_group = [len(group) for group in groups]
        self._first_index = first_index
        self._has_exploration = exploration.wrapper_type is not None
        self._conns: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._closed = False
        # Holds no reference to self, so that it also runs when this object is collected; at exit it runs in any
        # case.
        self._finalizer = weakref.finalize(self, _end_workers, self._conns, self._processes, os.getpid())
        gin_bindings = [] if context.get_start_method() == "fork" else bindings_for_workers()
        try:
            index = first_index
            for group in groups:
                self._start_worker(
                    context,
                    WorkerSetup(
                        make_envs=group, first_index=index, exploration=exploration, gin_bindings=gin_bindings
                    ),
                )
                index += len(group)
            specs: list[GroupSpec] = [self._receive(i) for i in range(len(groups))]
            spec = merge_specs(specs, first_index)
            arrays = self._share_block(specs, spec)
            super().__init__(spec, arrays, first_index=first_index, seed=seed, rank=rank, role=role)
        except BaseException:
            self.close()
            raise

    def _start_worker(self, context: BaseContext, setup: WorkerSetup) -> None:
        ours, theirs = context.Pipe()
        # Spawned processes receive only what they are sent, so there is nothing to close in them.
        inherited = (*self._conns, ours) if context.get_start_method() == "fork" else ()
        process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=worker_main,
            args=(theirs, inherited, setup),
            name=f"amago-envs-{setup.first_index}",
            daemon=True,
        )
        self._conns.append(ours)
        _limit_waiting(ours, self._env_timeout)
        try:
            with defer_interrupts():
                process.start()
                self._processes.append(process)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"environments from number {setup.first_index} on cannot be sent to a process started by "
                f"{context.get_start_method()!r} ({error}): pass functions that are defined at the top level of a "
                "module, or a functools.partial of one, or use mp_context='fork'"
            ) from error
        finally:
            # Only the worker may hold its end, so that its death ends the pipe.
            theirs.close()

    def _share_block(self, specs: Sequence[GroupSpec], spec: GroupSpec) -> StepArrays:
        fields = layout(spec.observation_space, spec.rl2_space, spec.action_space)
        num_rows = sum(spec.rows_per_env)
        size = required_bytes(fields, num_rows)
        descriptor = open_shared_block(size)
        try:
            self._first_rows: list[int] = []
            start = 0
            for i, group_spec in enumerate(specs):
                stop = start + sum(group_spec.rows_per_env)
                rows = SharedRows(fields=fields, num_rows=num_rows, start=start, stop=stop)
                self._send(i, pickle.dumps(rows))
                reduction.send_handle(self._conns[i], descriptor, self._processes[i].pid)
                self._first_rows.append(start)
                start = stop
            return carve(fields, num_rows, mmap.mmap(descriptor, size))
        finally:
            os.close(descriptor)

    def reset(self, seed: int | None = None) -> PolicyInput:
        if self._pending is not None and not self._closed:
            # The results of a pending step or call are discarded.
            self._pending = None
            self._receive_all()
        self._check_ready()
        self._doing = "resetting"
        names = self._call_all("reset", self._by_worker(self._seeds(seed)))
        self.env_names = self._names_by_row(names)
        return self._first_inputs()

    def step_async(self, actions: Array) -> None:
        self._check_actions(actions)
        self._arrays.policy_actions[...] = actions
        self._doing = "stepping"
        self._send_all([STEP] * len(self._conns))
        self._pending = "step"

    def step_wait(self) -> VectorStep:
        self._finish_pending("step")
        notes = zip(self._first_rows, self._receive_all(), strict=True)
        return self._read_step([(first_row, note) for first_row, note in notes if note is not None])

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        self._check_ready()
        self._doing = f"its {name!r} was called"
        self._send_all([pickle.dumps(("call", (name, args, kwargs)))] * len(self._conns))
        self._pending = "call"

    def call_wait(self) -> list[Any]:
        self._finish_pending("call")
        return [result for results in self._receive_all() for result in results]

    def render(self) -> None:
        self._check_ready()
        self._doing = "rendering"
        self._send(0, pickle.dumps(("render", ())))
        self._receive(0)

    def exploration_state(self) -> list[ExplorationState]:
        self._check_ready()
        return self._call_all("exploration_state")

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        self._check_ready()
        self._check_states(states, self._has_exploration)
        if states:
            self._call_all("load_exploration_state", self._by_worker(states))

    def close(self) -> None:
        self._closed = True
        self._finalizer()

    def _by_worker(self, per_env: Sequence[Any]) -> list[list[Any]]:
        """Divides a sequence with one entry per environment among the workers."""
        groups: list[list[Any]] = []
        start = 0
        for count in self._envs_per_group:
            groups.append(list(per_env[start : start + count]))
            start += count
        return groups

    def _call_all(self, method: str, arguments: Sequence[Any] | None = None) -> list[Any]:
        """Calls a method of every worker's group, each with its own argument; joins the lists that they return."""
        args = [()] * len(self._conns) if arguments is None else [(argument,) for argument in arguments]
        self._send_all([pickle.dumps((method, each)) for each in args])
        return [result for results in self._receive_all() for result in results or ()]

    def _send_all(self, messages: Sequence[bytes]) -> None:
        try:
            for i, message in enumerate(messages):
                self._send(i, message)
        except BaseException:
            self.close()
            raise

    def _receive_all(self) -> list[Any]:
        try:
            return [self._receive(i) for i in range(len(self._conns))]
        except BaseException:
            self.close()
            raise

    def _send(self, worker: int, message: bytes) -> None:
        try:
            self._conns[worker].send_bytes(message)
        except OSError:
            # A worker that failed has already sent why; that says more than a broken pipe.
            self._receive(worker)
            raise self._died(worker) from None

    def _receive(self, worker: int) -> Any:
        """The answer of a worker, None if it is empty; closes all and raises EnvWorkerError if it failed."""
        try:
            message = self._conns[worker].recv_bytes()
        except BlockingIOError:
            raise self._timed_out(worker) from None
        except (EOFError, OSError):
            raise self._died(worker) from None
        answer = pickle.loads(message) if message else None
        if not isinstance(answer, WorkerFailure):
            return answer
        self.close()
        raise EnvWorkerError(
            f"environment {answer.environment} raised while {answer.doing}: {answer.error}\n\n"
            f"Traceback of the worker process:\n{answer.worker_traceback}"
        )

    def _timed_out(self, worker: int) -> EnvWorkerError:
        message = (
            f"the worker process of {self._envs_of(worker)} has not answered for {self._env_timeout:g} s while "
            f"{self._doing_now(worker)}, and was ended. If that may take longer, set env_timeout"
        )
        self._processes[worker].kill()  # it would not react to being closed
        self.close()
        return EnvWorkerError(message)

    def _died(self, worker: int) -> EnvWorkerError:
        process = self._processes[worker]
        process.join(CLOSE_SECONDS)
        code = process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        message = (
            f"the worker process of {self._envs_of(worker)} died without a Python exception while "
            f"{self._doing_now(worker)} ({how})"
        )
        self.close()
        return EnvWorkerError(message)

    def _doing_now(self, worker: int) -> str:
        """The running command, with the actions of a step."""
        if self._doing != "stepping":
            return self._doing
        rows = slice(*[*self._first_rows, None][worker : worker + 2])
        return f"stepping with actions {self._arrays.policy_actions[rows].tolist()}"

    def _envs_of(self, worker: int) -> str:
        """The numbers and names of a worker's environments."""
        start = sum(self._envs_per_group[:worker])
        stop = start + self._envs_per_group[worker]
        first, last = self._first_index + start, self._first_index + stop - 1
        numbers = f"environment {first}" if first == last else f"environments {first} to {last}"
        names = []
        if hasattr(self, "env_names"):
            first_row = sum(self._rows_per_env[:start])
            names = self.env_names[first_row : first_row + sum(self._rows_per_env[start:stop])]
        return f"{numbers} ({', '.join(map(repr, dict.fromkeys(names))) or 'not made yet'})"


def _limit_waiting(conn: Connection, seconds: float | None) -> None:
    """Makes reads from `conn`, an end of a socket pair, raise BlockingIOError after `seconds`.

    A socket option costs nothing per step; `conn.poll(seconds)` would cost a system call. Windows has no such
    option for its pipes, and waits forever.
    """
    if seconds is not None and os.name != "nt":
        interval = struct.pack("@ll", int(seconds), int(1e6 * (seconds % 1)))
        with socket.socket(fileno=os.dup(conn.fileno())) as same_socket:
            same_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)


def _end_workers(conns: list[Connection], processes: list[BaseProcess], owner: int) -> None:
    """Asks all workers to close, waits for them, and ends those that do not by force."""
    # A process forked from the owner holds copies of these objects, but the workers are not its children.
    if os.getpid() != owner:
        return
    for conn in conns:
        with contextlib.suppress(OSError):
            conn.send_bytes(pickle.dumps(("close", ())))
    deadline = time.monotonic() + CLOSE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.terminate()
            process.join(TERMINATE_SECONDS)
        process.kill()
        process.join()
        process.close()
    for conn in conns:
        conn.close()
