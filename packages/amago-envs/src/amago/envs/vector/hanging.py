"""Workers that do not answer: after how long that is told, and what they were doing.

Waiting for an answer has a time limit that the operating system keeps, so that it costs nothing per step. A worker
that exceeds it is sent a signal at which it writes the stack of its threads into a pipe, also from inside a call
into compiled code. It writes the same when compiled code crashes.
"""

import faulthandler
import os
import select
import signal
import socket
import struct
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

# Names the thread that every worker has beside the one of its environments
WATCHING_FUNCTION = "_exit_with_parent"
# Neither is there on Windows, where pipes have no file descriptors that a stack could be written into either.
_SIGNAL = getattr(signal, "SIGUSR2", None) if hasattr(faulthandler, "register") else None
_FIRST_WORD_SECONDS = 2.0
_QUIET_SECONDS = 0.2


def limit_waiting(conn: Connection, seconds: float | None) -> None:
    """Lets reads from `conn`, an end of a socket pair, raise BlockingIOError after `seconds`; None waits on."""
    if seconds is None or _SIGNAL is None:
        return
    whole = int(seconds)
    interval = struct.pack("@ll", whole, int(1e6 * (seconds - whole)))
    with socket.socket(fileno=os.dup(conn.fileno())) as same_socket:
        same_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)


def answer_with_stack(trace: Connection) -> None:
    """In a worker: writes the stack of all threads into `trace` when `stack_of` asks for it, and at a crash."""
    if _SIGNAL is not None:
        faulthandler.enable(file=trace.fileno(), all_threads=True)
        faulthandler.register(_SIGNAL, file=trace.fileno(), all_threads=True)


def stack_of(process: BaseProcess, trace: Connection) -> str:
    """Where a worker is right now, most recent call first; what is known instead if it does not tell."""
    if _SIGNAL is None or process.pid is None:
        return "  (not known on this system)"
    os.kill(process.pid, _SIGNAL)
    return _written_stack(trace, _FIRST_WORD_SECONDS) or "  (it does not react to signals)"


def last_stack(trace: Connection) -> str:
    """Where a worker that died was when compiled code crashed; "" if that is not how it died."""
    return "" if _SIGNAL is None else _written_stack(trace, 0.0)


def _written_stack(trace: Connection, wait: float) -> str:
    written = b""
    while select.select([trace], [], [], wait)[0]:
        part = os.read(trace.fileno(), 2**16)
        if not part:
            break
        written, wait = written + part, _QUIET_SECONDS
    parts = written.decode(errors="replace").strip().split("\n\n")
    told = [part for part in parts if part and WATCHING_FUNCTION not in part and " File " in part]
    return "\n".join(told)
