"""Actor, critics and PopArt.

Shapes: B batch, L timesteps, S state width, K action samples, C critics, G discounts, A action width.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago.nets.utils import symexp, symlog
from benchmarks.plain.layers import MLP, EnsembleMLP
from benchmarks.plain.sizes import Sizes


class Actor(nn.Module):
    """An MLP from state to the parameters of one policy per discount."""

    def __init__(self, sizes: Sizes, num_gammas: int, params: int) -> None:
        super().__init__()
        self.num_gammas = num_gammas
        self.base = MLP(sizes.traj_width, sizes.actor_hidden, sizes.actor_layers, num_gammas * params)

    def forward(self, state: Tensor) -> Tensor:
        """(B, L, S) to (B, L, G, P)."""
        params: Tensor = self.base(state).unflatten(-1, (self.num_gammas, -1))
        return params


def critic_input(state: Tensor, gammas: Tensor, action: Tensor) -> Tensor:
    """[state, symlog of the discount's horizon, action] for every discount and sample.

    (B, L, S), (G,) and (K, B, L, G, A) to (K, B, L, G, S + 1 + A).
    """
    samples, batch, length, num_gammas, _ = action.shape
    horizon = symlog(1.0 / (1.0 - gammas).clamp(1e-6, 1.0))
    states = state.view(1, batch, length, 1, -1).repeat(samples, 1, 1, num_gammas, 1)
    horizons = horizon.view(1, 1, 1, num_gammas, 1).repeat(samples, batch, length, 1, 1)
    return torch.cat((states, horizons, action.clamp(-0.999, 0.999)), dim=-1)


class Critics(nn.Module):
    """Critics that regress values.

    For discrete actions they see the state alone and have an output for every discount and action.
    """

    gammas: Tensor

    def __init__(
        self, sizes: Sizes, action_dim: int, discrete: bool, gammas: Tensor, num_critics: int
    ) -> None:
        super().__init__()
        self.discrete = discrete
        self.register_buffer("gammas", gammas.clone(), persistent=False)
        self.net = EnsembleMLP(
            num_critics,
            sizes.traj_width if discrete else sizes.traj_width + 1 + action_dim,
            sizes.critic_hidden,
            sizes.critic_layers,
            len(gammas) * action_dim if discrete else 1,
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """(B, L, S) and (K, B, L, G, A) to values (K, B, L, C, G, 1)."""
        if self.discrete:
            by_action: Tensor = self.net(state).unflatten(-1, (len(self.gammas), -1))  # (B, L, C, G, A)
            return (by_action * action.unsqueeze(3)).sum(-1, keepdim=True)
        out: Tensor = self.net(critic_input(state, self.gammas, action))  # (K, B, L, G, C, 1)
        return out.transpose(3, 4)


class TwoHotCritics(nn.Module):
    """Critics that classify returns into bins, spaced evenly in symlog of the return."""

    gammas: Tensor
    bins: Tensor

    def __init__(
        self,
        sizes: Sizes,
        action_dim: int,
        gammas: Tensor,
        num_critics: int,
        low: float = -100_000.0,
        high: float = 100_000.0,
        labels: Literal["twohot", "hlgauss"] = "twohot",
    ) -> None:
        super().__init__()
        self.labels_type = labels
        self.register_buffer("gammas", gammas.clone(), persistent=False)
        ends = symlog(torch.tensor([low, high]))
        self.register_buffer("bins", torch.linspace(ends[0], ends[1], sizes.bins), persistent=False)
        d_in = sizes.traj_width + 1 + action_dim
        self.net = EnsembleMLP(num_critics, d_in, sizes.critic_hidden, sizes.critic_layers, sizes.bins)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """(B, L, S) and (K, B, L, G, A) to logits (K, B, L, C, G, bins)."""
        out: Tensor = self.net(critic_input(state, self.gammas, action))  # (K, B, L, G, C, bins)
        return out.transpose(3, 4).float()

    def values(self, logits: Tensor) -> Tensor:
        """The returns that logits (..., bins) stand for, (..., 1)."""
        return symexp((torch.softmax(logits, dim=-1) * self.bins).sum(-1, keepdim=True))

    def labels(self, target: Tensor) -> Tensor:
        """Returns (..., 1) as class probabilities (..., bins)."""
        width = self.bins[1] - self.bins[0]
        place = symlog(target).clamp(self.bins[0], self.bins[-1])
        if self.labels_type == "twohot":
            return (1.0 - (place - self.bins).abs() / width).clamp(min=0.0)
        edges = torch.cat((self.bins - width / 2, self.bins[-1:] + width / 2))
        cdf: Tensor = torch.special.ndtr((edges - place) / (0.75 * width))
        return (cdf[..., 1:] - cdf[..., :-1]) / (cdf[..., -1:] - cdf[..., :1])

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of logits (..., C, G, bins) with returns (..., 1, G, 1): (..., C, G, 1)."""
        weighted: Tensor = self.labels(target) * F.log_softmax(logits, dim=-1)
        return -weighted.sum(-1, keepdim=True)


class PopArt(nn.Module):
    """Running statistics of the targets per discount, and outputs that keep their meaning meanwhile."""

    mu: Tensor
    nu: Tensor
    w: Tensor
    b: Tensor
    _t: Tensor

    def __init__(self, num_gammas: int, enabled: bool, beta: float = 5e-4, init_nu: float = 100.0) -> None:
        super().__init__()
        self.enabled = enabled
        self.beta = beta
        self.register_buffer("mu", torch.zeros(num_gammas, 1))
        self.register_buffer("nu", torch.full((num_gammas, 1), init_nu))
        self.register_buffer("w", torch.ones(num_gammas, 1))
        self.register_buffer("b", torch.zeros(num_gammas, 1))
        self.register_buffer("_t", torch.ones(num_gammas, 1))

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of the targets, (G, 1)."""
        return (self.nu - self.mu.square()).clamp(min=0.0).sqrt().clamp(1e-4, 1e6)

    @torch.no_grad()
    def update(self, target: Tensor, mask: Tensor) -> None:
        """Moves the statistics towards those of `target` (B, T, 1, G, 1) where `mask` (B, T, 1, 1, 1) is true."""
        if not self.enabled:
            return
        count = mask.sum()
        mean = (target * mask).sum((0, 1, 2)) / count  # (G, 1)
        mean_square = (target.square() * mask).sum((0, 1, 2)) / count
        self._t += 1.0
        step = self.beta / (1.0 - (1.0 - self.beta) ** self._t)
        old_mu, old_sigma = self.mu.clone(), self.sigma
        self.mu.copy_((1.0 - step) * self.mu + step * mean)
        self.nu.copy_((1.0 - step) * self.nu + step * mean_square)
        self.w.mul_(old_sigma / self.sigma)
        self.b.copy_((old_sigma * self.b + old_mu - self.mu) / self.sigma)

    def normalize(self, value: Tensor) -> Tensor:
        """Values (..., G, 1) in units of standard deviations."""
        return (value - self.mu) / self.sigma if self.enabled else value

    def predict(self, raw: Tensor) -> Tensor:
        """Raw critic outputs (..., G, 1) as normalised values."""
        return self.w * raw + self.b if self.enabled else raw

    def denormalize(self, value: Tensor) -> Tensor:
        """Normalised values (..., G, 1) in units of returns."""
        return value * self.sigma + self.mu if self.enabled else value
