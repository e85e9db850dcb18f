"""Action distributions, based on torch.distributions.

Categorical and squashed normal distributions are implemented here; others, which no benchmark uses, come from
`amago.nets.policy_dists`.

Shapes: parameters (B, L, G, P) to distributions of batch shape (B, L, G), G discounts; N choices.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Normal, TanhTransform, TransformedDistribution

from amago.nets.policy_dists import Multibinary, PolicyOutput


class DiscretePolicy:
    """One of N choices, its probabilities clipped and normalised, the gradient passed straight through."""

    def __init__(self, num_actions: int, clip_low: float = 0.001, clip_high: float = 0.99) -> None:
        self.params = num_actions
        self.clip_low = clip_low
        self.clip_high = clip_high

    def _clip(self, probs: Tensor) -> Tensor:
        clipped = probs.clamp(self.clip_low, self.clip_high)
        return clipped / clipped.sum(-1, keepdim=True)

    def from_buffer(self, action: Tensor) -> Tensor:
        """Recorded one-hot vectors as the critics see them, (..., N)."""
        return self._clip(action)

    def __call__(self, vec: Tensor) -> OneHotPolicy:
        """The policy with logits `vec` (..., N)."""
        softmax = torch.softmax(vec.float(), dim=-1)
        clipped = self._clip(softmax.detach())
        tiny = torch.finfo(torch.float32).tiny
        log_softmax = softmax.clamp(min=tiny).log()
        probs = clipped + softmax - softmax.detach()
        lowest = torch.finfo(torch.float32).eps  # as Categorical has it
        logits = clipped.clamp(min=lowest).log() + log_softmax - log_softmax.detach()
        return OneHotPolicy(probs, logits)


class OneHotPolicy:
    """A categorical distribution whose actions are one-hot vectors (..., N)."""

    def __init__(self, probs: Tensor, logits: Tensor) -> None:
        self.probs = probs
        self.logits = logits

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        """(*shape, ..., N) without gradient."""
        index = Categorical(probs=self.probs.detach()).sample(torch.Size(shape))
        return F.one_hot(index, self.probs.shape[-1]).float()

    def rsample(self, shape: tuple[int, ...]) -> Tensor:
        """Straight-through Gumbel-softmax (Jang et al. 2017) at temperature 0.5, (*shape, ..., N)."""
        return F.gumbel_softmax(self.logits.expand(*shape, *self.logits.shape), tau=0.5, hard=True)

    def log_prob(self, action: Tensor) -> Tensor:
        """log pi of the largest entry of `action` (..., N), as (..., 1)."""
        index = action.argmax(-1, keepdim=True).expand(*self.logits.shape[:-1], 1)
        return self.logits.gather(-1, index)


class TanhGaussianPolicy:
    """The hyperbolic tangent of a normal variable, for each of A dimensions."""

    def __init__(
        self, action_dim: int, std_low: float = math.exp(-5.0), std_high: float = math.exp(2.0)
    ) -> None:
        self.params = 2 * action_dim
        self.log_low = math.log(std_low)
        self.log_high = math.log(std_high)

    def from_buffer(self, action: Tensor) -> Tensor:
        """Recorded actions as the critics see them, (..., A)."""
        return action.clamp(-1.0, 1.0)

    def __call__(self, vec: Tensor) -> SquashedPolicy:
        """The policy with means and raw standard deviations `vec` (..., 2 A)."""
        mean, raw = vec.float().chunk(2, dim=-1)
        std = torch.exp(self.log_low + 0.5 * (self.log_high - self.log_low) * (torch.tanh(raw) + 1.0))
        return SquashedPolicy(mean, std)


class SquashedPolicy(TransformedDistribution):
    """Its log-probability is judged a little inside of ±1, where it is finite."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__(Normal(mean, std), [TanhTransform()])

    def log_prob(self, value: Tensor) -> Tensor:
        """log pi of the whole action (..., A), as (..., 1)."""
        log_prob: Tensor = super().log_prob(value.clamp(-0.99, 0.99))  # type: ignore[no-untyped-call]
        return log_prob.sum(-1, keepdim=True)


class PackagePolicy:
    """A distribution of `amago.nets.policy_dists` with the interface of this file's own."""

    def __init__(self, output: PolicyOutput) -> None:
        self.output = output
        self.params = output.input_dimension

    def from_buffer(self, action: Tensor) -> Tensor:
        """Recorded actions as the critics see them, (..., A)."""
        return self.output.action_from_buffer(action)

    def __call__(self, vec: Tensor) -> _PackageDistribution:
        """The policy with parameters `vec` (..., P)."""
        return _PackageDistribution(self.output(vec), mean_over_bits=isinstance(self.output, Multibinary))


class _PackageDistribution:
    def __init__(self, dist: Any, mean_over_bits: bool) -> None:
        self.dist = dist
        self.sample = dist.sample
        self.mean_over_bits = mean_over_bits

    def rsample(self, shape: tuple[int, ...]) -> Tensor:
        samples: Tensor = self.dist.rsample(shape)
        return samples

    def log_prob(self, action: Tensor) -> Tensor:
        log_prob: Tensor = self.dist.log_prob(action)
        return log_prob.mean(-1, keepdim=True) if self.mean_over_bits else log_prob.sum(-1, keepdim=True)


Policy = DiscretePolicy | TanhGaussianPolicy | PackagePolicy
