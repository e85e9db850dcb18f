"""Where metrics go: any number of trackers behind one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Number = Any
"""A float, or what `float()` takes: an int, a numpy scalar, a tensor with one element."""


class Tracker(Protocol):
    """Takes metrics as they arise and keeps or shows them."""

    def log(self, metrics: Mapping[str, Number], *, section: str, axes: Mapping[str, Number]) -> None:
        """Records one set of metrics.

        Args:
            metrics: numbers by name.
            section: what they are about: "train", "val", "test", "train-update" or "dataset".
            axes: where in training they belong, e.g. total_frames, Epoch and gradient_steps.

        Raises:
            TypeError: if a metric is not a single number.
        """
        ...

    def close(self) -> None:
        """Finishes what is unfinished; may be called twice."""
        ...


class MultiTracker:
    """Passes everything on to several trackers, in order.

    Args:
        trackers: those to pass on to; none of them drops everything.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def log(self, metrics: Mapping[str, Number], *, section: str, axes: Mapping[str, Number]) -> None:
        """Records the metrics with every tracker; reads each number once, so that a device is waited for once."""
        numbers, places = as_floats(metrics), as_floats(axes)
        for tracker in self.trackers:
            tracker.log(numbers, section=section, axes=places)

    def close(self) -> None:
        """Closes every tracker, later ones too if an earlier one fails."""
        first_error: Exception | None = None
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error


def as_floats(numbers: Mapping[str, Number]) -> dict[str, float]:
    """Every value as a float; raises TypeError that names a value which is not one number."""
    floats: dict[str, float] = {}
    for name, value in numbers.items():
        try:
            floats[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"metric {name!r} must be a single number, not {value!r}") from error
    return floats
