"""The quickstart for several seeds: does each reach its figures, and how long does it take?

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2

Every seed is a whole `amago-run train` in a process of its own, into runs/quickstart-SEED; the row of a seed goes
to benchmarks/results/quickstart.csv as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT, append, describe

RESULTS = Path(__file__).parent / "results" / "quickstart.csv"
FIGURES = ("seed", "mean_return", "success_by_attempt", "env_steps", "gradient_steps", "wall_seconds")


def train(seed: int, extra: list[str]) -> dict[str, str]:
    """Train one seed and return its row."""
    name = f"quickstart-{seed}"
    command = ["amago-run", "train", "--seed", str(seed), "--run-name", name, "--overwrite", *extra]
    command[0] = str(Path(sys.executable).parent / "amago-run")
    subprocess.run(command, cwd=ROOT, check=True)
    summary = json.loads((ROOT / "runs" / name / "summary.json").read_text())
    row = {key: summary[key] for key in FIGURES}
    row["success_by_attempt"] = " ".join(f"{x:.3f}" for x in summary["success_by_attempt"])
    row["traj_encoder"] = summary["traj_encoder"]
    return {key: str(value) for key, value in (row | describe()).items()}


def main() -> None:
    """Train every seed and print its row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("options", nargs="*", help="further options for amago-run train, after --")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        row = train(seed, arguments.options)
        append(RESULTS, row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
