"""n-step returns.

Shapes: B batch, T transitions, G discounts; every argument broadcasts to (B, T, ..., G, 1).
"""

from __future__ import annotations

import torch
from torch import Tensor


def nstep_return(r: Tensor, d: Tensor, q: Tensor, gamma: Tensor, n: int, mask: Tensor) -> Tensor:
    """The n-step return with a bootstrapped end (Sutton & Barto 2018, eq. 7.1).

    y_t = sum_{i<m} gamma^i r_{t+i} + gamma^m (1 - d_{t+m-1}) q_{t+m-1}, where m <= n ends at the first
    `done`, and before the first step that is masked or beyond the sequence.

    Args:
        r: rewards (B, T, ..., G or 1, 1).
        d: 1 where the environment terminated with the step, else 0; same shape.
        q: value of the state after each step, same shape.
        gamma: discounts, broadcastable to the result.
        n: number of steps, at least 1.
        mask: True for real steps (B, T, ..., 1, 1).

    Returns:
        (B, T, ..., G, 1), dtype of `r`.

    Raises:
        ValueError: if n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1 step, got {n}")
    discount = gamma * (1.0 - d.to(r.dtype))
    real = mask.bool()
    target = r + discount * q
    returns = target
    for _ in range(min(n, r.shape[1]) - 1):
        # Extends each return by one step, with the return of the next step if that is real.
        bootstrap = torch.where(real[:, 1:], returns[:, 1:], q[:, :-1])
        returns = torch.cat((r[:, :-1] + discount[:, :-1] * bootstrap, target[:, -1:]), dim=1)
    return returns
