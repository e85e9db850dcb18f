"""Categorical distributions with clipped probabilities, for Discrete actions.

A deterministic policy stops exploring, and log π of an action with probability 0 is -inf. Probabilities are
therefore clipped to [clip_prob_low, clip_prob_high] and normalised:

- values are those of the clipped distribution, gradients those of the unclipped one (straight-through), so that a
  clipped action keeps its gradient;
- the floor decreases with the number of actions, so that the floors of many actions take little of the mass.

A logit of -inf (or at most -1e8) marks an action as illegal. Its probability is 0, without a floor, and it is
never sampled. Losses and entropies stay finite. Without any legal action, as at the end of many games, the
distribution is uniform.

Shapes: N is the number of choices.
"""

import math
from typing import Any

import gin
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical
from torch.distributions.utils import clamp_probs

from amago.nets.activations import softmax
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.policy_dists.base import PolicyOutput
from amago.nets.precision import at_least_float32

ILLEGAL = -1e8
"""Actions with logits up to this are illegal; others cannot get there by training."""

_MANY_ACTIONS = 256
# log of the smallest positive float32: bounds the loss of an illegal recorded action.
_MIN_LOG_PROB = math.log(torch.finfo(torch.float32).tiny)


def effective_floor(low: float, num_actions: int) -> float:
    """The floor for N actions: `low`, but beyond 256 actions it decreases with the cube of N.

    With the default of 0.001 all floors together take a quarter of the mass at 256 actions, and less than a
    fiftieth at 1,000.
    """
    return low * min(1.0, (_MANY_ACTIONS / num_actions) ** 3)


def straight_through(value: Tensor, carrier: Tensor) -> Tensor:
    """`value` in the forward pass, the gradient of `carrier` in the backward pass."""
    return carrier + (value - carrier).detach()


def clip_probs(probs: Tensor, low: float, high: float) -> Tensor:
    """Probabilities (..., N) clipped to [low, high] and normalised."""
    clipped = probs.clamp(low, high)
    return clipped / clipped.sum(dim=-1, keepdim=True)


class _Categorical(Categorical):
    """torch's `Categorical`, with samples (*sample_shape, ..., 1) that keep a last axis of 1.

    Subclasses of `Discrete` return it from `forward`: `_Categorical(logits=vec / temperature)`. Parameters are not
    validated, so that the learner can count and skip NaN; values passed to `log_prob` are.

    Args:
        probs: probabilities (..., N), normalised here.
        logits: unnormalised log-probabilities (..., N), in place of `probs`; -inf for illegal actions.
        validate_args: as in torch.
    """

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        if logits is not None:
            logits = at_least_float32(logits)
            all_illegal = (logits <= ILLEGAL).all(dim=-1, keepdim=True)
            logits = logits.masked_fill(all_illegal, 0.0)
        super().__init__(probs=probs, logits=logits, validate_args=bool(validate_args))
        if validate_args is None:
            del self._validate_args

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Random indices, int64 (*sample_shape, ..., 1)."""
        index: Tensor = Categorical.sample(self, torch.Size(sample_shape))
        return index.unsqueeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log π of indices, broadcast against the batch shape (...), or of samples (..., 1); at least -87.3.

        Raises:
            ValueError: for values that are not indices, such as one-hot vectors (see `DiscreteLikeContinuous`).
        """
        batch = self.batch_shape
        if (
            value.shape[-1:] == (1,)
            and value.shape[-1 - len(batch) : -1] == batch
            and value.dim() > len(batch)
        ):
            value = value.squeeze(-1)
        if value.is_floating_point():
            logp: Tensor = Categorical.log_prob(self, value)
        else:
            index, logits = torch.broadcast_tensors(value.long().unsqueeze(-1), self.logits)
            logp = logits.gather(-1, index[..., :1]).squeeze(-1)
        return logp.clamp_min(_MIN_LOG_PROB)

    def entropy(self) -> Tensor:
        """Entropy in nats (...)."""
        entropy: Tensor = -(self.logits.clamp_min(_MIN_LOG_PROB) * self.probs).sum(dim=-1)
        return entropy


class ClippedCategorical(_Categorical):
    """A categorical distribution with the values of clipped probabilities and the gradients of unclipped ones.

    `probs` and `logits` (log-probabilities) both pass gradients straight through: d log π(a) / d vec is
    one-hot(a) - softmax(vec), clipped or not. Only a probability that underflows to 0 in float32, some 87
    below the largest logit, has none left.

    Args:
        vec: unnormalised log-probabilities (..., N); -inf for illegal actions, see `ILLEGAL`.
        low: floor of a legal action's probability, in [0, high).
        high: ceiling of a probability, in (low, 1].
    """

    def __init__(self, vec: Tensor, low: float = 0.0, high: float = 1.0) -> None:
        # Finite, so that the softmax of rows without legal actions is uniform.
        vec = at_least_float32(vec).clamp_min(ILLEGAL)
        softmaxed = softmax(vec)
        floor = low * (vec.detach() > ILLEGAL)
        clipped = torch.maximum(softmaxed.detach(), floor).clamp_max(high)
        clipped = clipped / clipped.sum(dim=-1, keepdim=True)
        super().__init__(probs=straight_through(clipped, softmaxed))
        tiny = torch.finfo(torch.float32).tiny
        # As in torch's Categorical, no probability is below the dtype's epsilon.
        self.logits = straight_through(clamp_probs(clipped).log(), softmaxed.clamp_min(tiny).log())


