"""Returns, TD targets and losses as functions of tensors.

Shapes: B batch, T transitions, K action samples, C critics, G discounts.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nstep_return(r: Tensor, d: Tensor, q: Tensor, gamma: Tensor, n: int, mask: Tensor) -> Tensor:
    """The n-step return with a bootstrapped end (Sutton & Barto 2018, eq. 7.1).

    y_t = sum_{i<m} gamma^i r_{t+i} + gamma^m (1 - d_{t+m-1}) q_{t+m-1}, where m is the largest number of steps,
    at most n, such that no step but the last has `d` = 1 and all steps are real.

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


def random_critic_subset(values: Tensor, size: int, reduce: str) -> Tensor:
    """The minimum or mean over a random subset of critics.

    Subsets are sampled per transition and discount, without replacement, as in randomised ensembled double
    Q-learning (Chen et al. 2021, algorithm 1, line 8).

    Args:
        values: (..., C, G, 1).
        size: critics per subset, 1 to C.
        reduce: "min" or "mean".

    Returns:
        (..., 1, G, 1).

    Raises:
        ValueError: if `size` is out of range or `reduce` is unknown.
    """
    n_critics = values.shape[-3]
    if not 1 <= size <= n_critics:
        raise ValueError(f"size must lie between 1 and the number of critics, {n_critics}, got {size}")
    if size < n_critics:
        subset = torch.rand_like(values).topk(size, dim=-3).indices
        values = values.gather(-3, subset)  # (..., size, G, 1)
    if reduce == "min":
        return values.amin(dim=-3, keepdim=True)
    if reduce == "mean":
        return values.mean(dim=-3, keepdim=True)
    raise ValueError(f"reduce must be 'min' or 'mean', got {reduce!r}")


def critic_regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """(Q(s, a) - y)^2, with y detached: (..., C, G, 1) and (..., 1, G, 1) -> (..., C, G, 1)."""
    return (prediction - target.detach()).square()


def online_actor_loss(values: Tensor) -> Tensor:
    """-min over critics of Q(s, a), a ~ pi, averaged over samples (deterministic policy gradient as in TD3).

    Args:
        values: normalised values (K, ..., C, G, 1) with a gradient into the actions only.

    Returns:
        (..., G, 1).
    """
    return -values.amin(dim=-3).mean(dim=0)


def offline_actor_loss(weights: Tensor, log_probs: Tensor) -> Tensor:
    """-f(A(s, a)) log pi(a | s), filtered behaviour cloning (Wang et al. 2020, eq. 2): all (..., G, 1)."""
    return -(weights.detach() * log_probs)


def advantage(q_values: Tensor, state_values: Tensor) -> Tensor:
    """A(s, a) = Q(s, a) - V(s), each the mean over critics: (..., C, G, 1) twice -> (..., G, 1)."""
    return q_values.mean(dim=-3) - state_values.mean(dim=-3)


def combine_actor_losses(
    online: Tensor | None, offline: Tensor | None, online_coeff: float, offline_coeff: float
) -> Tensor:
    """online_coeff * online + offline_coeff * offline, over those that are not None."""
    terms = []
    if online is not None:
        terms.append(online_coeff * online)
    if offline is not None:
        terms.append(offline_coeff * offline)
    return torch.stack(terms).sum(dim=0)
