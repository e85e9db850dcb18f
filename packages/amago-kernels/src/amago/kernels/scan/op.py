"""The recurrence as an operation that torch knows: opaque to compilers, with its own backward pass.

Shapes as in `recurrence`: L timesteps, B rows, d channels, n states per channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amago.kernels.precision import full_precision
from amago.kernels.scan import recurrence

Outputs = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def recurrence_operator(
    name: str,
    forward: Callable[..., Outputs],
    backward: Callable[..., Gradients],
    device_types: str | None = None,
) -> tuple[Any, Any]:
    """Operators for a forward and a backward pass with the arguments and results of those in `recurrence`.

    Args:
        name: of the forward operator in torch's namespace "amago_kernels".
        forward: like `recurrence.forward`.
        backward: like `recurrence.backward`.
        device_types: where they run; everywhere by default.

    Returns:
        The differentiable operator, which saves the states that the gradient needs, and that of its gradient.
    """

    def run(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor) -> Outputs:
        with full_precision(u.device):
            return forward(u, delta, A, B, C, initial_state, save=True)

    def run_backward(
        grad_y: Tensor,
        grad_last: Tensor,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        starts: Tensor,
    ) -> Gradients:
        with full_precision(u.device):
            return backward(grad_y, grad_last, u, delta, A, B, C, starts)

    operator: Any = torch.library.custom_op(
        f"amago_kernels::{name}", run, mutates_args=(), device_types=device_types
    )
    gradient: Any = torch.library.custom_op(
        f"amago_kernels::{name}_backward", run_backward, mutates_args=(), device_types=device_types
    )

    def differentiate(
        ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None
    ) -> Gradients:
        u, *_rest, starts = ctx.saved_tensors
        grad_y = torch.zeros_like(u) if grad_y is None else grad_y
        grad_last = torch.zeros_like(starts[0]) if grad_last is None else grad_last
        gradients: Gradients = gradient(grad_y, grad_last, *ctx.saved_tensors)
        return gradients

    operator.register_fake(_fake_outputs)
    gradient.register_fake(_fake_gradients)
    operator.register_autograd(differentiate, setup_context=_save_for_backward)
    return operator, gradient


def _fake_outputs(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor
) -> Outputs:
    starts = u.new_empty((recurrence.num_chunks(u.shape[0]), *initial_state.shape))
    return u.new_empty(u.shape), u.new_empty(initial_state.shape), starts


def _fake_gradients(grad_y: Tensor, grad_last: Tensor, *saved: Tensor) -> Gradients:
    u, delta, A, B, C, starts = (x.new_empty(x.shape) for x in saved)
    return u, delta, A, B, C, u.new_empty(starts.shape[1:])


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: Outputs) -> None:
    ctx.save_for_backward(*inputs[:5], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


selective_recurrence, selective_recurrence_backward = recurrence_operator(
    "torch_selective_scan", recurrence.forward, recurrence.backward
)
