"""The selective state-space recurrence written out step by step: the specification of the other backends.

Gu and Dao 2023, Algorithm 2, with the discretisation of their code: zero-order hold for A, Euler for B. Per row,
channel and timestep

    h_t = exp(delta_t A) * h_{t-1} + delta_t u_t B_t
    y_t = <C_t, h_t> + D u_t,   times silu(z_t) with a gate.

Shapes: B rows, d channels, n states per channel, L timesteps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.scan.inputs import Inputs


def step(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """One timestep: state (B, d, n); u, delta, z (B, d); B, C (B, n) -> y (B, d) and the next state."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus = inputs
    dtype = inputs.dtype_with(state)
    delta = step_size(delta.to(dtype), delta_bias, delta_softplus)
    given = u.to(dtype)
    decay = torch.exp(delta.unsqueeze(-1) * A)  # (B, d, n)
    state = decay * state + (delta * given).unsqueeze(-1) * B.unsqueeze(1)
    y = (state * C.unsqueeze(1)).sum(-1)  # (B, d)
    return skip_and_gate(y, given, D, z).to(u.dtype), state


def scan(
    inputs: Inputs, *, initial_state: Tensor | None, return_last_state: bool
) -> tuple[Tensor, Tensor | None]:
    """All timesteps, one after the other -> y (B, d, L) and the state after the last one."""
    if initial_state is None:
        initial_state = torch.zeros((), device=inputs.u.device)  # broadcast by the first step
    state, outputs = initial_state, []
    for t in range(inputs.u.shape[-1]):
        y, state = step(state, inputs.at(t))
        outputs.append(y)
    return torch.stack(outputs, dim=-1), state


def step_size(delta: Tensor, delta_bias: Tensor | None, delta_softplus: bool) -> Tensor:
    """The lengths of the time steps, channels in the last axis."""
    if delta_bias is not None:
        delta = delta + delta_bias
    return F.softplus(delta) if delta_softplus else delta


def skip_and_gate(y: Tensor, u: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """Adds the input's direct way to the output and applies the gate, channels in the last axis."""
    if D is not None:
        y = y + D * u
    return y if z is None else y * F.silu(z.to(y.dtype))
