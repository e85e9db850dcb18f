"""The recurrence h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t, y_t = <C_t, h_t>, forward and backward.

Time is walked in chunks of 16 steps. What does not depend on the state before (decays, inputs, products with C)
is computed for a whole chunk, and only one multiply-add per step is left in sequence. A chunk of a few rows at a
time stays in the processor's cache, which is several times faster than the whole sequence at once.
No quotient of decays is ever formed, so nothing overflows however long the sequence and however small a decay.

The forward pass keeps the states at the starts of the chunks; the backward pass computes the others again.

Shapes: L timesteps, B rows, d channels, n states per channel. Time comes first and channels last, the order in
which the loops run; K = ceil(L / 16) chunks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 16  # timesteps
_CACHED = 1 << 20  # numbers of a chunk's working array that still fit a processor's cache


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
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, save: bool
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
        grad_y: of the outputs (L, B, d).
        grad_last: of the last state (B, n, d).
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
