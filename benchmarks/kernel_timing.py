"""Timing of calls on the CPU and on a GPU: alternating repetitions after a warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tests.kernels.examples import Example

Call = Callable[[], Any]
_TRIES_OF_WARM_UP = 3


def forward(example: Example, backend: str | None) -> Call:
    """The call, without gradients."""

    def call() -> Any:
        with torch.no_grad():
            return example.run(backend)

    return call


def forward_and_backward(example: Example, backend: str | None) -> Call:
    """The call and the gradients of all inputs that have one, from an incoming gradient that is there."""
    tensors = {
        name: x.detach().requires_grad_(name in example.gradients) for name, x in example.tensors.items()
    }
    inputs = [tensors[name] for name in example.gradients]
    output = example.call(**tensors, backend=backend)
    upstream = torch.randn_like(output)
    del output

    def call() -> Any:
        return torch.autograd.grad(example.call(**tensors, backend=backend), inputs, upstream)

    return call


def seconds_of(call: Call, times: int, device: torch.device) -> float:
    """Of one call, on average over so many in a row; on a GPU as its own clock sees them."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / 1e3 / times


def warm_up(call: Call, device: torch.device, sample: float) -> int:
    """Makes a call until it is in its stride; returns how often it fits into `sample` seconds, at least once."""
    call()  # may build or compile
    duration = min(seconds_of(call, 1, device) for _ in range(_TRIES_OF_WARM_UP))
    return max(1, min(10_000, int(sample / max(duration, 1e-7))))


def interleaved(
    calls: Mapping[str, Call], device: torch.device | str, *, rounds: int = 7, sample: float = 0.02
) -> dict[str, list[float]]:
    """The seconds that each call took in every round; the calls take turns, so that all see the same machine.

    Args:
        calls: by name.
        rounds: numbers per call.
        sample: each number is the average of a row of calls that takes about this many seconds.
    """
    device = torch.device(device)
    times = {name: warm_up(call, device, sample) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(seconds_of(call, times[name], device))
    return found
