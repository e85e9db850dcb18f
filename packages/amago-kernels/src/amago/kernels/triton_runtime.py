"""Triton's part of this machine: whether its kernels can run here, and on which tensors.

Kernels live in the `triton_kernels` modules, which need triton to be imported and are imported by the first call
that runs one. Triton compiles them for the GPU at hand. With TRITON_INTERPRET=1 in the environment from the start,
its interpreter runs them instead, on tensors of the CPU and slowly: for tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

INSTALL = "pip install triton"
# Triton asks when a kernel is defined, so a later change of the environment would change nothing.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


class Triton:
    """What the backends in Triton need of the machine."""

    def missing(self) -> list[str]:
        """Why Triton cannot run a kernel here; nothing is imported."""
        reasons = []
        if not _installed():
            reasons.append(f"triton is not installed: {INSTALL}")
        if not INTERPRETED and not torch.cuda.is_available():
            reasons.append("there is no CUDA device (TRITON_INTERPRET=1 runs kernels on the CPU, for tests)")
        return reasons

    def failures(self) -> list[str]:
        """The same: kernels are compiled when they are called."""
        return self.missing()


def unsupported(name: str, x: Tensor) -> list[str]:
    """Why no kernel can take a tensor, for its device or its dtype; `name` is what the caller knows it by."""
    reasons = []
    if not (x.is_cuda or (INTERPRETED and x.device.type == "cpu")):
        reasons.append(f"its kernels need a CUDA device and {name} is on {x.device}")
    if x.dtype not in _DTYPES:
        reasons.append(f"{name} must be float32, float16 or bfloat16, got {x.dtype}")
    elif INTERPRETED and x.dtype == torch.bfloat16:
        reasons.append("Triton's interpreter computes wrongly in bfloat16")
    return reasons


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Within it kernels are launched on the device of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def unit_of(strides: Iterable[int]) -> int:
    """8 if it divides all strides, else 1. Kernels take strides in this unit.

    Triton compiles a kernel anew for a number that 16 divides and learns nothing of 8, by which the heads of odd
    multiples of 8 lie apart; told so, it reads eight numbers of half precision at once.
    """
    return 8 if all(stride % 8 == 0 for stride in strides) else 1
