"""Actor and critic losses as functions of tensors.

Shapes: K action samples, C critics, G discounts.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
