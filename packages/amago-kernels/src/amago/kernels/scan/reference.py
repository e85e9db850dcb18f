"""The selective state-space recurrence written out step by step: the reference of the other backends.

Gu and Dao 2023, Algorithm 2, with the discretisation of their code: zero-order hold for A, Euler for B. Per row,
channel and timestep

    h_t = exp(delta_t A) * h_{t-1} + delta_t u_t B_t
    y_t = <C_t, h_t> + D u_t,   times silu(z_t) with a gate.

Shapes: B rows, d channels, n states per channel, L timesteps.
"""

from __future__ import annotations

import dataclasses
import operator

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.scan.inputs import ScanInputs


def step(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """One timestep: y (B, d) and the next state (B, d, n)."""
    dtype = inputs.dtype
    delta = step_size(inputs.delta.to(dtype), inputs)
    u = inputs.u.to(dtype)
    assert inputs.state is not None
    decay = torch.exp(delta.unsqueeze(-1) * inputs.A)  # (B, d, n)
    state = decay * inputs.state + (delta * u).unsqueeze(-1) * inputs.B.unsqueeze(1)
    y = (state * inputs.C.unsqueeze(1)).sum(-1)  # (B, d)
    return skip_and_gate(y, u, inputs.D, inputs.z).to(inputs.u.dtype), state


def scan(inputs: ScanInputs, return_last_state: bool) -> tuple[Tensor, Tensor | None]:
    """All timesteps in sequence: y (B, d, L) and the state after the last one."""
    state = inputs.state
    if state is None:
        state = torch.zeros((), device=inputs.u.device)  # broadcast by the first step
    outputs = []
    for t in range(inputs.u.shape[-1]):
        timestep = inputs.over_time(operator.itemgetter((..., t)))
        y, state = step(dataclasses.replace(timestep, state=state))
        outputs.append(y)
    return torch.stack(outputs, dim=-1), state


def step_size(delta: Tensor, inputs: ScanInputs) -> Tensor:
    """Delta with its bias and softplus applied, channels in the last axis."""
    if inputs.delta_bias is not None:
        delta = delta + inputs.delta_bias
    return F.softplus(delta) if inputs.delta_softplus else delta


def skip_and_gate(y: Tensor, u: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """Adds D u to the output and applies the gate, channels in the last axis."""
    if D is not None:
        y = y + D * u
    return y if z is None else y * F.silu(z.to(y.dtype))
