"""TensorboardTracker: metrics as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from amago.tracking.metric_logger import Number, as_floats


class TensorboardTracker:
    """Writes scalars `{section}/{name}`.

    Args:
        log_dir: Folder of the event files.
        step_axis: The axis used as the step. Where a call does not have it, calls of that section are counted.

    Raises:
        ImportError: tensorboard is not installed.
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
        """Flushes and closes the event file."""
        self._writer.close()
