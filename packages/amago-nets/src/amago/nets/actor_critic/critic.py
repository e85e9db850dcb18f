"""`NCritics`: an ensemble of critics that regress returns, for all discounts at once.

Shapes: B batch, L sequence, S state width, K action samples, C critics, G discounts, A action width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import torch
from torch import Tensor

from amago.nets.activations import Activation
from amago.nets.actor_critic.base import BaseCriticHead
from amago.nets.actor_critic.ensemble import EnsembleMLP
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.utils import symlog


def gamma_features(gammas: Tensor) -> Tensor:
    """The critics' input for discounts (G,): symlog(1 / clamp(1 - gamma, 1e-6, 1)), (G, 1)."""
    return symlog(1.0 / (1.0 - gammas).clamp(1e-6, 1.0)).unsqueeze(-1)


def gammas_as_input_seq(gammas: Tensor, batch_size: int, length: int) -> Tensor:
    """`gamma_features` repeated for every timestep: (G,) -> (B, L, G, 1)."""
    features = gamma_features(gammas)
    return features.expand(batch_size, length, *features.shape)


def state_action_mlp(net: EnsembleMLP, state: Tensor, gammas: Tensor, action: Tensor) -> Tensor:
    """Evaluates an ensemble on the input [state, discount, action].

    Args:
        net: network with input width S + 1 + A.
        state: (B, L, S).
        gammas: (G,).
        action: (K, B, L, G, A).

    Returns:
        (K, B, L, C, G, d_out).
    """
    features = gamma_features(gammas).to(action.dtype).expand(*action.shape[:-1], 1)
    # Samples next to discounts, so that the first layer projects each state once.
    others = torch.cat([features, action], dim=-1).permute(1, 2, 0, 3, 4)  # (B, L, K, G, 1 + A)
    out: Tensor = net(state[:, :, None, None], others)  # (C, B, L, K, G, d_out)
    return out.permute(3, 1, 2, 0, 4, 5)


@gin.configurable(module="amago.nets.actor_critic")
class NCritics(BaseCriticHead):
    """An ensemble of state-action values for every discount.

    For discrete actions, the networks map a state to a value per discount and action; the value of a vector of
    probabilities is the expectation. All other actions are an input of the networks, clamped to
    [-0.999, 0.999].

    Args:
        state_dim: S.
        action_dim: A.
        discrete: whether an action is a single choice, passed as a one-hot vector or probabilities.
        gammas: discounts (G,).
        num_critics: C.
        d_hidden: hidden width.
        n_layers: number of hidden layers.
        dropout_p: dropout after each hidden activation.
        activation: activation of the hidden layers.
    """

    @check_arguments
    def __init__(
        self,
        state_dim: Size,
        action_dim: Size,
        discrete: bool,
        gammas: Tensor | Sequence[float],
        num_critics: Size,
        d_hidden: Size = 256,
        n_layers: Size = 2,
        dropout_p: Probability = 0.0,
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__(
            state_dim=state_dim,
            action_dim=action_dim,
            discrete=discrete,
            gammas=gammas,
            num_critics=num_critics,
        )
        self.net = EnsembleMLP(
            num_critics,
            state_dim if discrete else state_dim + 1 + action_dim,
            d_hidden,
            n_layers,
            self.num_gammas * action_dim if discrete else 1,
            dropout_p=dropout_p,
            activation=activation,
        )

    def all_action_values(self, state: Tensor) -> Tensor:
        """Values of all discrete actions: (B, L, S) -> (B, L, C, G, A)."""
        values: Tensor = self.net(state).unflatten(-1, (self.num_gammas, self.action_dim))
        return values.permute(1, 2, 0, 3, 4)

    def critic_network_forward(
        self, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """State (B, L, S) and action (K, B, L, G, A) -> values (K, B, L, C, G, 1)."""
        if self.discrete:
            values = self.all_action_values(state)
            return expected_values(values, action)
        return state_action_mlp(self.net, state, self.gammas, action.clamp(-0.999, 0.999))


def expected_values(values: Tensor, probs: Tensor) -> Tensor:
    """Values (B, L, C, G, A) under probabilities or one-hot actions (K, B, L, G, A) -> (K, B, L, C, G, 1)."""
    return (values * probs.to(values.dtype).unsqueeze(3)).sum(dim=-1, keepdim=True)
