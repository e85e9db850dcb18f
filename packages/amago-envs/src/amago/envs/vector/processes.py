"""Worker processes from outside: how they start, why one cannot, and how all of them end."""

import multiprocessing
import os
import pickle
import time
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from amago.envs.vector.worker import CLOSE, WorkerSetup

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
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.terminate()
            process.join(TERMINATE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
    for conn in (*conns, *traces):
        conn.close()


def default_context(name: str | None) -> BaseContext:
    """The multiprocessing context of that name; None is "fork" where there is one, as people pass lambdas."""
    methods = multiprocessing.get_all_start_methods()
    if name is None:
        name = "fork" if "fork" in methods else methods[0]
    if name not in methods:
        raise ValueError(f"mp_context must be one of {', '.join(methods)}, got {name!r}")
    return multiprocessing.get_context(name)
