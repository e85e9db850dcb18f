"""The scan and its step in torch, in chunks of time.

The recurrence is h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t, y_t = <C_t, h_t>.

Decays, inputs and products with C do not depend on the previous state and are computed for a whole chunk of 16
timesteps; only one multiply-add per step remains sequential. A chunk of a few rows at a time stays in the
processor's cache, which is several times faster than the whole sequence at once. No quotient of decays is formed,
so nothing overflows, however long the sequence and however small a decay.

The forward pass saves the states at the starts of the chunks; the backward pass recomputes the others.

Shapes: L timesteps, B rows, d channels, n states per channel. Time comes first and channels last, the order in
which the loops run; K = ceil(L / 16) chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amago.kernels.operators import Operator, needs_gradient
from amago.kernels.precision import full_precision
from amago.kernels.scan.inputs import ScanInputs
from amago.kernels.scan.reference import skip_and_gate, step_size

CHUNK = 16  # timesteps
_CACHED = 1 << 20  # numbers of a working array that still fit a processor's cache


def num_chunks(length: int) -> int:
    """K, the number of chunks of a sequence."""
    return (length + CHUNK - 1) // CHUNK


def _row_blocks(u: Tensor, n: int) -> Iterator[slice]:
    """Rows of (L, B, d) in blocks whose chunks fit the cache; all rows at once on a GPU."""
    length, rows, channels = u.shape
    blocks = 1
    if u.device.type == "cpu":
        per_row = min(CHUNK, length) * channels * n
        blocks = min(rows, -(-rows * per_row // _CACHED))
    size = max(1, -(-rows // max(blocks, 1)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _workspace(u: Tensor, rows: slice, n: int) -> Tensor:
    """An uninitialised (min(CHUNK, L), rows, n, d)."""
    length, _, channels = u.shape
    return u.new_empty((min(CHUNK, length), rows.stop - rows.start, n, channels))


def _states(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, state: Tensor, decays: Tensor, states: Tensor
) -> None:
    """Fills `decays` exp(delta A) and `states` h of one chunk, both (T, rows, n, d), from the state before it."""
    torch.mul(delta.unsqueeze(2), A, out=decays).exp_()
    torch.mul(B.unsqueeze(3), (delta * u).unsqueeze(2), out=states)
    for decay, current in zip(decays, states, strict=True):
        state = torch.addcmul(current, decay, state, out=current)


def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, save: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the last state, and what `backward` needs.

    Args:
        u: inputs (L, B, d).
        delta: lengths of the time steps (L, B, d).
        A: (n, d).
        B: (L, B, n).
        C: (L, B, n).
        initial_state: (B, n, d).
        save: keep the states at the starts of the chunks.

    Returns:
        y (L, B, d), the last state (B, n, d), and the states before each chunk (K, B, n, d), none if not saved.
    """
    length, _, channels = u.shape
    n = A.shape[0]
    y = u.new_empty(u.shape)
    last = initial_state.new_empty(initial_state.shape)
    starts = u.new_empty((num_chunks(length) if save else 0, *initial_state.shape))
    for rows in _row_blocks(u, n):
        decays, states = _workspace(u, rows, n), _workspace(u, rows, n)
        state = initial_state[rows]
        for chunk, start in enumerate(range(0, length, CHUNK)):
            steps = slice(start, min(start + CHUNK, length))
            if save:
                starts[chunk, rows] = state
            size = steps.stop - start
            h = states[:size]
            _states(u[steps, rows], delta[steps, rows], A, B[steps, rows], state, decays[:size], h)
            outputs = torch.bmm(C[steps, rows].reshape(-1, 1, n), h.flatten(0, 1))
            y[steps, rows] = outputs.view(size, h.shape[1], channels)
            state = h[-1].clone()  # the workspace is used again
        last[rows] = state
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, delta, A, B, C and the initial state.

    With g_t the gradient of h_t, g_t = dy_t C_t + exp(delta_{t+1} A) g_{t+1}, and w_t = g_t exp(delta_t A) h_{t-1}
    the gradient of delta_t A:

        dC_t = <dy_t, h_t>,  dB_t = <g_t, delta_t u_t>,  d(delta_t u_t) = <g_t, B_t>,
        d(delta_t) = <w_t, A> + u_t d(delta_t u_t),  dA = sum over rows and time of delta_t w_t.

    Args:
        grad_y: gradient of the outputs (L, B, d).
        grad_last: gradient of the last state (B, n, d).
        u, delta, A, B, C: as in `forward`.
        starts: states before each chunk, as `forward` saved them.
    """
    length, _, channels = u.shape
    n = A.shape[0]
    grad_input, grad_delta = u.new_empty(u.shape), u.new_empty(u.shape)
    grad_A = torch.zeros_like(A)
    grad_B, grad_C = B.new_empty(B.shape), C.new_empty(C.shape)
    grad_initial = grad_last.new_empty(grad_last.shape)
    for rows in _row_blocks(u, n):
        decays, states, grads = (_workspace(u, rows, n) for _ in range(3))
        carry = grad_last[rows]  # exp(delta_{t+1} A) g_{t+1}
        for chunk in reversed(range(num_chunks(length))):
            steps = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, length))
            size = steps.stop - steps.start
            decay, h, g = decays[:size], states[:size], grads[:size]
            before = starts[chunk, rows]
            step_u, step_delta, step_B = u[steps, rows], delta[steps, rows], B[steps, rows]
            _states(step_u, step_delta, A, step_B, before, decay, h)

            dy = grad_y[steps, rows]
            torch.mul(C[steps, rows].unsqueeze(3), dy.unsqueeze(2), out=g)
            g[-1].add_(carry)
            for t in reversed(range(size - 1)):
                g[t].addcmul_(decay[t + 1], g[t + 1])

            flat_g, flat_h = g.flatten(0, 1), h.flatten(0, 1)
            grad_C[steps, rows] = torch.bmm(flat_h, dy.flatten(0, 1).unsqueeze(2)).view(size, -1, n)
            inputs = (step_delta * step_u).flatten(0, 1).unsqueeze(2)
            grad_B[steps, rows] = torch.bmm(flat_g, inputs).view(size, -1, n)
            through_input = torch.bmm(step_B.reshape(-1, 1, n), flat_g).view(size, g.shape[1], channels)
            grad_input[steps, rows] = through_input * step_delta

            through_decay = g.mul_(decay)
            carry = through_decay[0].clone()
            through_decay[1:].mul_(h[:-1])
            through_decay[0].mul_(before)
            through_A = torch.mul(through_decay, A, out=decay).sum(2)  # (T, rows, d)
            grad_delta[steps, rows] = through_A.addcmul_(through_input, step_u)
            grad_A += through_decay.mul_(step_delta.unsqueeze(2)).sum((0, 1))
        grad_initial[rows] = carry
    return grad_input, grad_delta, grad_A, grad_B, grad_C, grad_initial


def _fake_forward(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor) -> Any:
    starts = u.new_empty((num_chunks(u.shape[0]), *initial_state.shape))
    return u.new_empty(u.shape), u.new_empty(initial_state.shape), starts


def _fake_backward(
    grad_y: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *_: Tensor
) -> Any:
    return (*(x.new_empty(x.shape) for x in (u, delta, A, B, C)), grad_last.new_empty(grad_last.shape))


_INPUTS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor initial_state"


class Recurrence:
    """The recurrence as a torch operator: opaque to compilers, with its own backward pass.

    Args:
        name: name of the operator.
        forward: like `forward` above.
        backward: like `backward` above.
        device: device type that it runs on; all by default.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        device: str | None = None,
    ) -> None:
        def run(*tensors: Tensor) -> Any:
            with full_precision(tensors[0].device):
                return forward(*tensors, save=True)

        def run_backward(grad_y: Tensor, grad_last: Tensor, *tensors: Tensor) -> Any:
            *inputs, _, starts = tensors  # the initial state is the first of the saved states
            with full_precision(grad_y.device):
                return backward(grad_y, grad_last, *inputs, starts)

        self._forward = forward
        self.op = Operator(name, run, _INPUTS, "(Tensor, Tensor, Tensor)", fake=_fake_forward, device=device)
        gradients = Operator(
            f"{name}_backward",
            run_backward,
            f"Tensor grad_y, Tensor grad_last, {_INPUTS}, Tensor starts",
            "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
            fake=_fake_backward,
            device=device,
        )
        self.op.differentiate(gradients, keep=(2,), auxiliary=(2,))

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """y (L, B, d) and the last state (B, n, d)."""
        if torch.compiler.is_compiling() or needs_gradient(*tensors):
            y, last, _ = self.op.dispatch(*tensors)
        else:
            y, last, _ = self._forward(*tensors, save=False)
        return y, last


