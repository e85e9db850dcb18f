"""The selective scan and its step on a GPU: the Triton kernels as torch operators.

Shapes: B rows, d channels, n states per channel, L timesteps.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.operators import Operator, needs_gradient
from amago.kernels.scan.inputs import ScanInputs
from amago.kernels.scan.native import SCAN_ARGUMENTS

MAX_STATES = 256


def _kernels() -> Any:
    """The module of the kernels, imported by the first call."""
    return importlib.import_module("amago.kernels.scan.triton_kernels")


def unsupported(inputs: ScanInputs, *_: object) -> list[str]:
    """Reasons why the kernels cannot run a call."""
    reasons = triton_runtime.unsupported("u", inputs.u)
    tensors = [x for x in inputs.tensors if x is not None]
    if any(x.dtype == torch.float64 for x in tensors[1:]):
        reasons.append("it computes in float32, and an input is float64")
    if triton_runtime.INTERPRETED and any(x.dtype == torch.bfloat16 for x in tensors[1:]):
        reasons.append("Triton's interpreter computes wrongly in bfloat16")
    if inputs.A.shape[1] > MAX_STATES:
        reasons.append(f"it takes at most {MAX_STATES} states per channel, got {inputs.A.shape[1]}")
    return reasons


def _forward(*arguments: Any) -> Any:
    """y (B, d, L), the last state (B, d, n), and the states at the starts of chunks, both in float32."""
    return _kernels().forward(*arguments, save=True)


def _fake_forward(u: Tensor, delta: Tensor, A: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, channels, length = u.shape
    last = u.new_empty((rows, channels, A.shape[1]), dtype=torch.float32)
    return torch.empty_like(u), last, last.new_empty((-(-length // 16), *last.shape))


def _backward(grad_y: Tensor, grad_last: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of u, delta, A, B, C, D, z, delta_bias and the initial state; empty for those not given."""
    *inputs, state, starts, delta_softplus = arguments
    found = _kernels().backward(grad_y, grad_last.contiguous(), *inputs, starts, delta_softplus)
    return [
        grad.new_empty(0) if x is None else grad.to(x.dtype)
        for x, grad in zip((*inputs, state), found, strict=True)
    ]


def _fake_backward(grad_y: Tensor, grad_last: Tensor, *arguments: Any) -> list[Tensor]:
    u, delta, A, B, C, D, z, delta_bias, state, *_ = arguments

    def empty(x: Tensor | None, dense: bool = True) -> Tensor:
        if x is None:
            return grad_y.new_empty(0, dtype=torch.float32)
        return x.new_empty(x.shape) if dense else torch.empty_like(x)

    others = [empty(x) for x in (A, B, C, D)]
    return [
        empty(u, False),
        empty(delta, False),
        *others,
        empty(z, False),
        empty(delta_bias),
        empty(state),
    ]


selective_scan = Operator(
    "gpu_selective_scan",
    _forward,
    f"{SCAN_ARGUMENTS}, bool delta_softplus",
    "(Tensor, Tensor, Tensor)",
    fake=_fake_forward,
)
selective_scan_backward = Operator(
    "gpu_selective_scan_backward",
    _backward,
    f"Tensor grad_y, Tensor grad_last, {SCAN_ARGUMENTS}, Tensor starts, bool delta_softplus",
    "Tensor[]",
    fake=_fake_backward,
)
selective_scan.differentiate(selective_scan_backward, keep=(2,), auxiliary=(2,))


def scan(inputs: ScanInputs, return_last_state: bool) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan`."""
    u, delta, A, B, C, D, z, delta_bias, state = inputs.tensors
    D, delta_bias = (x if x is None else x.contiguous() for x in (D, delta_bias))
    tensors = (u, delta, A, B, C, D, z, delta_bias, state)
    if torch.compiler.is_compiling() or needs_gradient(*tensors):
        y, last, _ = selective_scan.dispatch(*tensors, inputs.delta_softplus)
    else:
        y, last, _ = _kernels().forward(*tensors, inputs.delta_softplus, save=False)
    return y, last


def step(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan_step`: a sequence of one timestep."""
    sequence = inputs.over_time(lambda x: x.unsqueeze(-1))
    y, last = scan(sequence, True)
    return y.squeeze(-1), last
