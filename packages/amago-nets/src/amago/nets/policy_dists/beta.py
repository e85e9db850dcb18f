"""Beta distributions over actions in [-1, 1].

Chou et al. 2017, "Improving Stochastic Policy Gradients in Continuous Control with Deep RL using the Beta
Distribution".
"""

from collections.abc import Callable
from math import log
from typing import Any

import gin
import torch
from torch import Tensor
from torch.distributions import Beta as UnitBeta
from torch.distributions import Distribution, constraints

from amago.nets.arguments import Positive, Size, check_arguments
from amago.nets.policy_dists.base import PolicyOutput, check_bounds, check_clip, softplus_bounded_positive
from amago.nets.precision import at_least_float32
from amago.nets.utils import add_activation_log


class RescaledBeta(Distribution):
    """2 x - 1 with x ~ Beta(alpha, beta), independently per dimension."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - the name and type are torch's
    has_rsample = True

    def __init__(self, alpha: Tensor, beta: Tensor, clip: tuple[float, float]) -> None:
        self.base = UnitBeta(alpha, beta, validate_args=False)
        self.clip = clip
        super().__init__(self.base.batch_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean action (..., A)."""
        return 2.0 * self.base.mean - 1.0

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Random actions in [-1, 1]."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Random actions with gradients into the parameters."""
        return 2.0 * self.base.rsample(torch.Size(sample_shape)) - 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        """log π per dimension (..., A)."""
        low, high = self.clip
        logp: Tensor = self.base.log_prob((value.clamp(low, high) + 1.0) / 2.0)
        return logp - log(2.0)


@gin.configurable(module="amago.nets.policy_dists")
class Beta(PolicyOutput):
    """A beta distribution on [-1, 1] per action dimension.

    Args:
        d_action: number A of action dimensions.
        alpha_low: lowest alpha; above 1 the density is unimodal.
        alpha_high: highest alpha, None for no limit.
        beta_low: lowest beta.
        beta_high: highest beta, None for no limit.
        std_activation: maps network outputs to the parameters, called with (x, low, high).
        clip_actions_on_log_prob: `log_prob` clamps actions to this interval.

    Raises:
        ValueError: if bounds are out of order.
    """

    actions_differentiable = True  # implicit reparametrisation
    is_discrete = False

    @check_arguments
    def __init__(
        self,
        d_action: Size,
        alpha_low: Positive = 1.0001,
        alpha_high: Positive | None = None,
        beta_low: Positive = 1.0001,
        beta_high: Positive | None = None,
        std_activation: Callable[..., Tensor] = softplus_bounded_positive,
        clip_actions_on_log_prob: tuple[float, float] = (-0.99, 0.99),
    ) -> None:
        super().__init__(d_action)
        check_bounds("alpha", alpha_low, alpha_high)
        check_bounds("beta", beta_low, beta_high)
        self.alpha_bounds = (alpha_low, alpha_high)
        self.beta_bounds = (beta_low, beta_high)
        self.std_activation = std_activation
        self.clip_actions_on_log_prob = check_clip(clip_actions_on_log_prob)

    @property
    def input_dimension(self) -> int:
        """A alphas, then A betas."""
        return 2 * self.d_action

    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> RescaledBeta:
        """The distribution over actions (..., A) for parameters (..., 2 A)."""
        raw_alpha, raw_beta = at_least_float32(vec).chunk(2, dim=-1)
        alpha = self.std_activation(raw_alpha, *self.alpha_bounds)
        beta = self.std_activation(raw_beta, *self.beta_bounds)
        add_activation_log("Beta alpha", alpha, log_dict)
        add_activation_log("Beta beta", beta, log_dict)
        return RescaledBeta(alpha, beta, self.clip_actions_on_log_prob)
