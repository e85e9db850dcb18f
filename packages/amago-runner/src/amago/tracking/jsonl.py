"""Metrics as a text file of JSON lines, always written, so that no run depends on a service to be understood."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from amago.tracking.base import Number, as_floats


class JsonlTracker:
    """Appends one line per call: `{"section": ..., "axes": {...}, "metrics": {...}, "time": unix seconds}`.

    Numbers that JSON has no words for (NaN, infinities) are written as null. A line reaches the file in one
    piece before `log` returns. If an earlier process died in the middle of a line, that line is removed.

    Args:
        path: the file; its folder is made if need be. What it holds already is kept.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_torn_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, Number], *, section: str, axes: Mapping[str, Number]) -> None:
        """Appends a line; raises ValueError after `close`."""
        line = {"section": section, "axes": _finite(axes), "metrics": _finite(metrics), "time": time.time()}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _finite(numbers: Mapping[str, Number]) -> dict[str, float | int | None]:
    finite: dict[str, float | int | None] = {}
    for name, value in as_floats(numbers).items():
        if not math.isfinite(value):
            finite[name] = None
        else:
            finite[name] = int(value) if value.is_integer() and abs(value) < 2**53 else value
    return finite


def _remove_torn_line(path: Path) -> None:
    """Cuts the file after its last line break."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            size = min(4096, position)
            position -= size
            file.seek(position)
            found = file.read(size).rfind(b"\n")
            if found >= 0:
                position += found + 1
                break
        if position < end:
            file.truncate(position)
