"""Actor heads: an MLP, and a residual network for large models.

Shapes: B batch, L timesteps, G discounts, P parameters of the action distribution.
"""

from collections.abc import Sequence
from typing import Any

import gin
import torch.nn.functional as F
from torch import Tensor, nn

from amago.nets.activations import Activation, activation_switch
from amago.nets.actor_critic.base import BaseActorHead, PolicyType
from amago.nets.arguments import Count, Probability, Size, check_arguments
from amago.nets.ff import MLP
from amago.nets.linear import Linear
from amago.nets.normalization import Norm, Normalization
from amago.nets.policy_dists import Discrete, TanhGaussian
from amago.nets.utils import add_activation_log


@gin.configurable(module="amago.nets.actor_critic")
class Actor(BaseActorHead):
    """An MLP from state to the parameters of all G policies.

    Args:
        state_dim: width of the state vector.
        action_dim: width of the action representation.
        discrete: whether an action is a single choice among `action_dim`.
        gammas: the G discounts.
        n_layers: number of hidden layers.
        d_hidden: width of a hidden layer.
        activation: see `activation_switch`.
        dropout_p: probability of dropping a hidden activation.
        continuous_dist_type: distribution used if not `discrete`.
        discrete_dist_type: distribution used if `discrete`.
    """

    @check_arguments
    def __init__(
        self,
        state_dim: Size,
        action_dim: Size,
        discrete: bool,
        gammas: Tensor | Sequence[float],
        n_layers: Size = 2,
        d_hidden: Size = 256,
        activation: Activation = "leaky_relu",
        dropout_p: Probability = 0.0,
        continuous_dist_type: PolicyType = TanhGaussian,
        discrete_dist_type: PolicyType = Discrete,
    ) -> None:
        super().__init__(
            state_dim=state_dim,
            action_dim=action_dim,
            discrete=discrete,
            gammas=gammas,
            continuous_dist_type=continuous_dist_type,
            discrete_dist_type=discrete_dist_type,
        )
        self.base = MLP(
            d_inp=state_dim,
            d_hidden=d_hidden,
            n_layers=n_layers,
            d_output=self.num_gammas * self.policy_dist.input_dimension,
            activation=activation,
            dropout_p=dropout_p,
        )

    def actor_network_forward(
        self,
        state: Tensor,
        log_dict: dict[str, Any] | None = None,
        straight_from_obs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """(B, L, state_dim) to (B, L, G, P); `straight_from_obs` is not used."""
        params = self.split_gammas(self.base(state))
        add_activation_log("actor output", params, log_dict)
        return params


class ResidualBlock(nn.Sequential):
    """x + norm(linear(dropout(activation(norm(linear(x)))))).

    A Sequential only for the parameter names of saved policies: 0 and 3 are linear layers, 1 and 4 norms.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation, normalization: Norm | None, dropout_p: float
    ) -> None:
        super().__init__(
            Linear(d_model, d_ff),
            Normalization(normalization, d_ff),
            activation_switch(activation),
            Linear(d_ff, d_model),
            Normalization(normalization, d_model),
        )
        self.dropout_p = dropout_p

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self[2](self[1](self[0](x))), self.dropout_p, self.training)
        out: Tensor = x + self[4](self[3](hidden))
        return out


@gin.configurable(module="amago.nets.actor_critic")
class ResidualActor(BaseActorHead):
    """A residual network from state to the parameters of all G policies.

    Args:
        state_dim: width of the state vector.
        action_dim: width of the action representation.
        discrete: whether an action is a single choice among `action_dim`.
        gammas: the G discounts.
        feature_dim: width of the residual stream.
        residual_ff_dim: width of the hidden layer of a block.
        residual_blocks: number of blocks.
        activation: see `activation_switch`.
        normalization: see `Normalization`; used within the blocks.
        dropout_p: probability of dropping a hidden activation.
        continuous_dist_type: distribution used if not `discrete`.
        discrete_dist_type: distribution used if `discrete`.
    """

    @check_arguments
    def __init__(
        self,
        state_dim: Size,
        action_dim: Size,
        discrete: bool,
        gammas: Tensor | Sequence[float],
        feature_dim: Size = 256,
        residual_ff_dim: Size = 512,
        residual_blocks: Count = 2,
        activation: Activation = "leaky_relu",
        normalization: Norm | None = "layer",
        dropout_p: Probability = 0.0,
        continuous_dist_type: PolicyType = TanhGaussian,
        discrete_dist_type: PolicyType = Discrete,
    ) -> None:
        super().__init__(
            state_dim=state_dim,
            action_dim=action_dim,
            discrete=discrete,
            gammas=gammas,
            continuous_dist_type=continuous_dist_type,
            discrete_dist_type=discrete_dist_type,
        )
        self.inp = MLP(
            d_inp=state_dim,
            d_hidden=feature_dim,
            n_layers=1,
            d_output=feature_dim,
            activation=activation,
            dropout_p=dropout_p,
        )
        self.residual_blocks = nn.ModuleList(
            ResidualBlock(feature_dim, residual_ff_dim, activation, normalization, dropout_p)
            for _ in range(residual_blocks)
        )
        self.out = Linear(feature_dim, self.num_gammas * self.policy_dist.input_dimension)

    def actor_network_forward(
        self,
        state: Tensor,
        log_dict: dict[str, Any] | None = None,
        straight_from_obs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """(B, L, state_dim) to (B, L, G, P); `straight_from_obs` is not used."""
        features = self.inp(state)
        for block in self.residual_blocks:
            features = block(features)
        params = self.split_gammas(self.out(features))
        add_activation_log("actor output", params, log_dict)
        return params
