"""Critics that classify returns into bins: cross-entropy straight from scalar targets, and expected values.

- `bins`: the support. `reference`: dense labels, in torch. `native`: C++ on the CPU.
- `gpu`: operators for the GPU kernels, which are in `triton_kernels` and `cuda_kernels`.

Shapes: n bins, other leading axes are free.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amago.kernels.backends import Backend, Implementation, choose, register
from amago.kernels.native import TWO_HOT, TWO_HOT_CUDA
from amago.kernels.operators import require_tensors
from amago.kernels.triton_runtime import missing as needs_triton
from amago.kernels.two_hot import gpu, native, reference
from amago.kernels.two_hot.bins import Bins

__all__ = ["Bins", "hl_gauss_cross_entropy", "two_hot_cross_entropy", "two_hot_mean"]


_triton, _cuda = gpu.GpuTwoHot("triton"), gpu.GpuTwoHot("cuda")

for _name, _function in (
    ("two_hot_cross_entropy", "cross_entropy"),
    ("hl_gauss_cross_entropy", "cross_entropy"),
    ("two_hot_mean", "mean"),
):
    register(
        _name,
        [
            Implementation(Backend.CPP, getattr(native, _function), native.unsupported, TWO_HOT.missing),
            Implementation(Backend.TRITON, getattr(_triton, _function), _triton.unsupported, needs_triton),
            Implementation(Backend.CUDA, getattr(_cuda, _function), _cuda.unsupported, TWO_HOT_CUDA.missing),
            Implementation(Backend.EAGER, getattr(reference, _function)),
        ],
    )


def _check_logits(logits: Tensor, bins: Bins) -> None:
    """Raises ValueError unless the logits are floating-point numbers (..., n), TypeError for other types."""
    if not isinstance(bins, Bins):
        raise TypeError(f"bins must be Bins, got {bins!r}")
    require_tensors(logits=logits)
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point numbers, got {logits.dtype}")
    if logits.dim() < 1 or logits.shape[-1] != bins.n:
        raise ValueError(f"logits must end in the {bins.n} bins, got shape {tuple(logits.shape)}")


def _check_per_row(name: str, x: Tensor, logits: Tensor) -> None:
    """Raises ValueError unless x broadcasts to the rows of the logits, on the same device."""
    require_tensors(**{name: x})
    rows = logits.shape[:-1]
    fits = x.dim() <= len(rows) and all(
        a in (1, b) for a, b in zip(reversed(x.shape), reversed(rows), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to the rows {tuple(rows)} of the logits, got shape {tuple(x.shape)}"
        )
    if x.device != logits.device:
        raise ValueError(f"{name} must be on {logits.device} like the logits, got {x.device}")


def _check_loss(
    logits: Tensor, target: Tensor, bins: Bins, mask: Tensor | None, weight: Tensor | None
) -> None:
    """Raises ValueError for arguments of a loss that do not fit."""
    _check_logits(logits, bins)
    _check_per_row("target", target, logits)
    if not target.is_floating_point():
        raise ValueError(f"target must be floating-point returns, got {target.dtype}: pass target.float()")
    if mask is not None:
        _check_per_row("mask", mask, logits)
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, true where a row counts, got {mask.dtype}")
    if weight is not None:
        _check_per_row("weight", weight, logits)
        if not weight.is_floating_point():
            raise ValueError(f"weight must be floating-point numbers, got {weight.dtype}")


def two_hot_cross_entropy(
    logits: Tensor,
    target: Tensor,
    bins: Bins,
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """Cross-entropy of softmax(logits) against the two-hot labels of scalar returns (Hafner et al. 2023, eq. 9).

    A return's label is shared by the two nearest bins, so that their mean is the return. Labels are never built,
    and a target that broadcasts is never copied.

    Args:
        logits: (..., n), finite; the only input with a gradient.
        target: returns, broadcastable to (...), clamped to the support. NaN makes the loss and the gradient of
            its row NaN.
        bins: the support.
        mask: bool, broadcastable to (...). Where false, loss and gradient are 0, whatever logits and target
            hold.
        weight: floats, broadcastable to (...), that multiply the loss.
        backend: "cpp", "triton", "cuda", "eager", or None / "auto" for the first that can run
            the call: "cpp" on a CPU, "triton" on CUDA.

    Returns:
        The loss of each row (...), in nats: float32, or float64 for float64 logits.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit.
        TypeError: for arguments that are not tensors or bins.
        RuntimeError: if the requested backend cannot run the call.
    """
    _check_loss(logits, target, bins, mask, weight)
    arguments = (logits, target, bins, mask, weight, None)
    loss: Tensor = choose("two_hot_cross_entropy", backend, logits.device, *arguments).run(*arguments)
    return loss


def hl_gauss_cross_entropy(
    logits: Tensor,
    target: Tensor,
    bins: Bins,
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    sigma: float = 0.75,
    backend: str | Backend | None = None,
) -> Tensor:
    """Cross-entropy against a normal distribution around each return (Farebrother et al. 2024, sec. 3.1).

    A bin's label is the probability of the interval that ends half-way to its neighbours; the distribution is
    truncated to the support.

    Args:
        logits, target, bins, mask, weight, backend: as in `two_hot_cross_entropy`.
        sigma: standard deviation in bin widths, from 1e-6 to 1e6.

    Returns:
        The loss of each row (...), as in `two_hot_cross_entropy`.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit, or a sigma out of range.
        TypeError: for arguments that are not tensors or bins.
        RuntimeError: if the requested backend cannot run the call.
    """
    _check_loss(logits, target, bins, mask, weight)
    if not 1e-6 <= sigma <= 1e6:  # beyond, float32 has no digits left for the labels
        raise ValueError(f"sigma must be a positive number of bin widths, from 1e-6 to 1e6, got {sigma}")
    arguments = (logits, target, bins, mask, weight, float(sigma))
    loss: Tensor = choose("hl_gauss_cross_entropy", backend, logits.device, *arguments).run(*arguments)
    return loss


def two_hot_mean(logits: Tensor, bins: Bins, *, backend: str | Backend | None = None) -> Tensor:
    """The expected support point under softmax(logits), mapped back to a return.

    Args:
        logits: (..., n).
        bins: the support.
        backend: "cpp", "triton", "cuda", "eager", or None / "auto" for the first that can run
            the call: "cpp" on a CPU, "triton" on CUDA.

    Returns:
        (...), float32, or float64 for float64 logits; its gradient flows into the logits.

    Raises:
        ValueError: for shapes or dtypes that do not fit.
        TypeError: for arguments that are not tensors or bins.
        RuntimeError: if the requested backend cannot run the call.
    """
    _check_logits(logits, bins)
    value: Tensor = choose("two_hot_mean", backend, logits.device, logits, bins).run(logits, bins)
    return value
