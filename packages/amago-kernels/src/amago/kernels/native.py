"""The package's native modules, for each operation that has C++ or CUDA code, and how they are given tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from amago.kernels.compile import PACKAGE, Extension
from amago.kernels.cuda import CudaExtension

TWO_HOT = Extension("amago_two_hot", (PACKAGE / "two_hot" / "csrc" / "two_hot.cpp",))
ATTENTION_STEP = Extension("amago_attention_step", (PACKAGE / "attention" / "csrc" / "attention_step.cpp",))
SELECTIVE_SCAN = Extension("amago_selective_scan", (PACKAGE / "scan" / "csrc" / "selective_scan.cpp",))
ACTING = Extension("amago_acting", (PACKAGE / "acting" / "csrc" / "acting.cpp",))
TWO_HOT_CUDA = CudaExtension(
    "amago_two_hot_cuda",
    tuple(PACKAGE / "two_hot" / "csrc" / name for name in ("two_hot.cu", "two_hot_cuda.cpp")),
)
ATTENTION_STEP_CUDA = CudaExtension(
    "amago_attention_step_cuda",
    tuple(PACKAGE / "attention" / "csrc" / name for name in ("attention_step.cu", "attention_step_cuda.cpp")),
)

EXTENSIONS = (TWO_HOT, ATTENTION_STEP, SELECTIVE_SCAN, ACTING, TWO_HOT_CUDA, ATTENTION_STEP_CUDA)

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def operand(x: Tensor | None) -> tuple[int, Sequence[int]]:
    """Address and strides, as the kernels take them; address 0 for a tensor that is not given."""
    return (0, ()) if x is None else (x.data_ptr(), x.stride())
