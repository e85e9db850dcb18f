"""The selective scan and its step on a GPU: Triton's kernels as an operation that torch knows, and calls of it.

Shapes: B rows, d channels, n states per channel, L timesteps.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.precision import traced
from amago.kernels.scan.inputs import Inputs

MAX_STATES = 256
_MAX_SPAN = (1 << 31) - 1


def _kernels() -> Any:
    """The module with the kernels; imported by the first call."""
    return importlib.import_module("amago.kernels.scan.triton_kernels")


def unsupported(u: Tensor, delta: Tensor, A: Tensor, *others: Tensor, **options: Any) -> list[str]:
    """Why Triton's kernels cannot scan these tensors; none if they can."""
    reasons = triton_runtime.unsupported("u", u)
    tensors = [delta, A, *others, *(x for x in options.values() if isinstance(x, Tensor))]
    if any(x.dtype == torch.float64 for x in tensors):
        reasons.append("it computes in float32, and an input is float64")
    if triton_runtime.INTERPRETED and any(x.dtype == torch.bfloat16 for x in tensors):
        reasons.append("Triton's interpreter computes wrongly in bfloat16")
    if A.shape[1] > MAX_STATES:
        reasons.append(f"it takes at most {MAX_STATES} states per channel, got {A.shape[1]}")
    if any(_span(x) > _MAX_SPAN for x in (u, *tensors)):
        reasons.append(f"a tensor reaches over more than {_MAX_SPAN} numbers")
    return reasons


def step_unsupported(state: Tensor, *others: Tensor, **options: Any) -> list[str]:
    """Why Triton's kernels cannot take a step; none if they can."""
    u, *rest = others
    return unsupported(u, *rest, initial_state=state, **options)


def _span(x: Tensor) -> int:
    """How far the last number of x lies behind the first."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


@torch.library.custom_op("amago_kernels::gpu_selective_scan", mutates_args=())
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, d, L), the last state (B, d, n), and the states that the gradient needs, both in float32."""
    result: tuple[Tensor, Tensor, Tensor] = _kernels().forward(
        u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, save=True
    )
    return result


@selective_scan.register_fake
def _(u: Tensor, delta: Tensor, A: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, channels, length = u.shape
    last = u.new_empty((rows, channels, A.shape[1]), dtype=torch.float32)
    return torch.empty_like(u), last, last.new_empty((-(-length // 16), *last.shape))


@torch.library.custom_op("amago_kernels::gpu_selective_scan_backward", mutates_args=())
def selective_scan_backward(
    grad_y: Tensor,
    grad_last: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    starts: Tensor,
    delta_softplus: bool,
) -> list[Tensor]:
    """Gradients of u, delta, A, B, C, D, z, delta_bias and the initial state; empty for what is not given."""
    kernels = importlib.import_module("amago.kernels.scan.triton_backward")
    found = kernels.backward(
        grad_y, grad_last.contiguous(), u, delta, A, B, C, D, z, delta_bias, starts, delta_softplus
    )
    inputs = (u, delta, A, B, C, D, z, delta_bias, starts)
    return [
        grad.new_empty(0) if x is None else grad.to(x.dtype) for x, grad in zip(inputs, found, strict=True)
    ]


@selective_scan_backward.register_fake
def _(grad_y: Tensor, grad_last: Tensor, *inputs: Any) -> list[Tensor]:
    u, delta, A, B, C, D, z, delta_bias, starts, _ = inputs
    others = [x.new_empty(x.shape) for x in (A, B, C)]
    options = [
        u.new_empty(0, dtype=torch.float32) if x is None else x.new_empty(x.shape) for x in (D, delta_bias)
    ]
    grad_z = u.new_empty(0, dtype=torch.float32) if z is None else torch.empty_like(z)
    return [
        torch.empty_like(u),
        torch.empty_like(delta),
        *others,
        options[0],
        grad_z,
        options[1],
        starts.new_empty(starts.shape[1:]),
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, initial_state, delta_softplus = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.delta_softplus = delta_softplus
    ctx.initial_dtype = None if initial_state is None else initial_state.dtype
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    *inputs, starts = ctx.saved_tensors
    grad_y = torch.zeros_like(inputs[0]) if grad_y is None else grad_y
    grad_last = torch.zeros_like(starts[0]) if grad_last is None else grad_last
    found = selective_scan_backward(grad_y, grad_last, *inputs, starts, ctx.delta_softplus)
    grads = [None if x is None else grad for x, grad in zip(inputs, found, strict=False)]
    initial = None if ctx.initial_dtype is None else found[-1].to(ctx.initial_dtype)
    return *grads, initial, None


selective_scan.register_autograd(_backward, setup_context=_setup_context)


def scan(
    inputs: Inputs, *, initial_state: Tensor | None, return_last_state: bool
) -> tuple[Tensor, Tensor | None]:
    """See `amago.kernels.selective_scan`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus = inputs
    D, delta_bias = (x if x is None else x.contiguous() for x in (D, delta_bias))
    tensors = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    if traced(*tensors):
        y, last, _ = selective_scan(*tensors, delta_softplus)
    else:
        y, last, _ = _kernels().forward(*tensors, delta_softplus, save=False)
    return y, last


def step(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan_step`: a sequence of one timestep."""
    sequence = inputs.over_time(lambda x: x.unsqueeze(-1))
    y, last = scan(sequence, initial_state=state, return_last_state=True)
    assert last is not None
    return y.squeeze(-1), last
