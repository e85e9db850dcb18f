"""Normal distributions squashed by tanh, and mixtures of them, for actions in [-1, 1].

The density follows from the change of variables a = tanh(u): log π(a) = log N(u) - log(1 - tanh(u)²).

Shapes: A action dimensions, M mixture components.
"""

from collections.abc import Callable
from math import log
from typing import Any

import gin
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal, constraints

from amago.nets.arguments import Positive, Size, check_arguments
from amago.nets.policy_dists.base import (
    PolicyOutput,
    check_bounds,
    check_clip,
    softplus_bounded_positive,
    tanh_bounded_positive,
)
from amago.nets.precision import at_least_float32
from amago.nets.utils import add_activation_log

StdActivation = Callable[..., Tensor]
_ATANH_LIMIT = 1.0 - 1e-6


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)²), in a form that is precise for large |u|."""
    return 2.0 * (log(2.0) - u - F.softplus(-2.0 * u))


class _Squashed(Distribution):
    """tanh of a base distribution; `log_prob` clamps actions to `clip`."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - the name and type are torch's

    def __init__(self, base: Distribution, clip: tuple[float, float]) -> None:
        self.base = base
        self.clip = clip
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """tanh of the base's mean: the deterministic action."""
        return torch.tanh(self.base.mean)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Random actions in [-1, 1], (*sample_shape, ..., A)."""
        with torch.no_grad():
            return torch.tanh(self.base.sample(torch.Size(sample_shape)))

    def _unsquash(self, action: Tensor) -> Tensor:
        low, high = self.clip
        return torch.atanh(action.clamp(low, high))


class SquashedNormal(_Squashed):
    """tanh(u) with u ~ N(loc, std), independently per dimension."""

    has_rsample = True

    def __init__(self, loc: Tensor, std: Tensor, clip: tuple[float, float]) -> None:
        self.loc = loc
        self.std = std
        super().__init__(Normal(loc, std, validate_args=False), clip)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Random actions with gradients into `loc` and `std`."""
        return torch.tanh(self.base.rsample(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """log π per dimension (..., A)."""
        u = self._unsquash(value)
        return self.base.log_prob(u) - log_tanh_slope(u)


class SquashedMixture(_Squashed):
    """tanh(u) with u from a mixture of diagonal normals; `log_prob` is joint, (..., 1)."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log π of the whole vector, (..., 1)."""
        u = self._unsquash(value)
        return (self.base.log_prob(u) - log_tanh_slope(u).sum(dim=-1)).unsqueeze(-1)


@gin.configurable(module="amago.nets.policy_dists")
class TanhGaussian(PolicyOutput):
    """A squashed normal per action dimension (Haarnoja et al. 2018, appendix C).

    Args:
        d_action: number A of action dimensions.
        std_low: lowest standard deviation before squashing.
        std_high: highest standard deviation before squashing.
        std_activation: maps network outputs to (std_low, std_high), called with (x, low, high).
        clip_actions_on_log_prob: `log_prob` clamps actions to this interval, as the density is infinite or 0
            at ±1.

    Raises:
        ValueError: if bounds are out of order.
    """

    actions_differentiable = True  # reparametrisation
    is_discrete = False

    @check_arguments
    def __init__(
        self,
        d_action: Size,
        std_low: Positive = 0.006737946999085467,
        std_high: Positive = 7.38905609893065,
        std_activation: StdActivation = tanh_bounded_positive,
        clip_actions_on_log_prob: tuple[float, float] = (-0.99, 0.99),
    ) -> None:
        super().__init__(d_action)
        check_bounds("std", std_low, std_high)
        self.std_low = std_low
        self.std_high = std_high
        self.std_activation = std_activation
        self.clip_actions_on_log_prob = check_clip(clip_actions_on_log_prob)

    @property
    def input_dimension(self) -> int:
        """A means, then A standard deviations."""
        return 2 * self.d_action

    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> SquashedNormal:
        """The distribution over actions (..., A) for parameters (..., 2 A)."""
        loc, raw_std = at_least_float32(vec).chunk(2, dim=-1)
        std = self.std_activation(raw_std, self.std_low, self.std_high)
        add_activation_log("TanhGaussian std", std, log_dict)
        return SquashedNormal(loc, std, self.clip_actions_on_log_prob)


@gin.configurable(module="amago.nets.policy_dists")
class GMM(PolicyOutput):
    """A squashed mixture of diagonal normals, for multimodal policies.

    Args:
        d_action: number A of action dimensions.
        gmm_modes: number M of mixture components.
        std_low: lowest standard deviation before squashing.
        std_high: highest standard deviation, None for no limit.
        std_activation: maps network outputs to a standard deviation, called with (x, low, high).

    Raises:
        ValueError: if `gmm_modes` is below 1 or bounds are out of order.
    """

    actions_differentiable = False  # sampling a component carries no gradient
    is_discrete = False

    @check_arguments
    def __init__(
        self,
        d_action: Size,
        gmm_modes: Size = 5,
        std_low: Positive = 1e-4,
        std_high: Positive | None = None,
        std_activation: StdActivation = softplus_bounded_positive,
    ) -> None:
        super().__init__(d_action)
        check_bounds("std", std_low, std_high)
        self.gmm_modes = gmm_modes
        self.std_low = std_low
        self.std_high = std_high
        self.std_activation = std_activation

    @property
    def input_dimension(self) -> int:
        """M x A means, M x A standard deviations, M logits of the components."""
        return self.gmm_modes * (2 * self.d_action + 1)

    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> SquashedMixture:
        """The distribution over actions (..., A) for parameters (..., M (2 A + 1))."""
        width = self.gmm_modes * self.d_action
        loc, raw_std, logits = at_least_float32(vec).split([width, width, self.gmm_modes], dim=-1)
        shape = (*vec.shape[:-1], self.gmm_modes, self.d_action)
        std = self.std_activation(raw_std, self.std_low, self.std_high)
        add_activation_log("GMM std", std, log_dict)
        normals = Normal(loc.reshape(shape), std.reshape(shape), validate_args=False)
        mixture = MixtureSameFamily(
            Categorical(logits=logits, validate_args=False),
            Independent(normals, 1, validate_args=False),
            validate_args=False,
        )
        return SquashedMixture(mixture, (-_ATANH_LIMIT, _ATANH_LIMIT))
