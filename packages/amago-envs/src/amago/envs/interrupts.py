"""Deferring Ctrl-C: a SIGINT takes effect after the running operation, so that nothing is recorded by half."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_interrupts() -> Iterator[Callable[[], None]]:
    """Defers SIGINT in this block; yields a function that delivers a deferred one, as the end of the block does.

    A second SIGINT is delivered at once, so that a hanging operation can be stopped. Python runs signal handlers
    in the main thread only; in other threads this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    original: Callable[[int, FrameType | None], object] = handler
    deferred = False

    def defer(number: int, frame: FrameType | None) -> None:
        nonlocal deferred
        if deferred:
            deferred = False
            original(number, frame)
        else:
            deferred = True

    def deliver() -> None:
        nonlocal deferred
        if deferred:
            deferred = False
            original(signal.SIGINT, None)

    signal.signal(signal.SIGINT, defer)
    try:
        yield deliver
    finally:
        signal.signal(signal.SIGINT, handler)
        deliver()
