"""Products of categorical distributions over concatenated one-hot vectors, for MultiDiscrete actions.

Shapes: K components of sizes n_1 ... n_K, A = n_1 + ... + n_K.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gin
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.policy_dists.base import PolicyOutput
from amago.nets.policy_dists.discrete import Discrete, DiscreteLikeContinuous


class ProductOfCategoricals(Distribution):
    """Independent one-hot choices, concatenated: a distribution over vectors (..., A).

    Args:
        components: one distribution per choice, over one-hot vectors (..., n_k).
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - the name and type are torch's
    has_rsample = True

    def __init__(self, components: Sequence[DiscreteLikeContinuous]) -> None:
        self.components = list(components)
        self.sizes = [component.probs.shape[-1] for component in self.components]
        batch_shape = self.components[0].probs.shape[:-1]
        super().__init__(batch_shape, torch.Size([sum(self.sizes)]), validate_args=False)

    @property
    def probs(self) -> Tensor:
        """Probabilities of all components, concatenated (..., A)."""
        return torch.cat([component.probs for component in self.components], dim=-1)

    @property
    def mean(self) -> Tensor:
        """The expected vector: `probs`."""
        return self.probs

    def log_prob(self, value: Tensor) -> Tensor:
        """log π of concatenated one-hots (..., A) as (..., 1), the sum over components."""
        values = value.split(self.sizes, dim=-1)
        logps = [component.log_prob(v) for component, v in zip(self.components, values, strict=True)]
        return torch.cat(logps, dim=-1).sum(dim=-1, keepdim=True)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Random choices as concatenated one-hots (*sample_shape, ..., A)."""
        shape = torch.Size(sample_shape)
        return torch.cat([component.sample(shape) for component in self.components], dim=-1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Like `sample`, with straight-through Gumbel-softmax gradients in each component."""
        return torch.cat([component.rsample(sample_shape) for component in self.components], dim=-1)


@gin.configurable(module="amago.nets.policy_dists")
class MultiDiscrete(PolicyOutput):
    """A vector of K independent choices, represented by concatenated one-hots (..., A).

    Actors construct their distribution with `d_action` alone, so bind the sizes first:

        Actor(..., discrete=False, continuous_dist_type=MultiDiscrete.with_sizes((3, 5)))

    Args:
        d_action: width A, the sum of `sizes`.
        sizes: number of choices of each component; None means a single component of `d_action` choices.
        clip_prob_low: floor of each probability, as in `Discrete`, for each component.
        clip_prob_high: ceiling of each probability, likewise.

    Raises:
        ValueError: if the sizes do not add up to `d_action` or one is not positive.
    """

    actions_differentiable = True  # straight-through gradients into every component
    is_discrete = False

    @check_arguments
    def __init__(
        self,
        d_action: Size,
        sizes: Sequence[Size] | None = None,
        clip_prob_low: Probability = 0.001,
        clip_prob_high: Probability = 0.99,
    ) -> None:
        super().__init__(d_action)
        self.sizes = (d_action,) if sizes is None else tuple(int(n) for n in sizes)
        if sum(self.sizes) != d_action or min(self.sizes, default=0) < 1:
            raise ValueError(f"sizes must be positive and add up to d_action={d_action}, got {sizes!r}")
        self.components = [
            Discrete(n, clip_prob_low=clip_prob_low, clip_prob_high=clip_prob_high) for n in self.sizes
        ]

    @classmethod
    def with_sizes(cls, sizes: Sequence[int]) -> Callable[..., "MultiDiscrete"]:
        """A distribution type for actor heads: `cls` with its sizes bound. It can be pickled."""
        return partial(cls, sizes=tuple(int(n) for n in sizes))

    @property
    def input_dimension(self) -> int:
        """One logit per choice of each component."""
        return self.d_action

    def action_from_buffer(self, action: Tensor) -> Tensor:
        """Recorded concatenated one-hots (..., A), clamped to [0, 1]."""
        return action.clamp(0.0, 1.0)

    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> ProductOfCategoricals:
        """The distribution over concatenated one-hots for logits (..., A)."""
        logits = vec.split(self.sizes, dim=-1)
        pairs = zip(self.components, logits, strict=True)
        dists = [DiscreteLikeContinuous(component.forward(x)) for component, x in pairs]
        return ProductOfCategoricals(dists)
