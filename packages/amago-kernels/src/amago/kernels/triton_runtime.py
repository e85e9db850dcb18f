"""Whether Triton kernels can run on this machine, and on which tensors.

The `triton_kernels` modules import triton, and are imported by the first call that runs a kernel. Triton compiles
kernels for the GPU at hand. With TRITON_INTERPRET=1 in the environment at start, its interpreter runs them
instead, slowly, on CPU tensors: for tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

INSTALL = "pip install triton"
# Triton reads it when a kernel is defined, so a later change of the environment has no effect.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def missing(build: bool = False) -> list[str]:
    """Reasons why Triton cannot run a kernel here; nothing is imported or built."""
    reasons = []
    if not _installed():
        reasons.append(f"triton is not installed: {INSTALL}")
    if not INTERPRETED and not torch.cuda.is_available():
        reasons.append("there is no CUDA device (TRITON_INTERPRET=1 runs kernels on the CPU, for tests)")
    return reasons


def unsupported(name: str, x: Tensor) -> list[str]:
    """Reasons why no kernel can read a tensor: its device or its dtype; `name` is the argument's name."""
    reasons = []
    if not (x.is_cuda or (INTERPRETED and x.device.type == "cpu")):
        reasons.append(f"its kernels need a CUDA device and {name} is on {x.device}")
    if x.dtype not in _DTYPES:
        reasons.append(f"{name} must be float32, float16 or bfloat16, got {x.dtype}")
    elif INTERPRETED and x.dtype == torch.bfloat16:
        reasons.append("Triton's interpreter computes wrongly in bfloat16")
    return reasons


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Context in which kernels are launched on the device of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
