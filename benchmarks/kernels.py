"""Benchmark of every operation of amago.kernels, with every backend that runs here and with alternatives in torch.

    .venv/bin/python -m benchmarks.kernels
    .venv/bin/python -m benchmarks.kernels --only two_hot_cross_entropy --quick --no-save
    .venv/bin/python -m benchmarks.kernels --device cuda --seconds 200

`benchmarks.kernel_cases` holds the cases and their work. All implementations of a case are timed in turns in one
process, each operation in a process of its own. `rate` is work divided by median time; `share` is its fraction of
the `ceiling`, measured in the same process: a copy of 1 GiB, counting reads and writes, or a product of square
matrices. `peak_mib` is the peak of torch's allocator during one call, above its level before. `times_eager` is the
eager backend's median divided by this one's.

On a CPU the losses are measured twice. "fresh": glibc returns buffers above 32 MiB to the kernel, and each call
faults in new pages for its gradient; "kept": after `amago.kernels.memory.keep_freed_memory()`.

Rows go to benchmarks/results/kernels.csv. The benchmark needs this folder, tests/kernels, amago.kernels and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tests.kernels.examples import Example

from amago.kernels.backends import Unsupported, operations
from amago.kernels.memory import keep_freed_memory
from benchmarks import kernel_timing as timing
from benchmarks.kernel_cases import CASES, Case, Way
from benchmarks.machine import ROOT, append, describe, version

RESULTS = Path(__file__).parent / "results" / "kernels.csv"
LOSSES = ("two_hot_cross_entropy", "hl_gauss_cross_entropy", "two_hot_mean")
SHOWN = (
    "case",
    "dtype",
    "memory",
    "backend",
    "median_us",
    "rate",
    "unit",
    "share",
    "peak_mib",
    "times_eager",
)


def ways_of(case: Case, example: Example) -> dict[str, Way]:
    """Our backends that run here, "auto" and the alternatives, by name; each takes the example's tensors."""
    names = [x.backend.value for x in operations()[example.operation] if not x.missing(False)]
    ways: dict[str, Way] = {}
    for name in ("auto", *(name for name in names if name not in case.without)):
        ways[name] = lambda name=name, **tensors: example.call(**tensors, backend=name)
    return ways | case.others(example)


def as_call(way: Way, example: Example, backward: bool) -> timing.Call:
    """The call to time: an implementation with the tensors of an example, forward or forward and backward.

    Raises:
        Unsupported: if the backend cannot run it.
    """
    copy = Example(
        operation=example.operation,
        name=example.name,
        call=lambda *, backend, **tensors: way(**tensors),
        tensors=example.tensors,
        gradients=example.gradients,
    )
    return (timing.forward_and_backward if backward else timing.forward)(copy, None)


def runnable(
    ways: dict[str, Way], example: Example, backward: bool, failures: list[str]
) -> dict[str, timing.Call]:
    """The calls that can run, each called once; errors of the others are added to `failures`."""
    calls = {}
    for name, way in ways.items():
        try:
            call = as_call(way, example, backward)
            call()
        except Unsupported:
            continue
        except Exception as error:  # of one implementation: the others are still measured
            if not name.startswith("SDPA"):  # torch's kernels raise for what they cannot run
                text = str(error).strip().splitlines()
                failures.append(f"{example.operation}, {name}: {type(error).__name__}: {' '.join(text[:2])}")
            continue
        calls[name] = call
    return calls


