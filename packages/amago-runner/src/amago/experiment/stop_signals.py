"""Signals that end a run after the running step: Ctrl-C, the end of a job, preemption by a cluster's scheduler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class RunStopped(SystemExit):
    """A signal ended `Experiment.learn()`, after a checkpoint was written and the experiment closed.

    Uncaught, it ends the program with the exit status 128 + the number of the signal.

    Attributes:
        signal: The signal.
    """

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(128 + received)
        self.signal = received


class StopRequested(Exception):
    """A signal arrived; raised in all processes at the same point of `Experiment.learn`, which ends the run."""


class StopSignals:
    """Notes the first of these signals; the second one has the effect that it had before.

    A context, which does nothing outside of the main thread. Signals that are ignored stay ignored.

    Args:
        names: Names of signals, such as "SIGTERM".

    Attributes:
        received: The first signal that arrived; None before that.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.received: signal.Signals | None = None
        self._signals = [signal.Signals[name] for name in names]
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for each in self._signals:
                handler = signal.getsignal(each)
                if handler not in (signal.SIG_IGN, None):  # None: installed by C code, cannot be restored
                    self._before[each] = handler
                    signal.signal(each, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
        else:
            self.__exit__(None, None, None)
            signal.raise_signal(number)
