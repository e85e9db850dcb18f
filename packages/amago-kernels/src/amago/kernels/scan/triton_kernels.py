"""The selective scan in Triton: a program walks through time, the states of some channels of a row in registers.

Step size, softplus, skip and gate are computed where their inputs are read, so a pass reads every input once. The
forward pass keeps the states at the starts of chunks of 16 steps, for the backward pass in `triton_backward`.

Shapes: E channels of a program, N states per channel, W the power of two that N fits in.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.triton_numbers import log1p
from amago.kernels.triton_runtime import on_device_of

CHUNK = 16  # timesteps
# States of a program of one warp: few, for many programs hide each other's waiting for memory.
FORWARD_STATES = 128


@triton.jit
def step_size(delta, SOFTPLUS: tl.constexpr):
    """Lengths of the time steps from what they are before softplus, which beyond 20 is the identity."""
    if SOFTPLUS:
        return tl.where(delta > 20.0, delta, log1p(tl.exp(tl.where(delta > 20.0, 20.0, delta))))
    return delta


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), where the exponential never overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@triton.jit
def load(pointer, inside):
    """Numbers as float32, 0 outside."""
    return tl.load(pointer, inside, 0.0).to(tl.float32)


@triton.jit
def put(out, row, d, t, out0, out1, out2, x, inside):
    """Writes numbers (E) of a row at time t, rounded to what the tensor holds."""
    tl.store(out + row * out0 + d * out1 + t * out2, x.to(out.dtype.element_ty), inside)


@triton.jit
def parameters(A, D, bias, d, n, inside, tile, A0, A1, E: tl.constexpr):
    """What the channels d are told once: rates (E, W), weights of the direct way (E), shifts of the steps (E)."""
    rates = load(A + d[:, None] * A0 + n[None, :] * A1, tile)
    shift, skip = tl.zeros((E,), tl.float32), tl.zeros((E,), tl.float32)
    if bias is not None:
        shift = load(bias + d, inside)
    if D is not None:
        skip = load(D + d, inside)
    return rates, skip, shift


@triton.jit
def inputs(
    u, delta, B, row, d, n, t, shift, inside, states, u0, u1, u2, delta0, delta1, delta2, B0, B1, B2,
    SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """What enters the states at time t: u (E), B (W), the lengths of the step (E), and those before softplus."""
    x = load(u + row * u0 + d * u1 + t * u2, inside)
    before_softplus = load(delta + row * delta0 + d * delta1 + t * delta2, inside) + shift
    write = load(B + row * B0 + n * B1 + t * B2, states)
    return x, write, step_size(before_softplus, SOFTPLUS), before_softplus


@triton.jit
def _forward(
    u, delta, A, B, C, D, z, bias, initial, y, last, starts,
    rows, channels, length,
    u0, u1, u2, delta0, delta1, delta2, A0, A1, B0, B1, B2, C0, C1, C2, z0, z1, z2,
    initial0, initial1, initial2, y0, y1, y2,
    SOFTPLUS: tl.constexpr, SAVE: tl.constexpr, T: tl.constexpr,
    E: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Outputs, the last state (rows, channels, N) and the states before each chunk (chunks, rows, channels, N)."""
    groups = tl.cdiv(channels, E)
    row = (tl.program_id(0) // groups).to(tl.int64)
    d = tl.program_id(0) % groups * E + tl.arange(0, E)
    n = tl.arange(0, W)
    inside, states = d < channels, n < N
    tile = inside[:, None] & states[None, :]
    rates, skip, shift = parameters(A, D, bias, d, n, inside, tile, A0, A1, E)
    h = tl.zeros((E, W), tl.float32)
    if initial is not None:
        h = load(initial + row * initial0 + d[:, None] * initial1 + n[None, :] * initial2, tile)
    for chunk in range(tl.cdiv(length, T)):
        if SAVE:
            start_at = starts + ((chunk * rows + row) * channels + d[:, None]) * N + n[None, :]
            tl.store(start_at, h, tile)
        for t in range(chunk * T, tl.minimum(chunk * T + T, length)):
            x, write, step, _ = inputs(
                u, delta, B, row, d, n, t, shift, inside, states,
                u0, u1, u2, delta0, delta1, delta2, B0, B1, B2, SOFTPLUS,
            )  # fmt: skip
            read = load(C + row * C0 + n * C1 + t * C2, states)
            h = tl.exp(step[:, None] * rates) * h + (step * x)[:, None] * write[None, :]
            out = tl.sum(h * read[None, :], axis=1) + skip * x
            if z is not None:
                gate = load(z + row * z0 + d * z1 + t * z2, inside)
                out *= gate * sigmoid(gate)
            put(y, row, d, t, y0, y1, y2, out, inside)
    tl.store(last + (row * channels + d[:, None]) * N + n[None, :], h, tile)


def widths(n: int, states: int) -> tuple[int, int]:
    """E and W of a program with that many states."""
    width = triton.next_power_of_2(n)
    return max(1, states // width), width


def strides_of(x: Tensor | None, count: int = 3) -> tuple[int, ...]:
    return (0,) * count if x is None else x.stride()


def forward(
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
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and the states before each chunk (none unless `save`); D and the bias contiguous."""
    rows, channels, length = u.shape
    n = A.shape[1]
    y = torch.empty_like(u)
    last = u.new_empty((rows, channels, n), dtype=torch.float32)
    starts = u.new_empty((triton.cdiv(length, CHUNK) if save else 0, *last.shape), dtype=torch.float32)
    if last.numel() == 0:
        return y, last, starts
    own, width = widths(n, FORWARD_STATES)
    strides = [s for x in (u, delta) for s in strides_of(x)] + [*A.stride()]
    strides += [s for x in (B, C, z, initial_state, y) for s in strides_of(x)]
    with on_device_of(u):
        _forward[(triton.cdiv(channels, own) * rows,)](
            u, delta, A, B, C, D, z, delta_bias, initial_state, y, last, starts,
            rows, channels, length, *strides,
            SOFTPLUS=delta_softplus, SAVE=save, T=CHUNK, E=own, N=n, W=width, num_warps=1,
        )  # fmt: skip
    return y, last, starts
