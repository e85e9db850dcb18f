"""Lets Ctrl-C wait for the moment between two steps in which nothing is recorded by half.

An interrupt may come at any instruction of the main thread. In the middle of recording a step it would leave some
rows with the step and others without, and what is written afterwards would hold transitions twice, or the first
observation of the next episode.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class InterruptGate:
    """Holds off the first Ctrl-C while it is closed; a second one comes through, as what hangs must be ended.

    `with gate:` closes it. It works in the main thread, which is the one that Python interrupts, and does nothing
    elsewhere.
    """

    def __init__(self) -> None:
        self._closed = False
        self._waiting = False
        self._handle: Callable[[int, FrameType | None], Any] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Takes over interrupts in this block; closing the gate has no effect outside of one."""
        handle = signal.getsignal(signal.SIGINT)
        if handle == self._interrupt:  # an interrupt kept an earlier block from restoring it
            handle = self._handle
        if not callable(handle) or threading.current_thread() is not threading.main_thread():
            yield
            return
        # Interrupts that met the gate's own instructions may have left it closed.
        self._handle, self._waiting, self._closed = handle, False, False
        try:
            signal.signal(signal.SIGINT, self._interrupt)
            yield
        finally:
            signal.signal(signal.SIGINT, handle)

    def __enter__(self) -> None:
        self._closed = True

    def __exit__(self, *exc: object) -> None:
        self._closed = False
        if self._waiting:
            self._interrupt(signal.SIGINT, None)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._closed and not self._waiting:
            self._waiting = True
        else:
            self._waiting = False
            if self._handle is not None:
                self._handle(number, frame)


@contextmanager
def interrupts_held_off() -> Iterator[None]:
    """A first Ctrl-C waits until this block has ended, as at a closed `InterruptGate`."""
    gate = InterruptGate()
    with gate.watching(), gate:
        yield
