"""Worker processes from outside: how they start, why one cannot, and how all of them end."""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from amago.envs.vector.worker import BEING_CLOSED, CLOSE, WorkerFailure, WorkerSetup

# Of the container that this process is in: microseconds that it may use, of how many.
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CLOSE_SECONDS = 5.0  # for environments to close by themselves
TERMINATE_SECONDS = 1.0


def cannot_be_sent(setup: WorkerSetup, context: BaseContext, error: Exception) -> ValueError:
    """What to raise where `error` arose because the environments could not be pickled."""
    method = context.get_start_method()
    for i, make_env in enumerate(setup.make_envs):
        try:
            pickle.dumps(make_env)
        except Exception:
            name = getattr(make_env, "__qualname__", repr(make_env))
            return ValueError(
                f"the callable of environment {setup.first_index + i}, {name!r}, cannot be sent to a process "
                f"started by {method!r}: use a function at the top level of a module (functools.partial of one "
                "included) in place of a lambda or an inner function, or mp_context='fork'"
            )
    return ValueError(f"the environments cannot be sent to a process started by {method!r}: {error}")


@contextlib.contextmanager
def interrupts_waiting(context: BaseContext) -> Iterator[None]:
    """Lets Ctrl-C wait until a worker was started and noted.

    An interrupt that meets what Python runs around a fork is lost, and a process that begins with interrupts
    blocked can learn to ignore them before it could die of one with a traceback. Blocking them in this thread is
    not enough: where there are others, the system hands the signal to one of those, and Python calls the handler.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if context.get_start_method() != "fork":
        # Starting a process starts this one if it does not run yet, and then lets interrupts through again.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handle = signal.getsignal(signal.SIGINT)
    is_ours = callable(handle) and threading.current_thread() is threading.main_thread()
    noted: list[tuple[int, FrameType | None]] = []
    try:
        if is_ours:
            signal.signal(signal.SIGINT, lambda number, frame: noted.append((number, frame)))
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, handle)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if noted and callable(handle):
            handle(*noted[0])


def end_workers(
    conns: list[Connection], traces: list[Connection], processes: list[BaseProcess], owner: int
) -> None:
    """Asks all workers to end, waits for them, and ends those by force that do not."""
    # A process forked from the owner holds copies of these objects, but the workers are not its own.
    if os.getpid() != owner:
        return
    for conn in conns:
        try:
            conn.send_bytes(CLOSE)
        except OSError:
            continue
    deadline = time.monotonic() + CLOSE_SECONDS
    for process in processes:
        if not has_ended(process, max(0.0, deadline - time.monotonic())):
            process.terminate()
            has_ended(process, TERMINATE_SECONDS)
        kill_with_children(process)
        process.join()
        process.close()
    failures = [failure for conn in conns if (failure := _failure_of_closing(conn)) is not None]
    for conn in (*conns, *traces):
        conn.close()
    for failure in failures:
        warnings.warn(
            f"environment {failure.environment} raised while {failure.doing}: {failure.error}\n\n"
            f"Traceback of the worker process:\n{failure.worker_traceback}",
            stacklevel=2,
        )


def has_ended(process: BaseProcess, seconds: float) -> bool:
    """Whether a process ends within so many seconds; its exit code and its number are kept."""
    assert process.pid is not None
    if _was_waited_for(process.pid):
        return True
    ends: list[int] = [process.sentinel]
    # The sentinel alone is not enough: a process that the worker forked holds a copy of its other end.
    with contextlib.suppress(AttributeError, OSError):  # not on Linux, or gone
        ends.append(os.pidfd_open(process.pid))
    try:
        return bool(wait(ends, seconds))
    finally:
        for descriptor in ends[1:]:
            os.close(descriptor)


def _was_waited_for(pid: int) -> bool:
    """Whether there is no process of that number any more; its children may still hold its sentinel open."""
    if not hasattr(os, "killpg"):  # on Windows, where os.kill ends processes whatever the signal
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # no process has the number, or another's has it by now
        return True
    return False


def kill_with_children(process: BaseProcess) -> None:
    """Kills a worker and whatever processes its environments started, unless it was waited for already."""
    group = process.pid if hasattr(os, "killpg") else None
    if group is not None and _is_still_there(process):
        # No group of this number: the worker was still starting.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    process.kill()


def _is_still_there(process: BaseProcess) -> bool:
    """Whether no other process can have its number: it runs, or it is a child that nobody has waited for."""
    if not has_ended(process, 0.0):
        return True
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    assert process.pid is not None
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _failure_of_closing(conn: Connection) -> WorkerFailure | None:
    """What a worker told when an environment raised in its `close`, if that is so."""
    with contextlib.suppress(OSError, EOFError):
        while conn.poll():
            message = conn.recv_bytes()
            answer = pickle.loads(message) if message else None
            if isinstance(answer, WorkerFailure) and answer.doing == BEING_CLOSED:
                return answer
    return None


def default_context(name: str | None) -> BaseContext:
    """The multiprocessing context of that name; None is "fork" where there is one, as people pass lambdas."""
    methods = multiprocessing.get_all_start_methods()
    if name is None:
        name = "fork" if "fork" in methods else methods[0]
    if name not in methods:
        raise ValueError(f"mp_context must be one of {', '.join(methods)}, got {name!r}")
    return multiprocessing.get_context(name)


def available_cores() -> int:
    """Processor cores that this process may use, rounded up where a container gives parts of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such limit: "max", or another system
        quota, period = map(int, _CPU_QUOTA.read_text().split())
        cores = min(cores, max(1, math.ceil(quota / period)))
    # Data-parallel ranks on one machine share its cores; launchers such as torchrun tell their number.
    return max(1, cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))
