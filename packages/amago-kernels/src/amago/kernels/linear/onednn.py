"""Linear layers by oneDNN: with one thread by torch's linear operation for it, with several as convolutions.

torch computes float32 matrix products on a CPU with MKL, which keeps to AVX2 on processors that are not
Intel's. oneDNN uses the AVX-512 units that recent ones have: on one Zen 5 core 180 against 98 GFLOP/s for
(1080, 64) times (64, 64), and 227 against 105 for (3072, 256) times (256, 1024). The linear operation has no
derivative, so it is given here, by products of the same kind.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@functools.cache
def _is_built() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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
    return [] if _is_built() else ["this torch was built without oneDNN"]


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
        and _is_built()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> Tensor:
    """See `amago.kernels.linear`."""
    if x.numel() == 0 or weight.numel() == 0:
        return reference.linear(x, weight, bias, leaky)
    if not torch.compiler.is_compiling() and torch.get_num_threads() > 1:
        return _by_convolution(x, weight, bias, leaky)
    rows = x.reshape(-1, x.shape[-1])
    n_rows = len(rows)
    rows = _padded(rows)
    out = (_differentiable if torch.is_grad_enabled() else _linear)(rows, weight, bias, leaky)
    return out[:n_rows].view(*x.shape[:-1], weight.shape[0])


def _padded(x: Tensor) -> Tensor:
    """x (M, K) with rows of zeros up to one of sixteen sizes between powers of two.

    oneDNN generates code for each new shape, which takes longer than a product of small matrices, and batches
    have a different number of transitions every time.
    """
    missing = -len(x) % (1 << max(0, len(x).bit_length() - 5))
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def _by_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> Tensor:
    """As `linear`, by a convolution with a kernel of one pixel.

    For the large layers that are worth several threads it takes some 5 % less time than the linear operation, and
    padding does not pay there. With one thread torch does not compute it by oneDNN.
    """
    n_out, n_in = weight.shape
    image = x.reshape(1, -1, 1, n_in).permute(0, 3, 1, 2)  # (1, K, M, 1), channels last
    kernel = weight.reshape(n_out, 1, 1, n_in).permute(0, 3, 1, 2)  # (N, K, 1, 1)
    out = F.conv2d(image, kernel, bias)  # (1, N, M, 1)
    if leaky is not None:
        out = F.leaky_relu(out, leaky, inplace=True)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], n_out)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> Tensor:
    """As `linear`, of two axes and without a derivative; x and weight may be transposed."""
    activation, settings = ("none", []) if leaky is None else ("leaky_relu", [leaky])
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # a slice of columns, for which oneDNN has only slow code
    if bias is not None:
        bias = bias.contiguous()  # the operation ignores its stride
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, activation, settings, "")
    return out


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T; differentiable where gradients of second order are wanted."""
    return (_differentiable if torch.is_grad_enabled() else _linear)(a, b, None, None)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> Tensor:
        out = _linear(x, weight, bias, leaky)
        # The sign of the output is that of its argument.
        ctx.save_for_backward(x, weight, None if leaky is None else out)
        ctx.leaky = leaky
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        if ctx.leaky is not None:
            grad = torch.ops.aten.leaky_relu_backward(grad, out, ctx.leaky, True)
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        grad_weight = None
        if for_weight and x.shape[1] <= weight.shape[0]:  # oneDNN copies the first factor if it is transposed
            grad_weight = _product(x.t(), grad.t()).t()
        elif for_weight:
            grad_weight = _product(grad.t(), x.t())
        return (
            _product(grad, weight.t()) if for_x else None,
            grad_weight,
            grad.sum(0) if for_bias else None,
            None,
        )


_differentiable: Callable[[Tensor, Tensor, Tensor | None, float | None], Tensor] = _Linear.apply
