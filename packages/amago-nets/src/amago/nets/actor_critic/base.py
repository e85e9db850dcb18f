"""Base classes of actor and critic heads.

Shapes: B batch, L timesteps, G discounts, C critics, A action width, K action samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from amago.nets.arguments import Size, check_arguments
from amago.nets.policy_dists import Discrete, PolicyOutput

PolicyType = Callable[..., PolicyOutput]


def _as_gammas(gammas: Tensor | Sequence[float]) -> Tensor:
    """Discounts as a float tensor (G,); ValueError if there are none."""
    tensor = torch.as_tensor(gammas, dtype=torch.float32).detach().clone()
    if tensor.dim() != 1 or not len(tensor):
        raise ValueError(f"gammas must be a non-empty list of discounts, got {gammas!r}")
    if not bool(((tensor >= 0) & (tensor <= 1)).all()):
        raise ValueError(f"gammas must be discounts between 0 and 1, got {gammas!r}")
    return tensor


class BaseActorHead(nn.Module, ABC):
    """An actor: a network from state to the parameters of one action distribution per discount.

    Subclasses build their network in `__init__`, with `num_gammas` times `policy_dist.input_dimension`
    outputs, and override `actor_network_forward`.

    Args:
        state_dim: width of the state vector.
        action_dim: width A of the action representation.
        discrete: whether an action is a single choice among `action_dim`.
        gammas: the G discounts.
        continuous_dist_type: distribution used if not `discrete`, called with `d_action`.
        discrete_dist_type: distribution used if `discrete`, called with `d_action`.

    Raises:
        ValueError: if the distribution does not fit `discrete`, or `gammas` is empty or outside [0, 1].
    """

    gammas: Tensor

    @check_arguments
    def __init__(
        self,
        state_dim: Size,
        action_dim: Size,
        discrete: bool,
        gammas: Tensor | Sequence[float],
        continuous_dist_type: PolicyType,
        discrete_dist_type: PolicyType = Discrete,
    ) -> None:
        super().__init__()
        self.state_dim = state_dim
        self.action_dim = action_dim
        self.discrete = discrete
        self.register_buffer("gammas", _as_gammas(gammas), persistent=False)
        self.num_gammas = len(self.gammas)
        self.policy_dist = (discrete_dist_type if discrete else continuous_dist_type)(d_action=action_dim)
        if self.policy_dist.is_discrete != discrete:
            argument = "discrete_dist_type" if discrete else "continuous_dist_type"
            raise ValueError(
                f"{argument}={type(self.policy_dist).__name__} does not fit an actor with discrete={discrete}: "
                f"its is_discrete is {self.policy_dist.is_discrete}"
            )

    @property
    def actions_differentiable(self) -> bool:
        """Whether samples of the policy are differentiable."""
        return self.policy_dist.actions_differentiable

    def forward(
        self,
        state: Tensor,
        log_dict: dict[str, Any] | None = None,
        straight_from_obs: dict[str, Tensor] | None = None,
    ) -> Distribution:
        """The action distributions, batch shape (B, L, G), for states (B, L, state_dim).

        Args:
            state: output of the trajectory encoder.
            log_dict: dict to which metrics are added, if given.
            straight_from_obs: observations that are passed to the actor directly, by key.
        """
        params = self.actor_network_forward(state, log_dict=log_dict, straight_from_obs=straight_from_obs)
        return self.policy_dist(params, log_dict=log_dict)

    @abstractmethod
    def actor_network_forward(
        self,
        state: Tensor,
        log_dict: dict[str, Any] | None = None,
        straight_from_obs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Distribution parameters (B, L, G, policy_dist.input_dimension)."""

    def split_gammas(self, flat: Tensor) -> Tensor:
        """A network's output (..., G · P) split by discount, (..., G, P)."""
        return flat.reshape(*flat.shape[:-1], self.num_gammas, self.policy_dist.input_dimension)


class BaseCriticHead(nn.Module, ABC):
    """An ensemble of C critics: a network from state and action to a value per critic and discount.

    Args:
        state_dim: width of the state vector.
        action_dim: width A of the action representation.
        discrete: whether an action is a single choice among `action_dim`.
        gammas: the G discounts.
        num_critics: number C of critics.

    Raises:
        ValueError: if `num_critics` is below 1, or `gammas` is empty or outside [0, 1].
    """

    gammas: Tensor

    @check_arguments
    def __init__(
        self,
        state_dim: Size,
        action_dim: Size,
        discrete: bool,
        gammas: Tensor | Sequence[float],
        num_critics: Size,
    ) -> None:
        super().__init__()
        self.state_dim = state_dim
        self.action_dim = action_dim
        self.discrete = discrete
        self.register_buffer("gammas", _as_gammas(gammas), persistent=False)
        self.num_gammas = len(self.gammas)
        self.num_critics = num_critics

    def forward(self, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None) -> Any:
        """The critics' output for states (B, L, state_dim) and actions (K, B, L, G, A).

        Critics that regress returns give values (K, B, L, C, G, 1); distributional critics give a distribution of
        batch shape (K, B, L, C, G).
        """
        return self.critic_network_forward(state, action, log_dict=log_dict)

    @abstractmethod
    def critic_network_forward(
        self, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Any:
        """Computes `forward`."""
