"""Batches per second from the replay buffer, and the cost of listing its files.

    .venv/bin/python -m benchmarks.replay
    .venv/bin/python -m benchmarks.replay --only "many files" --no-save

A batch holds 24 sequences of at most 128 transitions. For the first two workloads, rates of the reference are
known: 116 batches per second from 500 files of 1,000 steps with 32 floats, 146 from 2,000 files of 80 steps,
both without loader workers. The others vary the format, the cache of decoded trajectories, images, workers, the
number of files, and the page cache (cold: the files are dropped from it before every epoch, if the file system
allows).

Every row is measured in a separate process, which keeps freed memory as a learner does on a CPU; otherwise page
faults take four fifths of the time with images. After one epoch of warm-up, epochs are repeated until the given
time is over. Rows are added to benchmarks/results/replay.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amago.hindsight import FrozenTraj, save_trajectory, trajectory_filename
from amago.kernels.memory import keep_freed_memory
from amago.loading import BatchLoader, DiskTrajDataset
from benchmarks.machine import ROOT, append, describe

RESULTS = Path(__file__).parent / "results" / "replay.csv"
BATCH_SIZE, LENGTH, ACTIONS = 24, 128, 6
DISTINCT_FILES = 500
SHOWN = (
    "workload",
    "save_as",
    "cache",
    "workers",
    "page_cache",
    "batches_per_s",
    "times_quoted",
    "mib_per_s",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement. `quoted` is the reference's figure for this workload in batches per second, or 0."""

    workload: str
    files: int
    steps: int
    image: bool = False
    save_as: str = "npz"
    cache: bool = True
    workers: int = 0
    page_cache: str = "warm"
    epoch: int = 50
    quoted: int = 0


def rows() -> list[Row]:
    """Every row."""
    long = Row(workload="500 files of 1,000 steps, 32 floats", files=500, steps=1000, quoted=116)
    short = Row(workload="2,000 files of 80 steps, 32 floats", files=2000, steps=80, quoted=146)
    images = Row(
        workload="50 files of 500 steps, 84x84x3", files=50, steps=500, image=True, cache=False, epoch=5
    )
    many = Row(workload="100 files", files=100, steps=80)
    change = dataclasses.replace
    return [
        *(change(r, save_as=f, cache=c) for r in (long, short) for f in FORMATS for c in (True, False)),
        *(change(long, workers=n, quoted=0, epoch=200) for n in (1, 2, 4, 8)),
        *(change(long, workers=n, cache=False, quoted=0, epoch=200) for n in (1, 2, 8)),
        *(change(r, page_cache="cold", cache=False, quoted=0, epoch=5) for r in (long, short)),
        change(long, page_cache="cold", cache=False, quoted=0, epoch=5, save_as="traj"),
        *(change(images, save_as=f) for f in FORMATS),
        change(images, page_cache="cold"),
        *(change(images, workers=n, epoch=20) for n in (1, 2)),
        *(
            change(many, workload=f"many files: {n:,} of 80 steps, 32 floats", files=n, cache=c)
            for n in (100, 10_000, 200_000)
            for c in (True, False)
        ),
    ]


FORMATS = ("npz", "traj", "npz-compressed")


def trajectory(row: Row, number: int) -> FrozenTraj:
    """Trajectory `number`; its images are smooth, so that they compress about as well as those of games."""
    rng = np.random.default_rng(number)
    steps, wide = row.steps, np.float32
    if row.image:
        x = np.linspace(0, 4, 84)
        base = 127 * (1 + np.sin(x[:, None] * rng.uniform(1, 3, 3)))[None] * np.ones((84, 1, 1))
        shift = rng.integers(0, 84, steps + 1)
        obs: npt.NDArray[Any] = np.stack([np.roll(base, s, axis=1) for s in shift]).astype(np.uint8)
    else:
        obs = rng.standard_normal((steps + 1, 32), dtype=wide)
    rl2s = rng.standard_normal((steps + 1, 1 + ACTIONS), dtype=wide)
    return FrozenTraj(
        obs={"observation": obs},
        rl2s=rl2s,
        time_idxs=np.arange(steps + 1)[:, None],
        rews=rl2s[1:, :1].copy(),
        dones=np.zeros((steps, 1), dtype=np.bool_),
        actions=rl2s[1:, 1:].copy(),
    )


