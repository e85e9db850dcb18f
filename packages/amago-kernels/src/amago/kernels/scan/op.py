"""The recurrence as an operation that torch knows: opaque to compilers, with its own backward pass.

Shapes as in `recurrence`: L timesteps, B rows, d channels, n states per channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amago.kernels.scan import recurrence
from amago.kernels.scan.precision import full_precision

_Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("amago::selective_scan", mutates_args=())
def selective_recurrence(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`recurrence.forward` with the states that its backward pass needs."""
    with full_precision(u.device):
        return recurrence.forward(u, delta, A, B, C, initial_state, save=True)


@selective_recurrence.register_fake
def _(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    starts = u.new_empty((recurrence.num_chunks(u.shape[0]), *initial_state.shape))
    return u.new_empty(u.shape), u.new_empty(initial_state.shape), starts


@torch.library.custom_op("amago::selective_scan_backward", mutates_args=())
def selective_recurrence_backward(
    grad_y: Tensor,
    grad_last: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
) -> _Gradients:
    """`recurrence.backward`."""
    with full_precision(u.device):
        return recurrence.backward(grad_y, grad_last, u, delta, A, B, C, starts)


@selective_recurrence_backward.register_fake
def _(
    grad_y: Tensor,
    grad_last: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
) -> _Gradients:
    return (
        u.new_empty(u.shape),
        u.new_empty(u.shape),
        A.new_empty(A.shape),
        B.new_empty(B.shape),
        C.new_empty(C.shape),
        u.new_empty(starts.shape[1:]),
    )


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, grad_starts: Tensor | None
) -> _Gradients:
    u, delta, A, B, C, starts = ctx.saved_tensors
    grad_y = torch.zeros_like(u) if grad_y is None else grad_y
    grad_last = torch.zeros_like(starts[0]) if grad_last is None else grad_last
    gradients: _Gradients = selective_recurrence_backward(grad_y, grad_last, u, delta, A, B, C, starts)
    return gradients


selective_recurrence.register_autograd(_backward, setup_context=_setup_context)
