"""JsonlTracker: metrics in a JSON lines file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path


class JsonlTracker:
    """Appends a line per call: `{"section": ..., "axes": {...}, "metrics": {...}, "time": unix seconds}`.

    NaN and infinities, which JSON does not have, are written as null. Lines are flushed immediately. If a killed
    process left an incomplete last line, that line is removed.

    Args:
        path: The file. Its folder is created; existing lines are kept.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_incomplete_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], *, section: str, axes: Mapping[str, float]) -> None:
        """Appends a line; raises ValueError after `close`."""
        line = {"section": section, "axes": _as_json(axes), "metrics": _as_json(metrics), "time": time.time()}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _as_json(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers, those without fraction as integers and those that are not finite as None."""
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {name: int(x) if x is not None and x.is_integer() else x for name, x in finite.items()}


def _remove_incomplete_line(path: Path) -> None:
    """Truncates the file after its last line break."""
    if path.exists():
        content = path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            with path.open("rb+") as file:
                file.truncate(complete)


def cut_metrics(path: Path, size: int, epoch: int) -> None:
    """Shortens a metrics file to its first `size` bytes and the lines of epochs up to `epoch` that follow them."""
    if not path.exists() or path.stat().st_size <= size:
        return
    with path.open("rb+") as file:
        file.seek(size)
        for line in file:
            if not line.endswith(b"\n") or json.loads(line)["axes"].get("Epoch", 0) > epoch:
                break
            size += len(line)
        file.truncate(size)
