"""The recurrence and the step in C++ on the CPU: csrc/selective_scan.cpp as torch operators.

Shapes as in `chunked`: L timesteps, B rows, d channels, n states per channel; K chunks, M blocks of channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, SELECTIVE_SCAN, operand
from amago.kernels.operators import Operator
from amago.kernels.scan import chunked
from amago.kernels.scan.chunked import CHUNK, num_chunks
from amago.kernels.scan.inputs import ScanInputs


def unsupported(inputs: ScanInputs, *_: object) -> list[str]:
    """Reasons why it cannot run the call: tensors on another device."""
    device = inputs.u.device
    return [] if device.type == "cpu" else [f"it computes on the CPU, and u is on {device}"]


def step_unsupported(inputs: ScanInputs) -> list[str]:
    """Reasons why it cannot run a step: the device, or gradients."""
    return unsupported(inputs) + chunked.step_unsupported(inputs)


def _sizes(u: Tensor, A: Tensor) -> tuple[str, int, int, int, int, int]:
    """The first arguments of both kernels: dtype, L, B, d, n, timesteps of a chunk."""
    return (DTYPES[u.dtype], *u.shape, A.shape[0], CHUNK)


def _dense(x: Tensor) -> Tensor:
    """x with its last axis dense."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`chunked.forward`; A and the initial state are contiguous, the other tensors in their last axis."""
    y = torch.empty(u.shape, dtype=u.dtype)
    last = torch.empty(initial_state.shape, dtype=u.dtype)
    starts = torch.empty((num_chunks(u.shape[0]) if save else 0, *initial_state.shape), dtype=u.dtype)
    SELECTIVE_SCAN.load().forward(
        *_sizes(u, A),
        operand(u),
        operand(delta),
        A.data_ptr(),
        operand(B),
        operand(C),
        initial_state.data_ptr(),
        y.data_ptr(),
        last.data_ptr(),
        starts.data_ptr() if save else 0,
        torch.get_num_threads(),
    )
    return y, last, starts


def backward(
    grad_y: Tensor,
    grad_last: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
) -> tuple[Tensor, ...]:
    """`chunked.backward`."""
    _, rows, channels = u.shape
    kernels = SELECTIVE_SCAN.load()
    blocks = -(-channels // kernels.BLOCK)
    shapes = (u.shape, u.shape, (rows, *A.shape), (blocks, *B.shape), (blocks, *B.shape), starts.shape[1:])
    grads = [torch.empty(shape, dtype=u.dtype) for shape in shapes]
    grad_y, grad_last = _dense(grad_y), grad_last.contiguous()
    kernels.backward(
        *_sizes(u, A),
        operand(grad_y),
        grad_last.data_ptr(),
        operand(u),
        operand(delta),
        A.data_ptr(),
        operand(B),
        operand(C),
        starts.data_ptr(),
        *(grad.data_ptr() for grad in grads),
        torch.get_num_threads(),
    )
    grad_u, grad_delta, grad_A, grad_B, grad_C, grad_initial = grads
    return grad_u, grad_delta, grad_A.sum(0), grad_B.sum(0), grad_C.sum(0), grad_initial


recurrence = chunked.Recurrence("cpp_selective_scan", forward, backward, device="cpu")


def scan(inputs: ScanInputs, return_last_state: bool) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan`."""
    return chunked.scan(inputs, return_last_state, recurrence)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    state: Tensor,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """One timestep, softplus, skip and gate included; all tensors are of one dtype."""
    y = torch.empty(u.shape, dtype=u.dtype)
    after = torch.empty(state.shape, dtype=u.dtype)
    state, A = state.contiguous(), A.contiguous()
    u, delta, B, C = (_dense(x) for x in (u, delta, B, C))
    D, z, delta_bias = (None if x is None else _dense(x) for x in (D, z, delta_bias))
    SELECTIVE_SCAN.load().step(
        DTYPES[u.dtype],
        *state.shape,
        operand(state),
        operand(u),
        operand(delta),
        A.data_ptr(),
        operand(B),
        operand(C),
        _address(D),
        operand(z),
        _address(delta_bias),
        delta_softplus,
        y.data_ptr(),
        after.data_ptr(),
        torch.get_num_threads(),
    )
    return y, after


def _fake_step(*arguments: Any) -> tuple[Tensor, Tensor]:
    u, state = arguments[0], arguments[-2]
    return u.new_empty(u.shape), state.new_empty(state.shape)


SCAN_ARGUMENTS = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, "
    "Tensor? D, Tensor? z, Tensor? delta_bias, Tensor? state"
)
scan_step = Operator(
    "cpp_selective_scan_step",
    _step,
    f"{SCAN_ARGUMENTS}, bool delta_softplus",
    "(Tensor, Tensor)",
    fake=_fake_step,
    device="cpu",
)


def step(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan_step`."""
    dtype = inputs.dtype
    tensors = tuple(x if x is None or x.dtype == dtype else x.to(dtype) for x in inputs.tensors)
    y, after = scan_step(*tensors, inputs.delta_softplus)
    return y if dtype == inputs.u.dtype else y.to(inputs.u.dtype), after
