"""TensorboardTracker: metrics as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class TensorboardTracker:
    """Writes scalars `{section}/{name}` over environment steps.

    Args:
        log_dir: Folder of the event files.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard files need tensorboard: pip install tensorboard") from error
        self._writer = SummaryWriter(str(log_dir))

    def log(self, metrics: Mapping[str, float], *, section: str, axes: Mapping[str, float]) -> None:
        """Writes one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{section}/{name}", value, int(axes["total_frames"]))

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()
