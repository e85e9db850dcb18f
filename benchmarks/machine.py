"""Columns of result rows that describe the machine and the versions, and storage of the rows."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def cpu_name() -> str:
    """The processor by its own name, as far as Linux tells."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def version(distribution: str) -> str:
    """What is installed of it; empty if nothing is."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def commit() -> str:
    """The checked-out commit, with a plus where the packages differ from it; what COMMIT says in a mere copy."""
    if "COMMIT" in os.environ or not (ROOT / ".git").exists():
        return os.environ.get("COMMIT", "")
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "packages"], cwd=ROOT, capture_output=True, text=True
    )
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def describe() -> dict[str, str]:
    """Machine, versions, date and commit as columns of a row."""
    return {
        "cpu": cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
    }


def append(file: Path, row: Mapping[str, str]) -> None:
    """Add a row to a file of results; the first one brings the header."""
    file.parent.mkdir(exist_ok=True)
    new = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, fieldnames=list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)
