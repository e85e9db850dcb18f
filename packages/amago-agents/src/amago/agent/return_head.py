"""Return heads: how an agent decodes and trains its critics, by regression or by classification.

| | `RegressionHead` | `ClassificationHead` |
|---|---|---|
| critics' output | a value | logits over bins of returns |
| error | squared, of values that PopArt normalises | cross-entropy with two-hot or HL-Gauss labels |
| discrete actions | probabilities: the value is an expectation | one-hot samples |

Shapes: n real transitions of the batch, K action samples, C critics, G discounts, A width of the action
representation, S state width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from amago.agent.losses import critic_regression_loss
from amago.nets.actor_critic import NCritics, PopArtLayer
from amago.nets.actor_critic.critic import expected_values
from amago.nets.policy_dists import DiscreteLikeContinuous


@dataclass(slots=True, kw_only=True)
class RecordedValues:
    """The critics' evaluation of the recorded actions.

    Args:
        values: raw values (1, n, C, G, 1), before PopArt.
        output: the critics' output, from which the error is computed.
        every_action: raw values of every discrete action (1, n, C, G, A) if one pass of the critics gave them all.
    """

    values: Tensor
    output: Any
    every_action: Tensor | None = None


class ReturnHead(ABC):
    """Decodes the critics' outputs to values, converts values to returns, and computes the critics' error.

    "Raw" values are the critics' values before PopArt. Advantages are differences of raw values; targets are in
    units of returns times the agent's reward multiplier.

    Args:
        popart: running statistics of the targets.
        discrete: whether an action is a single discrete choice.
    """

    critic_methods: tuple[str, ...] = ()  # methods that the critics must have

    def __init__(self, popart: PopArtLayer, discrete: bool) -> None:
        self.popart = popart
        self.discrete = discrete

    def check_critics(self, critics: nn.Module) -> None:
        """Raises TypeError if the critics lack one of `critic_methods`."""
        missing = [name for name in self.critic_methods if not hasattr(critics, name)]
        if missing:
            raise TypeError(
                f"critic_type must have {' and '.join(self.critic_methods)} for a {type(self).__name__}, "
                f"got {type(critics).__name__} without {' and '.join(missing)}"
            )

    @abstractmethod
    def evaluate_recorded(
        self, critics: nn.Module, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None
    ) -> RecordedValues:
        """Evaluates recorded actions (1, 1, n, G, A) in states (1, n, S)."""

    @abstractmethod
    def raw_values(self, critics: nn.Module, output: Any) -> Tensor:
        """Raw values (K, 1, n, C, G, 1) from the critics' output for K action samples."""

    @abstractmethod
    def denormalize(self, values: Tensor) -> Tensor:
        """Raw values (..., G, 1) in the units of the targets."""

    @abstractmethod
    def normalize(self, values: Tensor) -> Tensor:
        """Raw values (..., G, 1) on a scale that is equal for all discounts, for the online actor loss."""

    @abstractmethod
    def critic_error(self, critics: nn.Module, recorded: RecordedValues, targets: Tensor) -> Tensor:
        """The critics' error against targets (1, n, 1, G, 1): (1, n, C, G, 1)."""

    def policy_actions(self, dist: Any, num_samples: int, *, grad: bool = False) -> Tensor:
        """Actions of the policy as the critics take them, (K, 1, n, G, A).

        Args:
            dist: the policies of all discounts, batch shape (1, n, G).
            num_samples: K.
            grad: whether the samples carry a gradient into the policy.
        """
        samples: Tensor = dist.rsample((num_samples,)) if grad else dist.sample((num_samples,))
        return samples

    def policy_values(
        self, critics: nn.Module, recorded: RecordedValues, state: Tensor, action: Tensor
    ) -> Tensor:
        """Raw values of the policy's actions (K, 1, n, G, A): (K, 1, n, C, G, 1).

        The critics' weights and their state input are detached: the gradient flows into the actions alone.
        """
        if recorded.every_action is not None:
            return expected_values(recorded.every_action.detach(), action)
        weights = {name: p.detach() for name, p in critics.named_parameters()}
        return self.raw_values(critics, functional_call(critics, weights, (state.detach(), action)))


