"""TensorboardTracker: metrics as TensorBoard event files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amago.tracking.metric_logger import x_axis


class TensorboardTracker:
    """Writes scalars `{section}/{name}` over the section's x axis: gradient steps, epochs or environment steps.

    A resumed run may repeat epochs after its checkpoint, and TensorBoard would show both. Event files of earlier
    sessions are therefore replaced by the contents of `history`.

    Args:
        log_dir: Folder of the event files.
        history: The run's metrics.jsonl, from which the metrics of earlier sessions are taken.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | Path, *, history: str | Path | None = None) -> None:
        writer_type = require_tensorboard()
        for path in Path(log_dir).glob("events.out.tfevents.*"):
            path.unlink()
        # A TensorBoard that is running drops what it has read of the earlier files.
        self._writer = writer_type(str(log_dir), purge_step=0)
        if history is not None and Path(history).exists():
            with Path(history).open(encoding="utf-8") as file:
                for text in file:
                    line = json.loads(text)
                    self._write(line["metrics"], line["section"], line["axes"], line["time"])
            self._writer.flush()

    def log(self, metrics: Mapping[str, float], *, section: str, axes: Mapping[str, float]) -> None:
        """Writes one scalar per metric."""
        self._write(metrics, section, axes)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()

    def _write(
        self,
        metrics: Mapping[str, float | None],
        section: str,
        axes: Mapping[str, float],
        unix_time: float | None = None,
    ) -> None:
        step = int(axes.get(x_axis(section), 0))
        for name, value in metrics.items():
            number = math.nan if value is None else value
            self._writer.add_scalar(f"{section}/{name}", number, step, walltime=unix_time)


def require_tensorboard() -> Any:
    """torch's `SummaryWriter`; raises ImportError if tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoard files need tensorboard: pip install tensorboard") from error
    return SummaryWriter
