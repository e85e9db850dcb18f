"""Linear layers by oneDNN, as convolutions with a kernel of one pixel.

torch computes float32 matrix products on a CPU with MKL, which keeps to AVX2 on processors that are not
Intel's. torch's convolutions run on oneDNN, which uses the AVX-512 units that recent ones have: some 390
against 175 GFLOP/s for (3072, 256) times (256, 1024) on two Zen 5 cores. Rows of features are the pixels of an
image in channels-last order, so nothing is copied, and autograd, also of second order, is torch's own.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.linear import reference

# Below this many multiplications, or features, a call costs more than it saves.
_WORTH_MULTIPLICATIONS = 1 << 23
_WORTH_FEATURES = 32


@functools.cache
def _vendor() -> str:
    """Vendor of the processor as Linux names it; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


@functools.cache
def _has_wider_vectors() -> bool:
    """Whether oneDNN uses wider vector units than torch's BLAS on this processor."""
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return avx512 and torch.backends.mkl.is_available() and _vendor() not in ("", "GenuineIntel")


def unsupported(x: Tensor, weight: Tensor, *_: object) -> list[str]:
    """Reasons why oneDNN cannot compute this layer."""
    reasons = []
    if x.device.type != "cpu":
        reasons.append(f"it computes on the CPU, and x is on {x.device}")
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        reasons.append(f"it computes in float32, and x and weight are {x.dtype} and {weight.dtype}")
    return reasons


def missing(build: bool = False) -> list[str]:
    """Reasons why it cannot run on this machine."""
    return [] if torch.backends.mkldnn.is_available() else ["this torch was built without oneDNN"]


def faster_than_blas(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN computes the layer faster than `torch.nn.functional.linear`."""
    return (
        not torch.compiler.is_compiling()
        and _has_wider_vectors()
        and x.numel() * weight.shape[0] >= _WORTH_MULTIPLICATIONS
        and min(weight.shape) >= _WORTH_FEATURES
        and x.dtype == torch.float32
        and weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> Tensor:
    """See `amago.kernels.linear`."""
    if x.numel() == 0 or weight.numel() == 0:  # there is no image without pixels or channels
        return reference.linear(x, weight, bias, leaky)
    n_out, n_in = weight.shape
    image = x.reshape(1, -1, 1, n_in).permute(0, 3, 1, 2)  # (1, K, M, 1), channels last
    kernel = weight.reshape(n_out, 1, 1, n_in).permute(0, 3, 1, 2)  # (N, K, 1, 1)
    out = F.conv2d(image, kernel, bias)  # (1, N, M, 1)
    if leaky is not None:
        out = F.leaky_relu(out, leaky, inplace=True)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], n_out)