torch_recurrence = Recurrence("torch_selective_scan", forward, backward)


def _channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, ·, L) as (L, B, ·), the last axis dense, without a copy where it is already laid out so."""
    x = x.to(dtype).permute(2, 0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()


def scan(
    inputs: ScanInputs, return_last_state: bool, recurrence: Recurrence = torch_recurrence
) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan`."""
    dtype, A = inputs.dtype, inputs.A
    u = _channels_last(inputs.u, dtype)
    delta = step_size(_channels_last(inputs.delta, dtype), inputs).to(dtype)
    if inputs.state is None:
        state = u.new_zeros((u.shape[1], A.shape[1], A.shape[0]))
    else:
        state = inputs.state.to(dtype).transpose(1, 2).contiguous()
    y, last = recurrence(
        u,
        delta,
        A.to(dtype).t().contiguous(),
        _channels_last(inputs.B, dtype),
        _channels_last(inputs.C, dtype),
        state,
    )
    gate = None if inputs.z is None else _channels_last(inputs.z, dtype)
    y = skip_and_gate(y, u, inputs.D, gate).to(inputs.u.dtype)
    return y.permute(1, 2, 0), last.transpose(1, 2)


def step(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """See `amago.kernels.selective_scan_step`; channels are last in the state's memory."""
    dtype = inputs.dtype
    delta = step_size(inputs.delta.to(dtype), inputs)  # (B, d)
    u = inputs.u.to(dtype)
    assert inputs.state is not None
    decay = torch.exp(delta.unsqueeze(1) * inputs.A.to(dtype).t().contiguous())  # (B, n, d)
    state = decay.mul_(inputs.state.transpose(1, 2)).addcmul_(
        inputs.B.to(dtype).unsqueeze(2), (delta * u).unsqueeze(1)
    )
    y = torch.bmm(inputs.C.to(dtype).unsqueeze(1), state).squeeze(1)  # (B, d)
    return skip_and_gate(y, u, inputs.D, inputs.z).to(inputs.u.dtype), state.transpose(1, 2)


def step_unsupported(inputs: ScanInputs) -> list[str]:
    """Reasons why it cannot run a step: it works in place and has no gradient."""
    return ["an input needs a gradient"] if needs_gradient(*inputs.tensors) else []
