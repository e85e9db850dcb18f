"""The scan and its step in torch operations ordered for speed, on CPU and GPU.

Shapes: B rows, d channels, n states per channel, L timesteps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from amago.kernels.precision import needs_gradient, traced
from amago.kernels.scan import recurrence
from amago.kernels.scan.inputs import Inputs
from amago.kernels.scan.op import selective_recurrence
from amago.kernels.scan.reference import skip_and_gate, step_size

Recurrence = Callable[..., tuple[Tensor, Tensor, Tensor]]


def _channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, ·, L) as (L, B, ·), the last axis dense, without a copy where it is already laid out so."""
    x = x.to(dtype).permute(2, 0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()


def scan(
    inputs: Inputs,
    *,
    initial_state: Tensor | None,
    return_last_state: bool,
    operator: Recurrence = selective_recurrence,
    plain: Recurrence = recurrence.forward,
) -> tuple[Tensor, Tensor | None]:
    """The chunked recurrence of `recurrence`; the backward pass computes most states again.

    Args:
        operator: computes the recurrence where autograd or a compiler follows.
        plain: computes it where nobody does.
    """
    u, delta, A, B, C, D, z, delta_bias, delta_softplus = inputs
    dtype = inputs.dtype_with(initial_state)
    given = _channels_last(u, dtype)
    steps = step_size(_channels_last(delta, dtype), delta_bias, delta_softplus).to(dtype)
    if initial_state is None:
        state = u.new_zeros((u.shape[0], A.shape[1], A.shape[0]), dtype=dtype)
    else:
        state = initial_state.to(dtype).transpose(1, 2).contiguous()
    arguments = (
        given,
        steps,
        A.to(dtype).t().contiguous(),
        _channels_last(B, dtype),
        _channels_last(C, dtype),
        state,
    )
    if traced(*arguments):
        y, last, _ = operator(*arguments)
    else:
        y, last, _ = plain(*arguments, save=False)
    gate = None if z is None else _channels_last(z, dtype)
    y = skip_and_gate(y, given, D, gate).to(u.dtype)
    return y.permute(1, 2, 0), last.transpose(1, 2)


def step(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """One timestep, the state laid out with the channels last in memory, in as few temporaries as possible."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus = inputs
    dtype = inputs.dtype_with(state)
    delta = step_size(delta.to(dtype), delta_bias, delta_softplus)  # (B, d)
    given = u.to(dtype)
    decay = torch.exp(delta.unsqueeze(1) * A.to(dtype).t().contiguous())  # (B, n, d)
    new_state = decay.mul_(state.transpose(1, 2)).addcmul_(
        B.to(dtype).unsqueeze(2), (delta * given).unsqueeze(1)
    )
    y = torch.bmm(C.to(dtype).unsqueeze(1), new_state).squeeze(1)  # (B, d)
    return skip_and_gate(y, given, D, z).to(u.dtype), new_state.transpose(1, 2)


def step_unsupported(*tensors: Tensor, **options: Tensor | bool | None) -> list[str]:
    """It works in place and so cannot be differentiated."""
    if not torch.is_grad_enabled():
        return []
    others = (option for option in options.values() if isinstance(option, Tensor))
    return ["an input needs a gradient"] if needs_gradient(*tensors, *others) else []
