"""The recurrence in C++ on the CPU: csrc/selective_scan.cpp behind torch custom operators.

Shapes as in `recurrence`: L timesteps, B rows, d channels, n states per channel; K chunks, M blocks of channels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from amago.kernels.native import DTYPES, SELECTIVE_SCAN, operand
from amago.kernels.precision import accumulation_dtype
from amago.kernels.scan import fast
from amago.kernels.scan.inputs import Inputs
from amago.kernels.scan.op import Gradients, recurrence_operator
from amago.kernels.scan.recurrence import CHUNK, num_chunks


def unsupported(u: Tensor, *_: object, **__: object) -> list[str]:
    """Why the call cannot run: tensors elsewhere than on the CPU."""
    return [] if u.device.type == "cpu" else [f"it computes on the CPU, and u is on {u.device}"]


def step_unsupported(state: Tensor, u: Tensor, *tensors: Tensor, **options: Any) -> list[str]:
    """The same, and the step has no gradient."""
    return unsupported(u) + fast.step_unsupported(state, u, *tensors, **options)


def _sizes(u: Tensor, A: Tensor) -> tuple[str, int, int, int, int, int]:
    """What both kernels take first: dtype, L, B, d, n, timesteps of a chunk."""
    return (DTYPES[u.dtype], *u.shape, A.shape[0], CHUNK)


def _dense(x: Tensor) -> Tensor:
    """x with its last axis dense."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`recurrence.forward`; A and the initial state are contiguous, the other tensors in their last axis."""
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
) -> Gradients:
    """`recurrence.backward`."""
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


scan_recurrence, scan_recurrence_backward = recurrence_operator(
    "cpp_selective_scan", forward, backward, device_types="cpu"
)

scan = functools.partial(fast.scan, operator=scan_recurrence, plain=forward)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _step(
    state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """One timestep, from the network's numbers to the gated output; all tensors are of one dtype."""
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


scan_step = torch.library.custom_op(
    "amago_kernels::cpp_selective_scan_step", _step, mutates_args=(), device_types="cpu"
)


@scan_step.register_fake
def _(state: Tensor, u: Tensor, *_: Tensor | bool | None) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), state.new_empty(state.shape)


def step(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan_step`."""
    tensors: tuple[Any, ...] = (state, *inputs[:-1])
    dtype = state.dtype
    if any(x is not None and x.dtype != dtype for x in tensors):
        dtype = accumulation_dtype(*tensors)
        tensors = tuple(None if x is None else x.to(dtype) for x in tensors)
    run: Any = scan_step if torch.compiler.is_compiling() else _step
    y, after = run(*tensors, inputs.delta_softplus)
    return y if dtype == inputs.u.dtype else y.to(inputs.u.dtype), after
