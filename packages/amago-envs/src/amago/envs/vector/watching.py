"""Waiting for the next message of another process without falling asleep when it is about to come.

To wake a process that sleeps takes longer than many environments take for a step, and between two processes that
ask and answer it happens twice per step: together 70 to 130 us, on a virtual machine with one or two workers.
"""

import os
import select
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

PATIENCE_SECONDS = 1e-3
_CAN_LOOK = hasattr(select, "poll") and hasattr(os, "sched_yield")


class Watch:
    """Receives the messages of a connection; while they come in quick succession, it stays awake for them.

    Staying awake is to look again and again, and to let whatever else wants the processor core have it between two
    looks. It ends after `PATIENCE_SECONDS`, and is not tried again until a message took less than that to come, so
    slow environments and slow agents are waited for asleep.

    Args:
        conn: where the messages come from.
        awake: False always waits asleep, for where there are more workers than processor cores.
        clock: seconds.
    """

    def __init__(
        self, conn: Connection, *, awake: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._conn = conn
        self._clock = clock
        self._comes_soon = True
        self._look: Callable[[int], object] | None = None
        if awake and _CAN_LOOK:
            poll = select.poll()
            poll.register(conn.fileno(), select.POLLIN)
            self._look = poll.poll

    def receive(self) -> bytes:
        """The next message; raises what `Connection.recv_bytes` does."""
        look = self._look
        if look is None:
            return self._conn.recv_bytes()
        began = self._clock()
        if self._comes_soon:
            while not look(0) and self._clock() - began < PATIENCE_SECONDS:
                os.sched_yield()
        message = self._conn.recv_bytes()
        self._comes_soon = self._clock() - began < PATIENCE_SECONDS
        return message
