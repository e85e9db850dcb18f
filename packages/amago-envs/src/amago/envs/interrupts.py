"""Deferring Ctrl-C: a SIGINT takes effect after the running operation, for example when a step is recorded."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class DeferredInterrupts:
    """A signal handler that notes the first SIGINT and passes both to the original handler at the second.

    Attributes:
        pending: whether a SIGINT is waiting for `deliver`.
    """

    def __init__(self, original: Handler) -> None:
        self.pending = False
        self._original = original

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            self.pending = False
            self._original(number, frame)  # may only take note of the first one
            self._original(number, frame)
        else:
            self.pending = True

    def deliver(self) -> None:
        """Calls the original handler if a SIGINT is pending; Python's own raises KeyboardInterrupt."""
        if self.pending:
            self.pending = False
            self._original(signal.SIGINT, None)


@contextmanager
def defer_interrupts() -> Iterator[DeferredInterrupts]:
    """Defers SIGINT until the end of the block, or until `deliver` of the yielded object is called.

    A second SIGINT is delivered at once, so that a hanging operation can be stopped. Python runs signal handlers
    in the main thread only; in other threads nothing is deferred.
    """
    original = signal.getsignal(signal.SIGINT)
    if not callable(original) or threading.current_thread() is not threading.main_thread():
        yield DeferredInterrupts(signal.default_int_handler)
        return
    deferred = DeferredInterrupts(original)
    signal.signal(signal.SIGINT, deferred)
    try:
        yield deferred
    finally:
        signal.signal(signal.SIGINT, original)
        deferred.deliver()
