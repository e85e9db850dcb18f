"""MetricLogger: sends metrics to any number of trackers; and Tracker, the interface of these."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

Number = Any
"""A float, or any value that `float()` accepts: an int, a NumPy scalar, a tensor with one element."""


_X_AXES = {
    "train-update": "gradient_steps",
    "learning": "gradient_steps",
    "time": "Epoch",
    "time-collector": "Epoch",
}


def x_axis(section: str) -> str:
    """Name of the axis over which a section's metrics are drawn."""
    return _X_AXES.get(section, "total_frames")


class Tracker(Protocol):
    """Writes metrics to a file or a service."""

    def log(self, metrics: Mapping[str, float], *, section: str, axes: Mapping[str, float]) -> None:
        """Logs metrics.

        Args:
            metrics: Values by name.
            section: "train", "val", "test", "train-update", "dataset", "learning", "time" or "time-collector".
            axes: Values of the x axes: total_frames, Epoch, gradient_steps and those of `x_axis_metrics`.
        """
        ...

    def close(self) -> None:
        """Writes pending metrics and closes; may be called twice."""
        ...


class MetricLogger:
    """Logs metrics to several trackers.

    Args:
        trackers: The trackers. Metrics are discarded if there are none.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self.trackers = list(trackers)

    def log(self, metrics: Mapping[str, Number], *, section: str, axes: Mapping[str, Number]) -> None:
        """Converts all values to floats and logs them to every tracker; see `Tracker.log`.

        Raises:
            TypeError: a metric is not a single number.
        """
        metric_values, axis_values = _as_floats(metrics), _as_floats(axes)
        for tracker in self.trackers:
            tracker.log(metric_values, section=section, axes=axis_values)

    @property
    def wandb_run_id(self) -> str | None:
        """ID of the run on Weights & Biases, if metrics are logged there."""
        ids = [str(tracker.run_id) for tracker in self.trackers if hasattr(tracker, "run_id")]
        return ids[0] if ids else None

    def close(self) -> None:
        """Closes every tracker, even if an earlier one raises."""
        with contextlib.ExitStack() as stack:
            for tracker in self.trackers:
                stack.callback(tracker.close)


def _as_floats(numbers: Mapping[str, Number]) -> dict[str, float]:
    floats: dict[str, float] = {}
    for name, value in numbers.items():
        try:
            floats[name] = float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"metric {name!r} must be a single number, not {value!r}") from error
    return floats
