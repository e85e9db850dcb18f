"""Benchmark of the learner: time of an update, compared with a plain implementation and with its operation count.

    .venv/bin/python -m benchmarks.learner
    .venv/bin/python -m benchmarks.learner --device cuda

24 sequences of 128 timesteps, an FF timestep encoder, a Transformer of 3 layers and width 256, 4 critics, 7
discounts and 128 bins, for both agents and both kinds of actions. Each row is measured in its own process,
which also measures the rate of matrix products before and after. The floor of a row is its number of
floating-point operations, counted by torch, divided by that rate in float32.

The plain implementation (`benchmarks.plain`) has the same weights. Before timing, both compute the loss of one
batch with equal random numbers, in eval mode and over all critics. This checksum must agree.

Rows go to benchmarks/results/learner.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from amago.agent import Agent, Batch
from amago.distributed.processes import Processes, make_accelerator
from amago.experiment.learner import Learner, make_adamw
from amago.utils import get_constant_schedule_with_warmup
from benchmarks.machine import ROOT, append, describe
from benchmarks.plain.update import make_optimizer, update
from benchmarks.workloads import WORKLOADS, checksum, count_flop, make_agent, make_batch, make_plain

RESULTS = Path(__file__).parent / "results" / "learner.csv"
CODES = ("ours", "ours, compiled", "plain")
SHOWN = (
    "workload",
    "code",
    "precision",
    "median_s",
    "times_floor",
    "floor_s",
    "product_gflop_per_s",
    "peak_mib",
    "checksum",
)
WARM_UP = 3
STEP = (3072, 1024, 256)  # the largest matrix product of the Transformer: all timesteps of the batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: workload, implementation, precision, device and number of updates."""

    workload: str
    code: str
    precision: str
    device: str
    updates: int


def updater(agent: Agent, row: Row) -> tuple[nn.Module, Callable[[Batch], Any]]:
    """The module of a row and a function that updates it on a batch."""
    bf16, device = row.precision == "bf16", torch.device(row.device)
    if row.code == "plain":
        plain = make_plain(agent).to(device).train()
        optimizer = make_optimizer(plain)
        dtype = torch.bfloat16 if bf16 else None
        return plain, lambda batch: update(plain, optimizer, batch, dtype=dtype)
    agent.to(device).train()
    adamw = make_adamw(agent.trainable_params, 1e-4, 1e-3, device)
    learner = Learner(
        agent,
        adamw,
        Processes(make_accelerator()),
        lr_schedule=get_constant_schedule_with_warmup(adamw, 500),
        grad_clip=1.0,
        batches_per_update=1,
        autocast=bf16,
        compile_loss=row.code == "ours, compiled",
        max_nonfinite=10,
        bad_batch_dir=Path(tempfile.gettempdir()),
    )
    return agent, lambda batch: learner.train_batch(batch, log_step=False)


def seconds(function: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """The time of each of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


def product_rate(
    device: str, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = STEP
) -> float:
    """GFLOP/s of (m, k) times (k, n) in torch, for shape (m, n, k)."""
    m, n, k = shape
    x, w = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    repeats = max(3, min(30, int(3e11 / (2 * m * n * k))))
    times = seconds(lambda: F.linear(x, w), repeats + 3, device)[3:]
    return 2.0 * m * n * k / statistics.median(times) / 1e9


def copy_rate(device: str) -> float:
    """GB/s read and written by a copy of 1 GiB into allocated memory."""
    source = torch.ones(1 << 28, device=device)
    target = torch.zeros_like(source)
    times = seconds(lambda: target.copy_(source), 5, device)
    return 2.0 * source.nbytes / statistics.median(times) / 1e9


def peak_memory(device: str) -> float:
    """Peak MiB: resident memory of the process (Linux), or memory allocated by torch on the device."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    # getrusage would include the memory of the parent process at the fork.
    status = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in status if line.startswith("VmHWM"))) / 1024


