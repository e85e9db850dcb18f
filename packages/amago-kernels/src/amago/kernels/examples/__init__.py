"""Calls of every operation on random numbers: what `amago.kernels.testing` compares and `tune` times.

`base` holds the `Example`, `makers` makes one of each operation at sizes of the caller's choice, and `samples`
holds the calls by which backends are judged.
"""

from amago.kernels.examples.base import Draws, Example, repeated, strided
from amago.kernels.examples.makers import (
    attention,
    attention_step,
    linear,
    selective_scan,
    selective_scan_step,
    two_hot,
)
from amago.kernels.examples.samples import sample_calls

__all__ = [
    "Draws",
    "Example",
    "attention",
    "attention_step",
    "linear",
    "repeated",
    "sample_calls",
    "selective_scan",
    "selective_scan_step",
    "strided",
    "two_hot",
]
