"""Where the time of an update goes, by kind of operation.

.venv/bin/python -m benchmarks.profile_update --only "Agent, 5" --precision bf16
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.learner import Row, updater
from benchmarks.workloads import WORKLOADS, make_agent, make_batch

# The first kind with a name that the operation's begins with.
KINDS = {
    "matrix products": (
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::mkldnn_convolution",
        "aten::convolution_backward",
        "aten::addmv",
        "mkldnn::_linear_pointwise",
    ),
    "attention": ("aten::_scaled_dot_product",),
    "two-hot loss and values": ("amago_kernels::", "GeneratedBackwardFor_amago_kernels"),
    "activations": ("aten::leaky_relu",),
    "norms": ("aten::native_layer_norm",),
    "copies and joins": (
        "aten::copy_",
        "aten::cat",
        "aten::stack",
        "aten::fill_",
        "aten::index",
        "aten::clone",
    ),
    "dropout's random numbers": ("aten::random_", "aten::bernoulli_"),
    "optimizer, clipping, targets": ("aten::_fused_adam", "aten::_foreach", "aten::linalg_vector_norm"),
}
UPDATES = 5


def kind_of(name: str) -> str:
    """The kind of an operation by its name."""
    for kind, prefixes in KINDS.items():
        if name.startswith(prefixes):
            return kind
    return "sums, softmax and all other operations"


def shares(row: Row) -> dict[str, float]:
    """Milliseconds per update and kind, the longest first."""
    work = WORKLOADS[row.workload]
    _, step = updater(make_agent(work), row)
    batch = make_batch(work)
    for _ in range(3):
        step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(UPDATES):
            step(batch)
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        spent[kind_of(event.key)] += event.self_cpu_time_total / UPDATES / 1e3
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def main() -> None:
    """Print a table for every workload that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--code", default="ours", choices=["ours", "plain"])
    arguments = parser.parse_args()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.precision}, {arguments.code}"
    )
    for name in WORKLOADS:
        if arguments.only not in name:
            continue
        row = Row(
            workload=name, code=arguments.code, precision=arguments.precision, device="cpu", updates=UPDATES
        )
        with contextlib.redirect_stdout(sys.stderr):
            spent = shares(row)
        total = sum(spent.values())
        print(f"\n{name}: {total:.0f} ms per update under the profiler")
        for kind, milliseconds in spent.items():
            print(f"  {kind:42} {milliseconds:7.1f} ms  {milliseconds / total:6.1%}")


if __name__ == "__main__":
    main()
