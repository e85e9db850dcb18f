"""Steps per second of data collection, trajectories written to disk included, and where the time goes.

    .venv/bin/python -m benchmarks.rollout
    .venv/bin/python -m benchmarks.rollout --rounds 5
    .venv/bin/python -m benchmarks.rollout --scaling
    .venv/bin/python -m benchmarks.rollout --overlap
    .venv/bin/python -m benchmarks.rollout --ahead --rounds 3
    .venv/bin/python -m benchmarks.rollout --only "lake GRU" --no-save
    .venv/bin/python -m benchmarks.rollout --only "lake FF" --memory 10000000 --no-save

Trajectory encoders are 128 wide with 3 layers (`--memory_size 128 --memory_layers 3` of command lines); timestep
encoder and actor keep their defaults, 512 and 256 wide. Exploration is on, and every finished episode becomes a
file; the time ends when the last one is on disk. Every row is measured in a process of its own, with the bare
environment stepped on one core beside it.

Shares are parts of the wall time of the main thread: `environments` is what the bare environments would take
(with worker processes the whole wait for them), `stepping` what our vector environment adds, `policy` beginning
with actions and waiting for them, `recording` the copies of each step and the wait for the last file, `writing`
the files written between steps, `rest` what remains. What a thread writes beside all of that, where the disk is
slow, is not counted; `us_per_file` is what the disk took for a small file afterwards.

The figures in `reference_steps_per_s` are the reference's, not measured here; the machine is not known.

`--memory STEPS` collects that many and prints the resident memory on the way. Rows go to
benchmarks/results/rollout.csv when their last round is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from amago.envs.metrics import EpisodeStats
from benchmarks.machine import ROOT, append, describe, version
from benchmarks.rollout_collection import Collection
from benchmarks.rollout_rows import AHEAD, OVERLAP, ROWS, SCALING, Row, bare_rate

RESULTS = Path(__file__).parent / "results" / "rollout.csv"
SHOWN = (
    "name",
    "actors",
    "window",
    "steps_per_s",
    "reference_steps_per_s",
    "times_reference",
    "bare_steps_per_s",
    "environments",
    "stepping",
    "policy",
    "recording",
    "writing",
    "rest",
    "us_per_file",
)


def us_per_new_file(folder: Path) -> float:
    """What the disk takes to write a small file, as a median."""
    content, seconds = bytes(3000), []
    for i in range(300):
        start = time.perf_counter()
        (folder / str(i)).write_bytes(content)
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


def measure(row: Row, seconds: float, folder: Path) -> dict[str, str]:
    """Everything that a row of the results says; trajectories are left in `folder`."""
    bare = bare_rate(row, min(1.0, seconds))
    collection = Collection(row, Path(tempfile.mkdtemp(dir=folder)))
    collection.run_for(seconds / 4)
    spent = collection.timer.seconds
    before = dict(spent)
    files = collection.recorder.saved_files
    steps, passed = collection.run_for(seconds)
    collection.close()
    share = {name: (spent[name] - before[name]) / passed for name in spent}
    environments = share["vector_step"]
    if row.mode == "sync":
        environments = min(environments, steps * row.actors / bare / passed)
    shares = {
        "environments": environments,
        "stepping": share["vector_step"] - environments,
        "policy": share["policy"],
        "recording": share["recording"] - share["writing"],
        "writing": share["writing"],
        "rest": 1.0 - share["vector_step"] - share["policy"] - share["recording"],
    }
    rate = steps * row.actors / passed
    return {
        "name": row.name,
        "actors": str(row.actors),
        "window": str(row.window),
        "steps_per_s": f"{rate:.0f}",
        "us_per_vector_step": f"{passed / steps * 1e6:.0f}",
        "reference_steps_per_s": "" if row.reference is None else str(row.reference),
        "times_reference": "" if row.reference is None else f"{rate / row.reference:.1f}",
        "bare_steps_per_s": f"{bare:.0f}",
        "files_per_s": f"{(collection.recorder.saved_files - files) / passed:.0f}",
        "us_per_file": f"{us_per_new_file(Path(tempfile.mkdtemp(dir=folder))):.0f}",
        "threads": str(torch.get_num_threads()),
        "gymnasium": version("gymnasium"),
    } | {name: f"{part:.3f}" for name, part in shares.items()}


def resident_mib(process: str = "self") -> float:
    """Resident memory of a process, this one or another (Linux)."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in status if line.startswith("VmRSS"))) / 1024


