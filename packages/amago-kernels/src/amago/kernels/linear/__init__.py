"""Linear layers, with an optional leaky ReLU in place.

Shapes: K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amago.kernels.backends import Backend, Implementation, choose, register, requested
from amago.kernels.linear import onednn, reference
from amago.kernels.operators import require_tensors

__all__ = ["linear"]


register(
    "linear",
    [
        Implementation(Backend.ONEDNN, onednn.linear, onednn.unsupported, onednn.missing),
        Implementation(Backend.EAGER, reference.linear),
    ],
)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    leaky: float | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """x W^T + b, then max(y, leaky * y) if `leaky` is given.

    Args:
        x: (..., K).
        weight: (N, K).
        bias: (N,), or none.
        leaky: negative slope of the leaky ReLU, in (0, 1].
        backend: "eager", "onednn" (float32 on a CPU), or None / "auto" for the faster one: "onednn" for large
            products in float32 on a CPU with AVX-512 that is not Intel's, where torch's BLAS does not use it.

    Returns:
        (..., N).

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit, or a slope outside (0, 1].
        TypeError: for arguments that are not tensors.
        RuntimeError: if the requested backend cannot run the call.
    """
    _check(x, weight, bias, leaky)
    if requested(backend) is None and not onednn.faster_than_blas(x, weight):
        return reference.linear(x, weight, bias, leaky)
    out: Tensor = choose("linear", backend, x.device, x, weight, bias, leaky).run(x, weight, bias, leaky)
    return out


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> None:
    """Raises ValueError for arguments of `linear` that do not fit each other, TypeError for other types."""
    require_tensors(x=x, weight=weight)
    if weight.dim() != 2:
        raise ValueError(f"weight must be (outputs, inputs), got {tuple(weight.shape)}")
    n_out, n_in = weight.shape
    if x.dim() == 0 or x.shape[-1] != n_in:
        raise ValueError(
            f"x must have {n_in} features to fit weight {tuple(weight.shape)}, got {tuple(x.shape)}"
        )
    if bias is not None and bias.shape != (n_out,):
        raise ValueError(
            f"bias must be ({n_out},) to fit weight {tuple(weight.shape)}, got {tuple(bias.shape)}"
        )
    for name, other in (("weight", weight), ("bias", bias)):
        if other is None or (other.dtype == x.dtype and other.device == x.device):
            continue
        if other.device != x.device:
            raise ValueError(f"{name} must be on {x.device} like x, got {other.device}")
        if not torch.is_autocast_enabled(x.device.type):  # which makes them one dtype
            raise ValueError(f"{name} must be {x.dtype} like x, got {other.dtype}")
    if leaky is not None and not 0.0 < leaky <= 1.0:
        raise ValueError(f"leaky must be None or a slope in (0, 1], got {leaky}")