@gin.configurable(module="amago.nets.policy_dists")
class Discrete(PolicyOutput):
    """One choice among `d_action` actions; the distribution is over indices.

    Args:
        d_action: number N of actions.
        clip_prob_low: floor of each probability before normalising, see `effective_floor` for many actions.
        clip_prob_high: ceiling of each probability before normalising.

    Raises:
        ValueError: unless 0 <= clip_prob_low < clip_prob_high <= 1.
    """

    # Through expectations over all actions, or `DiscreteLikeContinuous.rsample`.
    actions_differentiable = True
    is_discrete = True

    @check_arguments
    def __init__(
        self, d_action: Size, clip_prob_low: Probability = 0.001, clip_prob_high: Probability = 0.99
    ) -> None:
        super().__init__(d_action)
        if not 0.0 <= clip_prob_low < clip_prob_high <= 1.0:
            raise ValueError(
                "probability bounds must satisfy 0 <= clip_prob_low < clip_prob_high <= 1, "
                f"got clip_prob_low={clip_prob_low!r}, clip_prob_high={clip_prob_high!r}"
            )
        self.clip_prob_low = clip_prob_low
        self.clip_prob_high = clip_prob_high

    @property
    def input_dimension(self) -> int:
        """One logit per action."""
        return self.d_action

    def clip_and_normalize(self, probs: Tensor) -> Tensor:
        """Probabilities (..., N) clipped to the bounds and normalised; the gradient is that of `probs`."""
        low = effective_floor(self.clip_prob_low, probs.shape[-1])
        return straight_through(clip_probs(probs, low, self.clip_prob_high), probs)

    def action_from_buffer(self, action: Tensor) -> Tensor:
        """Recorded one-hot actions (..., N), clipped and normalised like the policy's own probabilities."""
        return self.clip_and_normalize(action.clamp(0.0, 1.0))

    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> ClippedCategorical:
        """The distribution over indices (...) for logits (..., N)."""
        low = effective_floor(self.clip_prob_low, self.d_action)
        return ClippedCategorical(vec, low, self.clip_prob_high)


class DiscreteLikeContinuous:
    """A categorical distribution over one-hot vectors (..., N) instead of indices.

    Args:
        categorical: the distribution over indices.
        gumbel_softmax_temperature: temperature of `rsample`'s relaxation; lower is closer to one-hot
            gradients and noisier.

    Raises:
        ValueError: if the temperature is not positive.
    """

    def __init__(self, categorical: Categorical, gumbel_softmax_temperature: float = 0.5) -> None:
        if not gumbel_softmax_temperature > 0.0:
            raise ValueError(
                f"gumbel_softmax_temperature must be positive, got {gumbel_softmax_temperature!r}"
            )
        self.dist = categorical
        self.gumbel_softmax_temperature = gumbel_softmax_temperature

    @property
    def probs(self) -> Tensor:
        """Probabilities (..., N)."""
        return self.dist.probs

    @property
    def logits(self) -> Tensor:
        """Log-probabilities (..., N)."""
        return self.dist.logits

    @property
    def mean(self) -> Tensor:
        """The expected one-hot vector: the probabilities (..., N)."""
        return self.dist.probs

    def entropy(self) -> Tensor:
        """Entropy in nats (...)."""
        entropy: Tensor = self.dist.entropy()
        return entropy

    def log_prob(self, action: Tensor) -> Tensor:
        """log π of one-hot vectors (..., N), as (..., 1). Soft vectors count as their largest entry."""
        logp: Tensor = self.dist.log_prob(action.argmax(dim=-1))  # (...)
        return logp.unsqueeze(-1)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        """Random one-hot vectors (*sample_shape, ..., N), without gradient."""
        shape = torch.Size(sample_shape)
        index: Tensor = self.dist.sample(shape)
        if index.dim() == len(shape) + self.dist.probs.dim():  # `_Categorical` keeps a last axis of 1
            index = index.squeeze(-1)
        return F.one_hot(index, self.dist.probs.shape[-1]).to(self.dist.probs.dtype)

    def rsample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        """Random one-hot vectors with the gradient of a Gumbel-softmax sample, straight through.

        Jang et al. 2017, "Categorical Reparameterization with Gumbel-Softmax".
        """
        logits = self.dist.logits.expand(torch.Size(sample_shape) + self.dist.logits.shape)
        return F.gumbel_softmax(logits, tau=self.gumbel_softmax_temperature, hard=True, dim=-1)
