"""Worker processes of a vector environment: how they start and end, and what is told of those that fail.

Workers make their environments themselves and tell what they look like; then the shared block is made and its
descriptor handed over. Nothing is left behind: the memory has no name, workers end with the main process, and
closing, a failed start, garbage collection and the interpreter's exit all end them.
"""

import mmap
import os
import pickle
import signal
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from amago.envs.vector.base import BufferedVectorEnv
from amago.envs.vector.buffers import StepArrays, block_size, carve, layout, open_shared_block
from amago.envs.vector.configuration import bindings_for_workers
from amago.envs.vector.group_spec import ExplorationSetup, GroupSpec, MakeEnv, common_spec
from amago.envs.vector.hanging import last_stack, limit_waiting, stack_of
from amago.envs.vector.processes import (
    CLOSE_SECONDS,
    available_cores,
    cannot_be_sent,
    end_workers,
    has_ended,
    interrupts_waiting,
    kill_with_children,
)
from amago.envs.vector.types import EnvWorkerError
from amago.envs.vector.watching import Watch
from amago.envs.vector.worker import SharedRows, WorkerFailure, WorkerSetup, worker_main


class WorkerProcesses(BufferedVectorEnv):
    """A vector environment whose environments live in other processes; subclasses ask them to do something.

    Args:
        groups: the callables of each worker's environments.
        exploration: wrapped around each environment.
        context: how processes start; those that inherit nothing receive gin's bindings.
        seed, rank, role: name the random streams of the environments.
        env_timeout: seconds after which a worker that does not answer is reported and ended; None waits forever.

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
        env_timeout: float | None = None,
    ) -> None:
        self._env_timeout = env_timeout
        self._doing = "making its environments"
        self._envs_per_group = [len(group) for group in groups]
        gin_bindings = [] if context.get_start_method() == "fork" else bindings_for_workers()
        self._has_exploration = exploration.wrapper_type is not None
        # With more workers than cores, one that stays awake would keep another from its step.
        self._awake = 1 < available_cores() >= len(groups)
        self._conns: list[Connection] = []
        self._answers: list[Watch] = []
        self._traces: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._closed = False
        # Holds no reference to self, so it also runs when this object is collected; at exit it runs in any
        # case.
        self._finalizer = weakref.finalize(
            self, end_workers, self._conns, self._traces, self._processes, os.getpid()
        )
        try:
            first_index = 0
            for group in groups:
                trace, workers_trace = context.Pipe(duplex=False)
                self._traces.append(trace)
                setup = WorkerSetup(
                    make_envs=group,
                    first_index=first_index,
                    exploration=exploration,
                    trace=workers_trace,
                    awake=self._awake,
                    gin_bindings=gin_bindings,
                )
                try:
                    self._start_worker(context, setup)
                finally:
                    workers_trace.close()
                first_index += len(group)
            specs: list[GroupSpec] = [self._receive(i) for i in range(len(groups))]
            spec = common_spec(specs, 0)
            super().__init__(spec, self._share_block(specs, spec), seed=seed, rank=rank, role=role)
        except BaseException:
            self.close()
            raise

    def _start_worker(self, context: BaseContext, setup: WorkerSetup) -> None:
        ours, theirs = context.Pipe()
        # Spawned processes receive only what they are sent, so there is nothing to close in them.
        inherited = (*self._conns, *self._traces, ours) if context.get_start_method() == "fork" else ()
        process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=worker_main,
            args=(theirs, inherited, setup),
            name=f"amago-envs-{setup.first_index}",
            daemon=True,
        )
        self._conns.append(ours)
        self._answers.append(Watch(ours, awake=self._awake))
        limit_waiting(ours, self._env_timeout)
        try:
            with interrupts_waiting(context):
                process.start()
                self._processes.append(process)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise cannot_be_sent(setup, context, error) from error
        finally:
            # Only the worker may hold its end: its death then shows as the end of the pipe.
            theirs.close()

    def _share_block(self, specs: Sequence[GroupSpec], spec: GroupSpec) -> StepArrays:
        fields = layout(spec.observation_space, spec.rl2_space, spec.action_space)
        num_rows = sum(spec.rows_per_env)
        size = block_size(fields, num_rows)
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

    def close(self) -> None:
        self._closed = True
        self._finalizer()

    def _by_worker(self, per_env: Sequence[Any]) -> list[list[Any]]:
        """One entry per environment, by worker."""
        parts: list[list[Any]] = []
        start = 0
        for count in self._envs_per_group:
            parts.append(list(per_env[start : start + count]))
            start += count
        return parts

    def _send(self, worker: int, message: bytes) -> None:
        try:
            self._conns[worker].send_bytes(message)
        except OSError:
            # A worker that failed has already sent why; that is more to the point than a broken pipe.
            self._receive(worker)
            raise self._died(worker) from None

    def _receive(self, worker: int) -> Any:
        """The answer of a worker, None if it is empty; closes all and raises EnvWorkerError if it failed."""
        try:
            message = self._answers[worker].receive()
        except BlockingIOError:
            raise self._hangs(worker) from None
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

    def _doing_now(self, worker: int) -> str:
        """What a worker was asked to do."""
        if self._doing != "stepping":
            return self._doing
        rows = slice(*[*self._first_rows, None][worker : worker + 2])
        return f"stepping with actions {self._arrays.policy_actions[rows].tolist()}"

    def _hangs(self, worker: int) -> EnvWorkerError:
        process = self._processes[worker]
        stack = stack_of(process, self._traces[worker])
        # It would not end by itself either.
        kill_with_children(process)
        message = (
            f"the worker process of {self._whose(worker)} has not answered for {self._env_timeout:g} s while "
            f"{self._doing_now(worker)}. If that may take longer, set env_timeout. Where it was, most recent call "
            f"first:\n\n{stack}"
        )
        self.close()
        return EnvWorkerError(message)

    def _whose(self, worker: int) -> str:
        """The numbers and names of a worker's environments."""
        first = sum(self._envs_per_group[:worker])
        last = first + self._envs_per_group[worker] - 1
        numbers = f"environment {first}" if first == last else f"environments {first} to {last}"
        names = []
        if hasattr(self, "env_names"):
            first_row = sum(self._rows_per_env[:first])
            names = self.env_names[first_row : first_row + sum(self._rows_per_env[first : last + 1])]
        return f"{numbers} ({', '.join(map(repr, dict.fromkeys(names))) or 'not made yet'})"

    def _died(self, worker: int) -> EnvWorkerError:
        process = self._processes[worker]
        stack = last_stack(self._traces[worker])
        # Not joined yet, as the number of its group is only its own until then.
        has_ended(process, CLOSE_SECONDS)
        kill_with_children(process)
        process.join(CLOSE_SECONDS)
        code = process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        message = (
            f"the worker process of {self._whose(worker)} died without a word while {self._doing_now(worker)} "
            f"({how})"
        )
        if stack:
            message += f". Where it was, most recent call first:\n\n{stack}"
        self.close()
        return EnvWorkerError(message)
