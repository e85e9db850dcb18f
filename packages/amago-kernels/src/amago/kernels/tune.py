"""`python -m amago.kernels.tune`: measures every backend here, and keeps in which order "auto" tries them.

Each operation is timed on an example of each class of sizes (`shape_classes`), forward and backward where it is
for training, forward alone for steps, with as many threads as torch has (OMP_NUM_THREADS). A backend takes part
that runs here and, on a small call, computes what the eager one does in float64. The order is that of the medians;
of backends within 5 % of each other, the one comes first that comes first by default. The eager backend of an
operation for training comes last however quick it is, `linear` apart: it builds labels, scores or states in full,
which the others never hold.

The table goes to the folder of native builds (AMAGO_KERNELS_CACHE), from where later processes take it.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amago.kernels import examples, measured, shape_classes, testing, timing
from amago.kernels.backends import Unsupported, default_order, forget_orders
from amago.kernels.examples import Example

TOLERANCE = 0.05  # medians this near count as equal
STEPS = ("attention_step", "flex_attention_step", "selective_scan_step")
_SECONDS = {"cpu": 0.01, "cuda": 0.005}  # of one sample
_LENGTHS = {"short": 128, "medium": 512, "long": 2048}


def _near(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (q_idx - kv_idx).abs() <= 64


def _falls_with_distance(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score - 0.1 * (q_idx - kv_idx).abs()


def _attention(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    """As many positions in each class of lengths."""
    kind, length = words[0], _LENGTHS[words[1]]
    positions = 32768 if big else 1024
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "masked": {"window": 64, "sink": 4},
        "scores": {"sink": 4, "sink_bias": 0.5, "logit_clip": 20.0},
    }
    heads, dim = (8, 64) if big else (4, 32)
    rows = max(1, positions // length)
    return examples.attention(rows, length, heads, dim, **options[kind], **kwargs)


def _flex_attention(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    length = _LENGTHS[words[1]]
    options: Any = {"mask_mod": _near} if words[0] == "mask" else {"score_mod": _falls_with_distance}
    rows = max(1, (32768 if big else 512) // length)
    return examples.attention(rows, length, 8 if big else 4, 64 if big else 32, **options, **kwargs)


def _two_hot(operation: str, words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    rows = (4, 8, 4, 2) if words[0] == "small" else (24, 127, 4, 7) if big else (8, 64, 4, 4)
    return examples.two_hot(operation, rows, 128, **kwargs)


def _ring(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    rows, window = (12, 64) if words[0] == "small" else (256, 1024) if big else (64, 512)
    return examples.attention_step(rows, window, 8, 32, in_place=True, **kwargs)


def _flex_ring(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    return _ring(words, big, mask_mod=_near, **kwargs)


def _scan(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    sizes = (1, 64, 16, 32) if words[0] == "small" else (16, 1024, 16, 256) if big else (4, 128, 16, 64)
    return examples.selective_scan(*sizes, **kwargs)


def _scan_step(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    sizes = (12, 256, 16) if words[0] == "small" else (512, 1024, 16) if big else (64, 512, 16)
    return examples.selective_scan_step(*sizes, **kwargs)


def _linear(words: Sequence[str], big: bool, **kwargs: Any) -> Example:
    return examples.linear(8192 if big else 1024, 256, 1024, **kwargs)


_TYPICAL: dict[str, Callable[..., Example]] = {
    "two_hot_cross_entropy": functools.partial(_two_hot, "two_hot_cross_entropy"),
    "hl_gauss_cross_entropy": functools.partial(_two_hot, "hl_gauss_cross_entropy"),
    "two_hot_mean": functools.partial(_two_hot, "two_hot_mean"),
    "attention": _attention,
    "attention_step": _ring,
    "flex_attention": _flex_attention,
    "flex_attention_step": _flex_ring,
    "selective_scan": _scan,
    "selective_scan_step": _scan_step,
    "linear": _linear,
}


def typical(operation: str, shape: str, device: torch.device | str) -> Example:
    """The call that stands for a class of sizes; larger on a GPU than on a CPU."""
    words = shape.split()
    dtype = torch.float32 if words[-1] == "single" else torch.bfloat16
    return _TYPICAL[operation](words, torch.device(device).type == "cuda", device=device, dtype=dtype)


def ranked(medians: dict[str, float], last: str | None = None) -> dict[str, float]:
    """The medians, which come in the default order, in that in which "auto" is to try the backends.

    Args:
        last: the backend that is to be tried last, whatever its median.
    """
    left, found = dict(medians), {}
    while left:
        others = {name: time for name, time in left.items() if name != last} or left
        fastest = min(others.values())
        name = next(name for name, time in others.items() if time <= fastest * (1.0 + TOLERANCE))
        found[name] = left.pop(name)
    return found


class Tuner:
    """Measures on one device.

    Args:
        device: of the tensors.
        rounds: timings of which the median is taken.
    """

    def __init__(self, device: torch.device, rounds: int = 5) -> None:
        self.device, self.rounds = device, rounds
        self.failures: list[str] = []
        self._judged: dict[tuple[str, str, torch.dtype], bool] = {}

    def measure(self, operation: str, shape: str) -> dict[str, float]:
        """Microseconds of each backend that takes part, ranked."""
        example = typical(operation, shape, self.device)
        prepare = timing.forward if operation in STEPS else timing.forward_and_backward
        calls = {}
        for implementation in default_order(operation, self.device):
            backend = implementation.backend.value
            if implementation.missing():
                continue
            try:
                call = prepare(example, backend)
                call()
                if self._is_right(example, backend):
                    calls[backend] = call
            except Unsupported:
                continue
            except Exception as error:  # one backend that fails leaves the others to be measured
                self._fail(f"{operation} ({shape}) by {backend}: {type(error).__name__}: {error}")
        times = timing.interleaved(
            calls, self.device, rounds=self.rounds, sample=_SECONDS.get(self.device.type, 0.01)
        )
        medians = {name: round(statistics.median(x) * 1e6, 2) for name, x in times.items()}
        return ranked(medians, last=None if operation in (*STEPS, "linear") else "eager")

    def _is_right(self, example: Example, backend: str) -> bool:
        """Whether the backend passes the first sample call in the dtype of the example; asked once."""
        dtype = next(iter(example.tensors.values())).dtype
        key = (example.operation, backend, dtype)
        if key not in self._judged:
            # Sample calls come in float32 first, and then in other dtypes of the same sizes.
            sample = next(
                x
                for x in examples.sample_calls(example.operation, self.device)
                if next(iter(x.tensors.values())).dtype == dtype
            )
            try:
                testing.check(sample, backend, gradients=example.operation not in STEPS)
                self._judged[key] = True
            except AssertionError as error:
                self._judged[key] = False
                self._fail(f"not measured, as it computes wrongly: {error}")
        return self._judged[key]

    def _fail(self, message: str) -> None:
        self.failures.append(message)
        print(message, file=sys.stderr, flush=True)


def _processor() -> str:
    """The processor by its own name, as far as Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def measure_all(device: torch.device, only: str | None, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """An entry for a table, and what failed. Prints a line for every class of sizes."""
    tuner = Tuner(device, rounds)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for operation, shapes in shape_classes.NAMES.items():
        if only is not None and operation != only:
            continue
        for shape in shapes:
            times = tuner.measure(operation, shape)
            found.setdefault(operation, {})[shape] = times
            columns = "  ".join(f"{name} {time:.1f}" for name, time in times.items())
            print(f"{operation:24} {shape:22} {columns} us", flush=True)
    entry = {
        "device": shape_classes.device_class(device),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        **measured.versions(),
        "date": datetime.date.today().isoformat(),
        "microseconds": found,
    }
    return entry, tuner.failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and stores; returns the exit status, 1 if a backend failed or computed wrongly."""
    parser = argparse.ArgumentParser(prog="python -m amago.kernels.tune", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5, help="timings of which the median is taken")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--package", action="store_true", help="write the table that the package comes with")
    place.add_argument("--output", type=Path, metavar="FILE", help="write this file instead")
    place.add_argument(
        "--only", choices=list(shape_classes.NAMES), help="measure one operation, and write nothing"
    )
    options = parser.parse_args(arguments)
    entry, failures = measure_all(torch.device(options.device), options.only, options.rounds)
    if options.only is None:
        path = measured.PACKAGE_TABLE if options.package else options.output or measured.user_table()
        measured.write(path, entry)
        forget_orders()
        print(f"written to {path}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