def peak_mib(call: timing.Call, device: str) -> float:
    """Peak of torch's allocator during a call, above its level before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def measure(
    case: Case, device: str, memory: str, ceilings: dict[str, float], quick: bool, failures: list[str]
) -> Iterator[dict[str, str]]:
    """The rows of one case."""
    example = case.make(device=device, dtype=case.dtype)
    ways = ways_of(case, example)
    calls = runnable(ways, example, case.backward, failures)
    rounds, sample = (3, 0.005) if quick else (11, 0.01 if device == "cuda" else 0.03)
    times = timing.interleaved(calls, device, rounds=rounds, sample=sample)
    medians = {name: statistics.median(x) for name, x in times.items()}
    ceiling = ceilings["GB/s"] if case.bound == "bandwidth" else ceilings[f"GFLOP/s {case.dtype}"]
    for name, found in times.items():
        p20, _, _, p80 = (x * 1e6 for x in statistics.quantiles(found, n=5))
        rate = case.work / medians[name] / 1e9
        yield {
            "operation": example.operation,
            "case": case.name,
            "backend": name,
            "shape": case.shape,
            "dtype": str(case.dtype).removeprefix("torch."),
            "direction": "forward+backward" if case.backward else "forward",
            "memory": memory,
            "p20_us": f"{p20:.1f}",
            "median_us": f"{medians[name] * 1e6:.1f}",
            "p80_us": f"{p80:.1f}",
            "work": f"{case.work:.0f}",
            "rate": f"{rate:.1f}",
            "unit": "GB/s" if case.bound == "bandwidth" else "GFLOP/s",
            "ceiling": f"{ceiling:.0f}",
            "share": f"{rate / ceiling:.3f}",
            "peak_mib": f"{peak_mib(calls[name], device):.1f}",
            "times_eager": f"{medians['eager'] / medians[name]:.2f}" if "eager" in medians else "",
        }


def measure_ceilings(device: str, quick: bool) -> dict[str, float]:
    """Peak rates of the device: bandwidth in GB/s, and products in GFLOP/s by dtype."""
    calls: dict[str, timing.Call] = {}
    source = torch.ones(1 << 28, device=device)
    target = torch.zeros_like(source)
    calls["GB/s"] = lambda: target.copy_(source)
    work = {"GB/s": 2.0 * source.nbytes}
    size = 8192 if device == "cuda" else 1024 if quick else 2048
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(size, size, device=device, dtype=dtype)
        calls[f"GFLOP/s {dtype}"] = lambda x=x: x @ x  # type: ignore[misc]
        work[f"GFLOP/s {dtype}"] = 2.0 * size**3
    times = timing.interleaved(calls, device, rounds=5)
    return {name: work[name] / statistics.median(x) / 1e9 for name, x in times.items()}


def run_operation(arguments: argparse.Namespace) -> list[str]:
    """Measures one operation in this process, a line of JSON for each row; returns what failed."""
    failures: list[str] = []
    torch.manual_seed(0)
    # Every case is compiled for its sizes.
    torch._dynamo.config.recompile_limit = 1000
    if arguments.memory == "kept":
        keep_freed_memory()
    start = time.monotonic()
    cases = list(CASES[arguments.operation](arguments.device))
    ceilings = measure_ceilings(arguments.device, arguments.quick)
    for number, case in enumerate(cases[: 2 if arguments.quick else None]):
        if time.monotonic() - start > arguments.seconds:
            print(
                f"out of time: {len(cases) - number} cases of {arguments.operation} left out", file=sys.stderr
            )
            break
        for row in measure(case, arguments.device, arguments.memory, ceilings, arguments.quick, failures):
            print(json.dumps(row), flush=True)
        torch._dynamo.reset()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    return failures


def device_columns(device: str) -> dict[str, str]:
    """The device, and the versions that the numbers depend on."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {
        "device": name,
        "threads": str(torch.get_num_threads()),
        "triton": version("triton"),
        "cuda": torch.version.cuda or "",
    }


def in_own_process(operation: str, memory: str, arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The rows of an operation, as they are measured, in a process of its own.

    Raises:
        RuntimeError: at the end, if it failed.
    """
    command = [sys.executable, "-m", "benchmarks.kernels", "--operation", operation, "--memory", memory]
    command += ["--device", arguments.device, "--seconds", str(arguments.seconds)]
    command += ["--quick"] if arguments.quick else []
    # Silences the log of the profiler, which counts memory on a CPU.
    environment = {**os.environ, "KINETO_LOG_LEVEL": "99"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise RuntimeError(f"{operation} ended with status {process.returncode}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"]
    )
    parser.add_argument(
        "--only", choices=list(operations()), nargs="+", default=list(CASES), help="these operations"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two cases of each, few repeats: to try the benchmark"
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no case of an operation after so many"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--no-save", action="store_true", help="print, but leave the file of results alone")
    parser.add_argument("--operation", help=argparse.SUPPRESS)
    parser.add_argument("--memory", default="kept", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measures every row, prints it, and adds it to the results; the exit status is 1 if an operation failed."""
    options = parse(arguments)
    if options.operation:
        failures = run_operation(options)
        print("\n".join(failures), file=sys.stderr)
        return 1 if failures else 0
    machine = device_columns(options.device) | describe()
    status = 0
    for operation in (name for name in CASES if name in options.only):
        print(f"\n{operation}: {' | '.join(SHOWN)}", flush=True)
        kinds = ("kept", "fresh") if options.device == "cpu" and operation in LOSSES else ("kept",)
        for memory in kinds:
            try:
                for row in in_own_process(operation, memory, options):
                    print(" | ".join(row[key] for key in SHOWN), flush=True)
                    if not options.no_save:
                        append(options.output, row | machine)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
