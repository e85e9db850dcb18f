"""Independent bits, for MultiBinary actions."""

from typing import Any

import gin
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli

from amago.nets.policy_dists.base import PolicyOutput
from amago.nets.precision import at_least_float32


class Bits(Bernoulli):
    """Independent Bernoulli variables 0.0 and 1.0; `log_prob` rounds values to the nearest bit."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log π per bit (..., A)."""
        return F.logsigmoid(torch.where(value > 0.5, self.logits, -self.logits))


@gin.configurable(module="amago.nets.policy_dists")
class Multibinary(PolicyOutput):
    """A vector of `d_action` independent bits; `log_prob` is per bit (..., A)."""

    actions_differentiable = False
    is_discrete = False

    @property
    def input_dimension(self) -> int:
        """One logit per bit."""
        return self.d_action

    def forward(self, vec: Tensor, log_dict: dict[str, Any] | None = None) -> Bits:
        """The distribution over bits for logits (..., A)."""
        return Bits(logits=at_least_float32(vec), validate_args=False)