def fill(row: Row, folder: Path) -> None:
    """Writes the files; those beyond `DISTINCT_FILES` are hard links to earlier ones."""
    written: list[Path] = []
    for number in range(row.files):
        name = trajectory_filename("env", number >> 20, number, 1_700_000_000 + number)
        if number < DISTINCT_FILES:
            written.append(save_trajectory(trajectory(row, number), folder / name, row.save_as, "env"))
        else:
            source = written[number % DISTINCT_FILES]
            os.link(source, folder / (name + source.suffix))


def drop_from_memory(folder: Path) -> None:
    """Drops the files from the page cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(row: Row, seconds: float, root: Path) -> dict[str, str]:
    """Measures one row; returns all columns of the results."""
    keep_freed_memory()
    dataset = DiskTrajDataset(root, "buffer", 10**9, cache_bytes=(512 << 20) if row.cache else 0)
    fill(row, dataset.fifo_folder)
    dataset.configure(BATCH_SIZE * row.epoch, LENGTH, "none", True)
    began = time.perf_counter()
    dataset.index.refresh()
    listed = time.perf_counter() - began
    loader = BatchLoader(
        dataset, batch_size=BATCH_SIZE, batches_per_epoch=row.epoch, workers=row.workers, device="cpu", seed=0
    )
    began = time.perf_counter()
    for batch in loader.epoch(0):
        tensors = (*batch.obs.values(), batch.rl2s, batch.rews, batch.dones, batch.actions, batch.time_idxs)
        nbytes = sum(tensor.nbytes for tensor in tensors)
    first_epoch = time.perf_counter() - began
    while row.cache and row.page_cache == "warm" and time.perf_counter() - began < seconds / 2:
        for _ in loader.epoch(0):
            pass
    rates: list[float] = []
    epoch, spent = 0, 0.0
    while spent < seconds or len(rates) < 3:
        epoch += 1
        if row.page_cache == "cold":
            drop_from_memory(dataset.fifo_folder)
        began = time.perf_counter()
        for _ in loader.epoch(epoch):
            pass
        took = time.perf_counter() - began
        rates.append(row.epoch / took)
        spent += took
    loader.close()
    rate = statistics.median(rates)
    return {
        **{key: str(value) for key, value in dataclasses.asdict(row).items()},
        "batches_per_s": f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}",
        "fastest": f"{max(rates):.1f}",
        "slowest": f"{min(rates):.1f}",
        "times_quoted": f"{rate / row.quoted:.1f}" if row.quoted else "",
        "mib_per_s": f"{rate * nbytes / 2**20:.0f}",
        "first_epoch_s": f"{first_epoch:.3f}",
        "listing_s": f"{listed:.4f}",
    }


def in_a_process_of_its_own(row: Row, seconds: float, folder: str) -> dict[str, str]:
    """Runs `measure` in a subprocess, in a folder that is removed afterwards."""
    root = tempfile.mkdtemp(dir=folder)
    job = json.dumps([dataclasses.asdict(row), seconds, root])
    try:
        command = [sys.executable, "-m", "benchmarks.replay", "--row", job]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if run.returncode:
        raise SystemExit(f"{row} failed:\n{run.stderr[-2000:]}")
    result: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measures every row, prints it, and adds it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds measured per row")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="folder for temporary buffers")
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument("--rows", default=":", help="range of rows, e.g. 5:9")
    parser.add_argument("--no-save", action="store_true", help="print without adding to the results file")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        row, seconds, root = json.loads(arguments.row)
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(Row(**row), seconds, Path(root))
        print(json.dumps(result))
        return
    print(" | ".join(SHOWN))
    first, _, last = arguments.rows.partition(":")
    for one in rows()[int(first or 0) : int(last) if last else None]:
        if arguments.only in one.workload:
            result = in_a_process_of_its_own(one, arguments.seconds, arguments.folder)
            print(" | ".join(result[key] for key in SHOWN), flush=True)
            if not arguments.no_save:
                append(RESULTS, result | describe())


if __name__ == "__main__":
    main()
