"""Table and figures of `benchmarks.learning`, made from the rows in benchmarks/results."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "learning.csv"
CURVES = Path(__file__).parent / "results" / "learning_curves.csv"
Row = dict[str, str]


def read_rows(file: Path = RESULTS) -> list[Row]:
    """The rows of a file of results."""
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def draw_all(tasks: Sequence[str]) -> None: ...


def write_table() -> None: ...
