"""Tables of measured speed: in which order "auto" tries the backends of an operation on a device.

One table comes with the package, `measured.json` beside this file; `python -m amago.kernels.tune` writes the
user's own, of the same name, to the folder where native builds are kept. A row of the user's has precedence over
one of the package's. A table of another format, or one that cannot be read, is ignored with a warning.

    {"format": 1, "devices": [{"device": "cpu x86_64 AVX512", "threads": 2, "date": "2026-01-31", ...,
      "microseconds": {"two_hot_mean": {"small single": {"cpp": 20.5, "torch": 61.2}}}}]}

The order in which a row names backends is the order in which they are tried: the fastest first, but of those
within a few percent of each other the one that comes first by default, and "eager" last in training.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from amago.kernels.compile import PACKAGE, cache_folder

FORMAT = 1
PACKAGE_TABLE = PACKAGE / "measured.json"


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one operation and class of sizes on one device.

    Args:
        microseconds: the median of each backend, in the order in which "auto" tries them.
        source: the file it comes from.
        notes: versions, date, threads and the like, by name.
    """

    microseconds: dict[str, float]
    source: Path
    notes: dict[str, Any]


Rows = dict[tuple[str, str, str], Row]  # by device, operation and class


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None  # not here, or run from the sources


def versions() -> dict[str, str | None]:
    """What the speed of the backends depends on besides the machine, as it is kept with measurements."""
    return {
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "amago-kernels": _version("amago-kernels"),
    }


def outdated(row: Row) -> list[str]:
    """Which versions were others when the user measured a row; none for the package's own rows.

    Such rows count all the same: they are nearer to what is here than the default order is.
    """
    if row.source == PACKAGE_TABLE:
        return []
    return [
        f"{name} was {row.notes.get(name)}, is {now}"
        for name, now in versions().items()
        if row.notes.get(name) != now
    ]


def user_table() -> Path:
    """Where `tune` writes by default."""
    return cache_folder() / PACKAGE_TABLE.name


def read(path: Path) -> dict[str, Any]:
    """A table as it is in its file; an empty one if there is no such file.

    Raises:
        ValueError: if it is of another format or cannot be read.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"format": FORMAT, "devices": []}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        found = table.get("format") if isinstance(table, dict) else None
        raise ValueError(f"it is of format {found!r}, and this version reads format {FORMAT}")
    return table


def rows_of(path: Path) -> Rows:
    """The rows of a table.

    Raises:
        ValueError: if it is of another format or cannot be read.
    """
    rows: Rows = {}
    table = read(path)
    try:
        for entry in table["devices"]:
            notes = {name: value for name, value in entry.items() if name != "microseconds"}
            for operation, classes in entry["microseconds"].items():
                for shape, times in classes.items():
                    microseconds = {str(name): float(time) for name, time in times.items()}
                    rows[entry["device"], operation, shape] = Row(microseconds, path, notes)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its entries are not as they should be ({error!r})") from error
    return rows


@functools.cache
def known() -> Rows:
    """The package's rows and the user's over them; read once in a process (`known.cache_clear` forgets)."""
    rows: Rows = {}
    for path in (PACKAGE_TABLE, user_table()):
        try:
            rows |= rows_of(path)
        except ValueError as error:
            remedy = "python -m amago.kernels.tune writes one anew"
            warnings.warn(f"the table of measured speed {path} is ignored: {error}; {remedy}", stacklevel=2)
    return rows


def write(path: Path, entry: dict[str, Any]) -> None:
    """Puts what was measured on one device into a table, in place of what it said of that device.

    A table that cannot be read is replaced. Readers find the old one or the new one, whole.

    Raises:
        OSError: if the file cannot be written.
    """
    try:
        devices = read(path)["devices"]
    except (ValueError, KeyError):
        devices = []
    devices = [other for other in devices if other.get("device") != entry["device"]] + [entry]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as handle:
        handle.write(_text({"format": FORMAT, "devices": sorted(devices, key=lambda x: str(x["device"]))}))
    os.chmod(handle.name, 0o644)
    os.replace(handle.name, path)


def _text(table: dict[str, Any]) -> str:
    """JSON with a line for every row."""
    entries = []
    for entry in table["devices"]:
        lines = [f'   "{k}": {json.dumps(v)}' for k, v in entry.items() if k != "microseconds"]
        operations = []
        for operation, classes in entry["microseconds"].items():
            rows = [f"     {json.dumps(shape)}: {json.dumps(times)}" for shape, times in classes.items()]
            operations.append(f"    {json.dumps(operation)}: {{\n" + ",\n".join(rows) + "\n    }")
        lines.append('   "microseconds": {\n' + ",\n".join(operations) + "\n   }")
        entries.append("  {\n" + ",\n".join(lines) + "\n  }")
    return f'{{\n "format": {table["format"]},\n "devices": [\n' + ",\n".join(entries) + "\n ]\n}\n"
