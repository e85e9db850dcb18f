"""Metrics as TensorBoard event files, where that library is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from amago.tracking.base import Number, as_floats


class TensorboardTracker:
    """Writes scalars `{section}/{name}` over one of the axes.

    Args:
        log_dir: folder for the event files.
        step_axis: the axis that becomes the step, in whole numbers; where it is not among the axes of a call,
            the calls of that section are counted.

    Raises:
        ImportError: if tensorboard is not installed; the message says what to install.
    """

    def __init__(self, log_dir: str | Path, step_axis: str = "total_frames") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard files need tensorboard: pip install tensorboard") from error
        self.step_axis = step_axis
        self._calls: dict[str, int] = {}
        self._writer = SummaryWriter(str(log_dir))

    def log(self, metrics: Mapping[str, Number], *, section: str, axes: Mapping[str, Number]) -> None:
        """Writes one scalar per metric."""
        calls = self._calls[section] = self._calls.get(section, -1) + 1
        step = int(as_floats(axes).get(self.step_axis, calls))
        for name, value in as_floats(metrics).items():
            self._writer.add_scalar(f"{section}/{name}", value, step)

    def close(self) -> None:
        """Writes out what is buffered."""
        self._writer.close()
