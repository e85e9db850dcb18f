"""Throughput of a learner with 1 to 4 collectors on this machine, and the data that they exchange.

    .venv/bin/python -m benchmarks.scaling
    .venv/bin/python -m benchmarks.scaling --collectors 1 2 --seconds 60
    .venv/bin/python -m benchmarks.scaling --cluster

Each row is a launch of the quickstart's networks and environment, measured for some seconds after the learner's
first update. Rates are computed from the increase of the counters of collectors and learner. With more processes
than cores, collectors and learner compete for the cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amago.cli.build import plan_run
from amago.cli.launch_process import ClusterCollectorMaker, ClusterLearner, command
from amago.distributed.cluster import ClusterLaunch
from amago.distributed.launch import Launch, LocalLaunch
from amago.experiment.saved_policies import read_saved_policy
from amago.experiment.shared_run import read_collected
from amago.experiment.status import read_status
from amago.hindsight import atomic_file, trajectory_length
from benchmarks.machine import ROOT, append, describe

RESULTS = ROOT / "benchmarks" / "results" / "scaling.csv"
CHANGES = {"actors": 8, "timesteps_per_epoch": 100, "epochs": 1_000_000, "threads": 1}


def make_launch(folder: Path, collectors: int, *, cluster: bool) -> Launch:
    """A launch of the quickstart that does not end by itself."""
    settings: dict[str, Any] = {"changes": CHANGES, "gin_files": [], "assignments": [], "trust": []}
    learning: dict[str, Any] = dict.fromkeys(
        ("resume", "overwrite", "log_to_wandb", "log_to_tensorboard"), False
    )
    learner = command("learner", folder, None, only_learn=True, **learning, **settings)
    if not cluster:
        collector = command("collector", folder, None, **settings)
        logs = folder / "logs"
        return LocalLaunch(learner, collector, collectors=collectors, log_dir=logs, report=print)
    recipe = plan_run(CHANGES).recipe
    return ClusterLaunch(
        ClusterLearner(learner[-1], folder),
        ClusterCollectorMaker(folder),
        folder=folder,
        collectors=collectors,
        round_steps=recipe.actors * recipe.timesteps_per_epoch,
        report=print,
    )


def counts(folder: Path) -> tuple[int, int]:
    """Timesteps of all collectors, and updates."""
    updates = [each["gradient_steps"] for each in read_status(folder) if each["role"] == "learner"]
    return read_collected(folder).env_steps, max(updates, default=0)


def measure(folder: Path, collectors: int, seconds: float, *, cluster: bool) -> dict[str, str]:
    """A row: rates, bytes of trajectories per timestep, size of the policy."""
    launch = make_launch(folder, collectors, cluster=cluster)
    try:
        launch.start()
        while min(counts(folder)) == 0 or len(read_status(folder)) < collectors + 1:
            if launch.poll(0.2) is not None:
                raise RuntimeError("the launch has ended")
        before, began, load = counts(folder), time.perf_counter(), os.getloadavg()[0]
        while time.perf_counter() - began < seconds:
            launch.poll(0.2)
        after, elapsed = counts(folder), time.perf_counter() - began
    finally:
        launch.stop()
    files = list((folder / "buffer" / "fifo").iterdir())
    transitions = sum(trajectory_length(file) for file in files)
    policy = folder / "ckpts" / "latest" / "policy.pt"
    return {
        "way": "Ray" if cluster else "folder",
        "collectors": str(collectors),
        "steps_per_s": f"{(after[0] - before[0]) / elapsed:.0f}",
        "updates_per_s": f"{(after[1] - before[1]) / elapsed:.2f}",
        "bytes_per_step": f"{sum(file.stat().st_size for file in files) / transitions:.0f}",
        "files_per_1000_steps": f"{1000 * len(files) / transitions:.1f}",
        "policy_bytes": str(policy.stat().st_size),
        "policy_load_ms": f"{1000 * fastest(lambda: read_saved_policy(policy)):.1f}",
        "ingest_files_per_s": f"{ingest_rate(files, folder / 'copies'):.0f}",
        "load_before": f"{load:.1f}",
    }


def fastest(function: Any, rounds: int = 5) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def ingest_rate(files: Sequence[Path], folder: Path) -> float:
    """Trajectory files a second that a launcher can write into a buffer."""
    contents = [np.fromfile(file, np.uint8) for file in files[:500]]
    folder.mkdir()
    began = time.perf_counter()
    for number, content in enumerate(contents):
        with atomic_file(folder / str(number), fsync=False) as file:
            file.write(content.data)
    return len(contents) / (time.perf_counter() - began)


def main() -> None:
    """Measures, prints and saves the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--cluster", action="store_true", help="on a local Ray cluster")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    for number in arguments.collectors:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            folder.mkdir()
            row = measure(folder, number, arguments.seconds, cluster=arguments.cluster)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if not arguments.no_save:
            append(RESULTS, {**row, **describe()})


if __name__ == "__main__":
    main()