class RegressionHead(ReturnHead):
    """Critics regress returns that PopArt normalises (van Hasselt et al. 2016)."""

    def evaluate_recorded(
        self, critics: nn.Module, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None
    ) -> RecordedValues:
        """Discrete `NCritics` evaluate every action in one pass, which then serves the policy's actions too."""
        if self.discrete and _evaluates_every_action(critics):
            every_action = critics.all_action_values(state)
            values = expected_values(every_action, action)[0]
            return RecordedValues(values=values, output=values, every_action=every_action)
        values = critics(state, action, log_dict=log_dict)[0]
        return RecordedValues(values=values, output=values)

    def raw_values(self, critics: nn.Module, output: Any) -> Tensor:
        """The output itself."""
        values: Tensor = output
        return values

    def denormalize(self, values: Tensor) -> Tensor:
        """sigma (w Q + b) + mu."""
        returns: Tensor = self.popart(values, normalized=False)
        return returns

    def normalize(self, values: Tensor) -> Tensor:
        """w Q + b."""
        normalized: Tensor = self.popart(values)
        return normalized

    def critic_error(self, critics: nn.Module, recorded: RecordedValues, targets: Tensor) -> Tensor:
        """The squared error of normalised predictions against normalised targets."""
        return critic_regression_loss(self.normalize(recorded.output), self.popart.normalize_values(targets))

    def policy_actions(self, dist: Any, num_samples: int, *, grad: bool = False) -> Tensor:
        """Probabilities (1, 1, n, G, A) if discrete, so that values are exact expectations; else samples."""
        if self.discrete:
            probs: Tensor = dist.probs
            return probs.unsqueeze(0)
        return super().policy_actions(dist, num_samples, grad=grad)


class ClassificationHead(ReturnHead):
    """Critics classify returns into bins (Farebrother et al. 2024): the loss does not depend on their scale.

    The critics decode and compare distributions over bins by `bin_dist_to_raw_vals` and `cross_entropy`, as
    `NCriticsTwoHot` does.
    """

    critic_methods = ("bin_dist_to_raw_vals", "cross_entropy")

    def evaluate_recorded(
        self, critics: nn.Module, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None
    ) -> RecordedValues:
        """Values are decoded without gradient: the critics learn from their distributions."""
        bin_dist = critics(state, action, log_dict=log_dict)
        with torch.no_grad():
            return RecordedValues(values=self.raw_values(critics, bin_dist)[0], output=bin_dist)

    def raw_values(self, critics: nn.Module, output: Any) -> Tensor:
        """The expected return of each distribution."""
        decode: Any = critics.bin_dist_to_raw_vals
        values: Tensor = decode(output)
        return values

    def denormalize(self, values: Tensor) -> Tensor:
        """The values themselves: bins are in the units of the targets."""
        return values

    def normalize(self, values: Tensor) -> Tensor:
        """(Q - mu) / sigma."""
        return self.popart.normalize_values(values)

    def critic_error(self, critics: nn.Module, recorded: RecordedValues, targets: Tensor) -> Tensor:
        """The cross-entropy of the distributions against the labels of the targets, in nats."""
        cross_entropy: Any = critics.cross_entropy
        error: Tensor = cross_entropy(recorded.output, targets)[0]
        return error

    def policy_actions(self, dist: Any, num_samples: int, *, grad: bool = False) -> Tensor:
        """Samples; one-hot vectors if discrete, with straight-through Gumbel-softmax gradients."""
        if self.discrete:
            dist = DiscreteLikeContinuous(dist)
        return super().policy_actions(dist, num_samples, grad=grad)


def _evaluates_every_action(critics: nn.Module) -> TypeGuard[NCritics]:
    """Whether these are `NCritics` whose network was not overridden."""
    return (
        isinstance(critics, NCritics)
        and type(critics).critic_network_forward is NCritics.critic_network_forward
    )
