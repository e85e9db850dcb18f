"""The selective scan in Triton: a program loops over time, the states of some channels of a row in registers.

Step size, softplus, skip and gate are computed where their inputs are read, so a pass reads every input once. The
forward pass saves the states at the starts of chunks of 16 steps. The backward pass goes through the chunks in
reverse: it recomputes a chunk's states into a workspace that stays in the GPU's cache. Gradients that programs
share (of A, B, C, D and the bias) are sums of what each program writes to memory of its own: no atomic operations,
so they are deterministic.

Shapes: E channels of a program, N states per channel, W the smallest power of two not below N.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from amago.kernels.triton_numbers import log1p
from amago.kernels.triton_runtime import on_device_of

CHUNK = 16  # timesteps
# States of a program of one warp: few, for many programs hide each other's memory latency.
FORWARD_STATES = 128
# More backward, for every program that shares B and C writes their gradients.
BACKWARD_STATES = 256


@triton.jit
def step_size(delta, SOFTPLUS: tl.constexpr):
    """Step sizes after softplus, which beyond 20 is the identity."""
    if SOFTPLUS:
        return tl.where(delta > 20.0, delta, log1p(tl.exp(tl.where(delta > 20.0, 20.0, delta))))
    return delta


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@triton.jit
def load(pointer, inside):
    """Loads values as float32, 0 outside."""
    return tl.load(pointer, inside, 0.0).to(tl.float32)


@triton.jit
def put(out, row, d, t, out0, out1, out2, x, inside):
    """Writes values (E) of a row at time t in the tensor's dtype."""
    tl.store(out + row * out0 + d * out1 + t * out2, x.to(out.dtype.element_ty), inside)


@triton.jit
def parameters(A, D, bias, d, n, inside, tile, A0, A1, E: tl.constexpr):
    """Parameters of channels d: A (E, W), D (E), delta_bias (E)."""
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
    """Inputs of time t: u (E), B (W), the step sizes (E), and the step sizes before softplus."""
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
    """E and W of a program that holds that many states."""
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


@triton.jit
def _gate_backward(dy, gate, out):
    """Gradients of `out` and `gate`, given that of y = out * gate * sigmoid(gate)."""
    open_ = sigmoid(gate)
    return dy * gate * open_, dy * out * open_ * (1.0 + gate * (1.0 - open_))