def watch_memory(row: Row, total_steps: int) -> None:
    """Collects `total_steps` steps of all actors together; prints the resident memory twenty times."""
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection(row, Path(folder), keep_files=False)
        part = max(1, total_steps // row.actors // 20)
        for done in range(1, 21):
            # As after every collection of an experiment: the returns of finished episodes are reported and let go.
            collection.rollout.stats = EpisodeStats()
            collection.rollout.run(timesteps=part)
            workers = [f"{resident_mib(str(worker.pid)):.1f}" for worker in multiprocessing.active_children()]
            of_workers = f", workers {', '.join(workers)} MiB" if workers else ""
            steps = done * part * row.actors
            print(f"{row.name}: {steps} steps, {resident_mib():.1f} MiB{of_workers}", flush=True)
        collection.close()


def in_a_process_of_its_own(row: Row, seconds: float, folder: str) -> dict[str, str]:
    """`measure` there, so that no row inherits the memory or the threads of another."""
    command = [sys.executable, "-m", "benchmarks.rollout", "--row", json.dumps(dataclasses.asdict(row))]
    run = subprocess.run(
        [*command, "--seconds", str(seconds), "--folder", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"{row} failed:\n{run.stderr[-2000:]}{run.stdout[-500:]}")
    result: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return result


def median_of(results: list[dict[str, str]]) -> dict[str, str]:
    """The run of median rate, of an even number the slower one of the middle two; and the rates of all."""
    ordered = sorted(results, key=lambda result: float(result["steps_per_s"]))
    rates = " ".join(result["steps_per_s"] for result in ordered)
    return ordered[(len(ordered) - 1) // 2] | {"rates_of_all_runs": rates}


def rows_of(arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows that the arguments ask for."""
    chosen = {"scaling": SCALING, "overlap": OVERLAP, "ahead": AHEAD}
    for row in next((rows for name, rows in chosen.items() if getattr(arguments, name)), ROWS):
        if arguments.only is None or arguments.only in row.name:
            yield row


def main() -> None:
    """Measure every row, print it, and add it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="measured time of a row")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="measure every row this many times, in turns; the median goes to the results",
    )
    parser.add_argument("--scaling", action="store_true", help="numbers of actors, observations and windows")
    parser.add_argument(
        "--overlap", action="store_true", help="double buffering: never, always, and where it was quicker"
    )
    parser.add_argument(
        "--ahead",
        action="store_true",
        help="environments of this process, with agents that begin early and that do not",
    )
    parser.add_argument("--memory", type=int, metavar="STEPS", help="watch the memory over so many steps")
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--no-save", action="store_true", help="print, but leave the results file alone")
    parser.add_argument("--folder", help="where trajectories go until the end; by default below build/")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        row = Row(**json.loads(arguments.row))
        print(json.dumps(measure(row, arguments.seconds, Path(arguments.folder))))
        return
    if arguments.memory:
        for row in rows_of(arguments):
            watch_memory(row, arguments.memory)
        return
    print(" | ".join(SHOWN))
    runs: dict[Row, list[dict[str, str]]] = {row: [] for row in rows_of(arguments)}
    # Files are deleted at the very end: for five minutes after deletions, ext4 without a journal passes over what
    # was there one by one to find room for a new file. `us_per_file` tells of programs that ran before.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder or ROOT / "build", prefix="rollout-") as folder:
        for row in list(runs) * arguments.rounds:
            runs[row].append(in_a_process_of_its_own(row, arguments.seconds, folder))
            print(" | ".join(runs[row][-1][key] for key in SHOWN), flush=True)
            if len(runs[row]) == arguments.rounds and not arguments.no_save:
                append(RESULTS, median_of(runs[row]) | describe())


if __name__ == "__main__":
    main()
