"""Runs scripts of the examples folder as their readers do, and reads what they log."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_python(*arguments: str, **environment: str) -> str:
    """Runs `python ARGUMENTS` in one thread; returns what it prints, and fails with it."""
    command = [sys.executable, *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def logged_metrics(run_folder: Path, section: str) -> dict[str, float]:
    """The last metrics that a run logged under "val", "train", "train-update" or "test"; empty without any."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [{}, *(entry["metrics"] for entry in map(json.loads, lines) if entry["section"] == section)][-1]


def run_example(
    script: str, buffer_dir: Path, arguments: Sequence[str] = (), **environment: str
) -> dict[str, float]:
    """Runs a training script without wandb; returns the metrics of its only run's final test."""
    options = ["--run_name", "run", "--buffer_dir", str(buffer_dir), *arguments]
    run_python(str(EXAMPLES / script), *options, **environment)
    (run_folder,) = (path.parent for path in buffer_dir.glob("*/metrics.jsonl"))
    assert math.isfinite(logged_metrics(run_folder, "train-update")["Actor Loss"])
    return logged_metrics(run_folder, "test")