@triton.jit
def _states_again(
    h, rates, before_at, u, delta, B, row, d, n, first, steps, shift, inside, states,
    u0, u1, u2, delta0, delta1, delta2, B0, B1, B2,
    SOFTPLUS: tl.constexpr, E: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Writes the states before each of some timesteps to the workspace, beginning with h."""
    for i in range(steps):
        tl.store(before_at + i * (E * W), h)
        x, write, step, _ = inputs(
            u, delta, B, row, d, n, first + i, shift, inside, states,
            u0, u1, u2, delta0, delta1, delta2, B0, B1, B2, SOFTPLUS,
        )  # fmt: skip
        h = tl.exp(step[:, None] * rates) * h + (step * x)[:, None] * write[None, :]


@triton.jit
def _step_backward(g, kept, x, write, step, before_softplus, rates, SOFTPLUS: tl.constexpr):
    """Gradients of step * u (E), of delta (E) and of A (E, W), given g, that of the states. `kept` = decay * h."""
    through_input, through_decay = tl.sum(g * write[None, :], axis=1), g * kept
    d_step = through_input * x + tl.sum(through_decay * rates, axis=1)
    if SOFTPLUS:
        d_step *= tl.where(before_softplus > 20.0, 1.0, sigmoid(before_softplus))
    return through_input, d_step, through_decay * step[:, None]


@triton.jit
def _backward(
    grad_y, grad_last, u, delta, A, B, C, D, z, bias, starts, workspace,
    grad_u, grad_delta, grad_z, grad_initial, part_A, part_B, part_C, part_D, part_bias,
    rows, channels, length,
    grad_y0, grad_y1, grad_y2,
    u0, u1, u2, delta0, delta1, delta2, A0, A1, B0, B1, B2, C0, C1, C2, z0, z1, z2,
    grad_u0, grad_u1, grad_u2, grad_delta0, grad_delta1, grad_delta2, grad_z0, grad_z1, grad_z2,
    SOFTPLUS: tl.constexpr, T: tl.constexpr, E: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Gradients; names as in `chunked.backward`. Parts: A (rows, channels, N), D and bias (rows, channels), B
    and C (programs per row, rows, length, N)."""
    groups = tl.cdiv(channels, E)
    group, row = tl.program_id(0) % groups, (tl.program_id(0) // groups).to(tl.int64)
    d = group * E + tl.arange(0, E)
    n = tl.arange(0, W)
    inside, states = d < channels, n < N
    tile = inside[:, None] & states[None, :]
    own = (row * channels + d[:, None]) * N + n[None, :]
    rates, skip, shift = parameters(A, D, bias, d, n, inside, tile, A0, A1, E)
    program = group * rows + row
    before_at = workspace + program * (T * E * W) + tl.arange(0, E)[:, None] * W + n[None, :]
    shared_at = program * length * N + n
    carry = load(grad_last + own, tile)  # exp(delta_{t+1} A) g_{t+1}
    sum_A = tl.zeros((E, W), tl.float32)
    sum_D, sum_shift = tl.zeros((E,), tl.float32), tl.zeros((E,), tl.float32)
    chunks = tl.cdiv(length, T)
    for chunk_from_last in range(chunks):
        chunk = chunks - 1 - chunk_from_last
        first = chunk * T
        steps = tl.minimum(T, length - first)
        start_at = starts + ((chunk * rows + row) * channels + d[:, None]) * N + n[None, :]
        _states_again(
            tl.load(start_at, tile, 0.0), rates, before_at, u, delta, B, row, d, n, first, steps, shift, inside,
            states, u0, u1, u2, delta0, delta1, delta2, B0, B1, B2, SOFTPLUS, E, W,
        )  # fmt: skip
        tl.debug_barrier()  # the workspace is written
        for back in range(steps):
            i = steps - 1 - back
            t = first + i
            x, write, step, before_softplus = inputs(
                u, delta, B, row, d, n, t, shift, inside, states,
                u0, u1, u2, delta0, delta1, delta2, B0, B1, B2, SOFTPLUS,
            )  # fmt: skip
            read = load(C + row * C0 + n * C1 + t * C2, states)
            dy = load(grad_y + row * grad_y0 + d * grad_y1 + t * grad_y2, inside)
            decay = tl.exp(step[:, None] * rates)
            kept = decay * tl.load(before_at + i * (E * W))
            h = kept + (step * x)[:, None] * write[None, :]
            if z is not None:
                gate = load(z + row * z0 + d * z1 + t * z2, inside)
                dy, dz = _gate_backward(dy, gate, tl.sum(h * read[None, :], axis=1) + skip * x)
                put(grad_z, row, d, t, grad_z0, grad_z1, grad_z2, dz, inside)
            tl.store(part_C + shared_at + t * N, tl.sum(h * dy[:, None], axis=0), states)
            g = carry + dy[:, None] * read[None, :]
            tl.store(part_B + shared_at + t * N, tl.sum(g * (step * x)[:, None], axis=0), states)
            through_input, d_step, d_rates = _step_backward(
                g, kept, x, write, step, before_softplus, rates, SOFTPLUS
            )  # fmt: skip
            sum_A += d_rates
            sum_D += dy * x
            sum_shift += d_step
            carry = g * decay
            put(grad_u, row, d, t, grad_u0, grad_u1, grad_u2, through_input * step + dy * skip, inside)
            put(grad_delta, row, d, t, grad_delta0, grad_delta1, grad_delta2, d_step, inside)
        tl.debug_barrier()  # the workspace is read
    tl.store(grad_initial + own, carry, tile)
    tl.store(part_A + own, sum_A, tile)
    tl.store(part_D + row * channels + d, sum_D, inside)
    tl.store(part_bias + row * channels + d, sum_shift, inside)


def backward(
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
) -> tuple[Tensor, ...]:
    """Gradients of u, delta, A, B, C, D, z, the bias and the initial state.

    In float32, but for those of u, delta and z; those of D, z and the bias mean nothing where these are not
    given. `grad_last` is contiguous.
    """
    rows, channels, length = u.shape
    n = A.shape[1]
    own, width = widths(n, BACKWARD_STATES)
    programs = triton.cdiv(channels, own)

    def new(*shape: int) -> Tensor:
        return u.new_empty(shape, dtype=torch.float32)

    grad_u, grad_delta = torch.empty_like(u), torch.empty_like(delta)
    grad_z = new(0) if z is None else torch.empty_like(z)
    grad_initial, part_A = new(rows, channels, n), new(rows, channels, n)
    part_B, part_C = new(programs, rows, length, n), new(programs, rows, length, n)
    part_D, part_bias = new(rows, channels), new(rows, channels)
    workspace = new(programs * rows * CHUNK * own * width)
    strides = [s for x in (grad_y, u, delta) for s in strides_of(x)] + [*A.stride()]
    strides += [s for x in (B, C, z, grad_u, grad_delta) for s in strides_of(x)]
    strides += strides_of(None if z is None else grad_z)
    if grad_initial.numel():
        with on_device_of(u):
            _backward[(programs * rows,)](
                grad_y, grad_last, u, delta, A, B, C, D, z, delta_bias, starts, workspace,
                grad_u, grad_delta, grad_z, grad_initial, part_A, part_B, part_C, part_D, part_bias,
                rows, channels, length, *strides,
                SOFTPLUS=delta_softplus, T=CHUNK, E=own, N=n, W=width, num_warps=1,
            )  # fmt: skip
    grad_B, grad_C = (part.sum(0).transpose(1, 2).contiguous() for part in (part_B, part_C))
    sums = part_A.sum(0), grad_B, grad_C, part_D.sum(0)
    return grad_u, grad_delta, *sums, grad_z, part_bias.sum(0), grad_initial
