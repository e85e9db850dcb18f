"""The two-hot operations on a GPU as operations that torch knows: schema, shapes and gradients, whoever computes.

`kernels` names the implementation, "triton" or "cuda", and a normal distribution's `sharpness` 1 / (sigma sqrt 2)
is 0 for two-hot labels. What is saved for the gradient is the inputs alone: the backward pass has to read the
logits anyway, and finds their softmax again in registers.

Shapes: n bins, other leading axes are free; target, mask and weight are expanded to them, not copied.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from amago.kernels.two_hot.bins import Bins
from amago.kernels.two_hot.rows import row_axes

_MODULES = {
    "triton": "amago.kernels.two_hot.triton_kernels",
    "cuda": "amago.kernels.two_hot.cuda_kernels",
}


def _launcher(kernels: str) -> Any:
    """The module with the kernels; imported by the first call."""
    return importlib.import_module(_MODULES[kernels])


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    low: float,
    high: float,
    symlog: bool,
    sharpness: float,
    kernels: str,
) -> Tensor:
    """weight * cross-entropy of softmax(logits) against the labels of the targets: (..., n) -> (...) float32."""
    *rows, n = logits.shape
    bins = Bins(low, high, n, symlog)
    loss = logits.new_empty(rows, dtype=torch.float32)
    operands = (logits, target, mask, weight, loss)
    axes = row_axes(rows, operands)
    if axes is None:
        dense = (logits.contiguous(), target.contiguous(), _dense(mask), _dense(weight))
        return cross_entropy(*dense, low, high, symlog, sharpness, kernels)
    if axes.rows:
        _launcher(kernels).cross_entropy(axes, operands, bins, sharpness)
    return loss


def _cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None,
    weight: Tensor | None,
    low: float,
    high: float,
    symlog: bool,
    sharpness: float,
    kernels: str,
) -> Tensor:
    """The gradient of `cross_entropy` with respect to the logits: grad (...) -> (..., n)."""
    *rows, n = logits.shape
    bins = Bins(low, high, n, symlog)
    out = torch.empty_like(logits)
    operands = (logits, target, mask, weight, grad, out)
    axes = row_axes(rows, operands)
    if axes is None:
        dense = (grad.contiguous(), logits.contiguous(), target.contiguous(), _dense(mask), _dense(weight))
        return out.copy_(_cross_entropy_backward(*dense, low, high, symlog, sharpness, kernels))
    if axes.rows:
        _launcher(kernels).cross_entropy_backward(axes, operands, bins, sharpness)
    return out


def expected_return(logits: Tensor, low: float, high: float, symlog: bool, kernels: str) -> Tensor:
    """The return that softmax(logits) stands for: (..., n) -> (...) float32."""
    *rows, n = logits.shape
    value = logits.new_empty(rows, dtype=torch.float32)
    axes = row_axes(rows, (logits, value))
    if axes is None:
        return expected_return(logits.contiguous(), low, high, symlog, kernels)
    if axes.rows:
        _launcher(kernels).mean(axes, (logits, value), Bins(low, high, n, symlog))
    return value


def _expected_return_backward(
    grad: Tensor, logits: Tensor, low: float, high: float, symlog: bool, kernels: str
) -> Tensor:
    """The gradient of `expected_return` with respect to the logits: grad (...) -> (..., n)."""
    *rows, n = logits.shape
    out = torch.empty_like(logits)
    axes = row_axes(rows, (logits, grad, out))
    if axes is None:
        dense = (grad.contiguous(), logits.contiguous())
        return out.copy_(_expected_return_backward(*dense, low, high, symlog, kernels))
    if axes.rows:
        _launcher(kernels).mean_backward(axes, (logits, grad, out), Bins(low, high, n, symlog))
    return out


cross_entropy_op = torch.library.custom_op("amago_kernels::gpu_cross_entropy", cross_entropy, mutates_args=())
cross_entropy_backward_op = torch.library.custom_op(
    "amago_kernels::gpu_cross_entropy_backward", _cross_entropy_backward, mutates_args=()
)
expected_return_op = torch.library.custom_op(
    "amago_kernels::gpu_expected_return", expected_return, mutates_args=()
)
expected_return_backward_op = torch.library.custom_op(
    "amago_kernels::gpu_expected_return_backward", _expected_return_backward, mutates_args=()
)


@cross_entropy_op.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


@expected_return_op.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


@cross_entropy_backward_op.register_fake
def _(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


@expected_return_backward_op.register_fake
def _(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


def _save_for_cross_entropy(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _differentiate_cross_entropy(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return cross_entropy_backward_op(grad, *ctx.saved_tensors, *ctx.options), *[None] * 8


def _save_for_mean(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.options = inputs[1:]


def _differentiate_mean(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return expected_return_backward_op(grad, *ctx.saved_tensors, *ctx.options), *[None] * 4


cross_entropy_op.register_autograd(_differentiate_cross_entropy, setup_context=_save_for_cross_entropy)
expected_return_op.register_autograd(_differentiate_mean, setup_context=_save_for_mean)
