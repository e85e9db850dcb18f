"""Base class of action distributions, and activations for positive parameters.

Shapes: `vec` is (..., input_dimension), usually (B, L, G, input_dimension): batch, timesteps, discounts.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import gin
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from amago.nets.arguments import Size, check_arguments


class PolicyOutput(ABC):
    """Turns an actor's output into a distribution over actions.

    Args:
        d_action: width A of the action representation (number of choices for discrete actions).

    Attributes:
        actions_differentiable: whether samples are differentiable, as the online actor loss requires.
        is_discrete: whether an action is a single choice among `d_action`, and the distribution is over indices.

    Raises:
        ValueError: if `d_action` is not positive.
    """

    actions_differentiable: bool
    is_discrete: bool

    @check_arguments
    def __init__(self, d_action: Size) -> None:
        self.d_action = d_action

    @property
    @abstractmethod
    def input_dimension(self) -> int:
        """Width of the parameter vector that `forward` expects."""

    def action_from_buffer(self, action: Tensor) -> Tensor:
        """Recorded actions (..., A) as `log_prob` and the critics take them: clamped to [-1, 1]."""
        return action.clamp(-1.0, 1.0)

    @abstractmethod
    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> Distribution:
        """The distribution whose parameters are `vec` (..., input_dimension); `log_dict` collects metrics."""

    def __call__(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> Distribution:
        """`forward`; ValueError unless `vec` is `input_dimension` wide."""
        if vec.shape[-1] != self.input_dimension:
            raise ValueError(
                f"vec must end in {self.input_dimension} numbers for {type(self).__name__}"
                f"(d_action={self.d_action}), got shape {tuple(vec.shape)}"
            )
        return self.forward(vec, log_dict=log_dict)


def check_bounds(name: str, low: float, high: float | None) -> None:
    """Raises ValueError unless low < high; None is no upper bound."""
    if high is not None and high <= low:
        raise ValueError(f"{name}_high must be above {name}_low={low!r}, got {high!r}")


def check_clip(clip: tuple[float, float]) -> tuple[float, float]:
    """The interval as a pair of floats; raises ValueError unless -1 < low < high < 1."""
    low, high = float(clip[0]), float(clip[1])
    if not -1.0 < low < high < 1.0:
        raise ValueError(f"clip_actions_on_log_prob must satisfy -1 < low < high < 1, got {clip!r}")
    return low, high


def tanh_bounded_positive(x: Tensor, low: float, high: float) -> Tensor:
    """Maps numbers into (low, high), evenly on a logarithmic scale: x = 0 gives the geometric mean.

    exp(log low + (log high - log low) (tanh(x) + 1) / 2); smooth everywhere.
    """
    log_low, log_high = math.log(low), math.log(high)
    return torch.exp(log_low + 0.5 * (log_high - log_low) * (torch.tanh(x) + 1.0))


def softplus_bounded_positive(x: Tensor, low: float, high: float | None = None) -> Tensor:
    """Maps numbers to low + softplus(x), clamped to `high` if given."""
    positive = F.softplus(x) + low
    return positive if high is None else positive.clamp(max=high)


# External: gin files can refer to these functions, but calls in forward passes do not go through gin.
for _function in (tanh_bounded_positive, softplus_bounded_positive):
    gin.external_configurable(_function, module="amago.nets.policy_dists")