def measure(row: Row) -> dict[str, str]:
    """Measures a row: the columns of the results file."""
    work = WORKLOADS[row.workload]
    before = peak_memory(row.device)
    batch = make_batch(work)
    ours, plain = checksum(make_agent(work), batch), checksum(make_plain(make_agent(work)), batch)
    if abs(ours - plain) > 1e-4 * abs(plain):
        raise SystemExit(f"{row.workload}: our loss is {ours}, the plain one {plain}; nothing was timed")
    flop = count_flop(work, batch)
    module, step = updater(make_agent(work), row)
    batch = batch.to(row.device)
    seconds(lambda: step(batch), WARM_UP, row.device)
    rates = [product_rate(row.device)]
    times = seconds(lambda: step(batch), row.updates, row.device)
    memory = peak_memory(row.device) - before
    rates.append(product_rate(row.device))
    rate = statistics.mean(rates)
    median = statistics.median(times)
    finite = all(bool(p.isfinite().all()) for p in module.parameters())
    if not finite:
        raise SystemExit(f"{row.workload}: weights are not finite after {row.updates} updates")
    return {
        **{key: str(value) for key, value in dataclasses.asdict(row).items()},
        "median_s": f"{median:.4f}",
        "fastest_s": f"{min(times):.4f}",
        "slowest_s": f"{max(times):.4f}",
        "peak_mib": f"{memory:.0f}",
        "checksum": f"{ours if row.code != 'plain' else plain:.6g}",
        "gflop": f"{flop / 1e9:.1f}",
        "gflop_per_s": f"{flop / median / 1e9:.0f}",
        "product_gflop_per_s": f"{rate:.0f}",
        "floor_s": f"{flop / rate / 1e9:.3f}",
        "times_floor": f"{median * rate * 1e9 / flop:.2f}",
    }


def measure_in_subprocess(row: Row) -> dict[str, str]:
    """`measure` in a new process, so that peak memory is that of the row."""
    command = [sys.executable, "-m", "benchmarks.learner", "--row", json.dumps(dataclasses.asdict(row))]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{row} failed:\n{run.stderr[-2000:]}{run.stdout[-500:]}")
    result: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return result


def machine_line(device: str) -> dict[str, str]:
    """Rates of the machine, for comparing results of different machines."""
    cube = product_rate(device, shape=(4096, 4096, 4096))
    bf16 = product_rate(device, torch.bfloat16)
    return {
        "cube_gflop_per_s": f"{cube:.0f}",
        "bf16_product_gflop_per_s": f"{bf16:.0f}",
        "copy_gb_per_s": f"{copy_rate(device):.0f}",
    }


def rows_of(arguments: argparse.Namespace) -> list[Row]:
    """The rows selected by the arguments, with plain and own code in turns."""
    codes = [code for code in CODES if code != "ours, compiled" or arguments.compile]
    return [
        Row(
            workload=name,
            code=code,
            precision=precision,
            device=arguments.device,
            updates=arguments.updates if code != "plain" else max(3, arguments.updates // 3),
        )
        for name in WORKLOADS
        if arguments.only is None or arguments.only in name
        for precision in arguments.precision
        for code in codes
        if code in arguments.code or arguments.code == ["all"]
    ]


def main() -> None:
    """Measures and prints all rows, and appends them to the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--updates", type=int, default=15, help="timed updates of the learner; a third for plain code"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="also measure with torch.compile")
    parser.add_argument("--code", nargs="+", default=["all"], choices=["all", *CODES])
    parser.add_argument("--only", help="workloads whose name contains this")
    parser.add_argument("--no-save", action="store_true", help="print without writing the results file")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(Row(**json.loads(arguments.row)))
        print(json.dumps(result))
        return
    machine = machine_line(arguments.device) | {"threads": str(torch.get_num_threads())}
    print(machine, flush=True)
    print(" | ".join(SHOWN))
    for row in rows_of(arguments):
        result = measure_in_subprocess(row)
        print(" | ".join(result[key] for key in SHOWN), flush=True)
        if not arguments.no_save:
            append(RESULTS, result | machine | describe())


if __name__ == "__main__":
    main()
