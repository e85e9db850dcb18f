"""`NCriticsTwoHot`: an ensemble of critics that classify returns into bins, for all discounts at once.

Shapes: B batch, L sequence, S state width, K action samples, C critics, G discounts, A action width, n bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import gin
import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from amago.kernels import Bins, hl_gauss_cross_entropy, two_hot_cross_entropy, two_hot_mean
from amago.kernels.two_hot.reference import hl_gauss_labels, two_hot_labels
from amago.nets.activations import Activation
from amago.nets.actor_critic.base import BaseCriticHead
from amago.nets.actor_critic.critic import state_action_mlp
from amago.nets.actor_critic.ensemble import EnsembleMLP
from amago.nets.arguments import Positive, Probability, Size, check_arguments
from amago.nets.precision import at_least_float32

DEFAULT_RETURN_LIMIT = 100_000.0
_INIT_WIDTH = 4.0  # standard deviation, in bins, of the initial prediction of a critic with an `init_value`


class BinDist:
    """A categorical distribution over bins of returns, given by unnormalised logits.

    Args:
        raw_logits: unnormalised log-probabilities (..., n).
        bins: the returns that the classes represent.
    """

    def __init__(self, raw_logits: Tensor, bins: Bins) -> None:
        self.raw_logits = raw_logits
        self.bins = bins

    @property
    def logits(self) -> Tensor:
        """log-probabilities (..., n)."""
        return F.log_softmax(self.raw_logits, dim=-1)

    @property
    def probs(self) -> Tensor:
        """Probabilities (..., n)."""
        return torch.softmax(self.raw_logits, dim=-1)


@gin.configurable(module="amago.nets.actor_critic")
class NCriticsTwoHot(BaseCriticHead):
    """An ensemble of state-action values trained by classification (Farebrother et al. 2024).

    The input is state, discount and action; discrete actions are one-hot vectors. The output is a distribution
    over bins of returns.

    Args:
        state_dim: S.
        action_dim: A.
        gammas: discounts (G,).
        discrete: whether an action is a single choice, passed as a one-hot vector.
        num_critics: C.
        d_hidden: hidden width.
        n_layers: number of hidden layers.
        dropout_p: dropout after each hidden activation.
        activation: activation of the hidden layers.
        min_return: the lowest bin, in returns times the agent's `reward_multiplier`; -100,000 by default.
        max_return: the highest bin; 100,000 by default.
        output_bins: number n of bins.
        use_symlog: space the bins evenly in symlog(return), for a high resolution of small returns.
        label_type: "twohot" or "hlgauss", see `amago.kernels`.
        sigma: standard deviation of "hlgauss" labels, in bin widths.
        init_value: return that the critics predict initially, by the bias of the output layer; None keeps the
            default initialisation.

    Raises:
        ValueError: if the support is empty, `init_value` lies outside it, `label_type` is unknown, or `sigma` is
            not positive.
    """

    @check_arguments
    def __init__(
        self,
        state_dim: Size,
        action_dim: Size,
        gammas: Tensor | Sequence[float],
        discrete: bool,
        num_critics: Size,
        d_hidden: Size = 256,
        n_layers: Size = 2,
        dropout_p: Probability = 0.0,
        activation: Activation = "leaky_relu",
        min_return: float | None = None,
        max_return: float | None = None,
        output_bins: Annotated[int, Ge(2), Le(2**20)] = 128,
        use_symlog: bool = True,
        label_type: Literal["twohot", "hlgauss"] = "twohot",
        sigma: Positive = 0.75,
        init_value: float | None = None,
    ) -> None:
        super().__init__(
            state_dim=state_dim,
            action_dim=action_dim,
            discrete=discrete,
            gammas=gammas,
            num_critics=num_critics,
        )
        self.label_type = label_type
        self.sigma = sigma
        self.bins = _support(min_return, max_return, output_bins, use_symlog)
        self.net = EnsembleMLP(
            num_critics,
            state_dim + 1 + action_dim,
            d_hidden,
            n_layers,
            output_bins,
            dropout_p=dropout_p,
            activation=activation,
        )
        if init_value is not None:
            self._set_initial_value(init_value)

    def _set_initial_value(self, init_value: float) -> None:
        """Sets the output bias to the log-density of a normal distribution around `init_value`."""
        bins = self.bins
        if not bins.low <= init_value <= bins.high:
            raise ValueError(
                f"init_value must lie between min_return={bins.low} and max_return={bins.high}, got {init_value}"
            )
        positions = torch.arange(bins.n, dtype=torch.float64)
        centre = bins.position(torch.tensor(init_value, dtype=torch.float64))
        with torch.no_grad():
            self.net.output_layer.bias.copy_(-((positions - centre) ** 2) / (2.0 * _INIT_WIDTH**2))

    def critic_network_forward(
        self, state: Tensor, action: Tensor, log_dict: dict[str, Any] | None = None
    ) -> BinDist:
        """State (B, L, S) and action (K, B, L, G, A) -> a distribution of batch shape (K, B, L, C, G)."""
        logits = state_action_mlp(self.net, state, self.gammas, action.clamp(-0.999, 0.999))
        return BinDist(logits, self.bins)  # (K, B, L, C, G, n)

    def bin_dist_to_raw_vals(self, bin_dist: Any) -> Tensor:
        """The value of each distribution (..., n), as (..., 1), in units of `min_return`.

        The expectation is taken in the space of the bins, symlog by default, and mapped back to a return.
        """
        return two_hot_mean(_raw_logits(bin_dist), self.bins).unsqueeze(-1)

    def raw_vals_to_labels(self, raw_td_target: Tensor) -> Tensor:
        """Dense labels of returns: (..., 1) -> (..., n).

        `cross_entropy` computes the loss without them, unless a subclass overrides this method.
        """
        target = at_least_float32(raw_td_target.squeeze(-1))
        if self.label_type == "hlgauss":
            return hl_gauss_labels(target, self.bins, self.sigma)
        return two_hot_labels(target, self.bins)

    def cross_entropy(self, bin_dist: Any, raw_td_target: Tensor) -> Tensor:
        """The loss of each distribution (..., C, G, n) against returns (..., 1, G, 1): (..., C, G, 1), in nats.

        Targets are clamped to the support and carry no gradient; NaN gives NaN.
        """
        if type(self).raw_vals_to_labels is not NCriticsTwoHot.raw_vals_to_labels:
            labels = self.raw_vals_to_labels(raw_td_target).detach()
            log_probs = F.log_softmax(_raw_logits(bin_dist).to(labels.dtype), dim=-1)
            return -(labels * log_probs).sum(dim=-1, keepdim=True)
        logits, target = _raw_logits(bin_dist), raw_td_target.squeeze(-1)
        if self.label_type == "hlgauss":
            return hl_gauss_cross_entropy(logits, target, self.bins, sigma=self.sigma).unsqueeze(-1)
        return two_hot_cross_entropy(logits, target, self.bins).unsqueeze(-1)


def _raw_logits(bin_dist: Any) -> Tensor:
    """Logits (..., n) of a `BinDist`, or those of a `torch.distributions.Categorical`."""
    logits: Tensor = bin_dist.raw_logits if isinstance(bin_dist, BinDist) else bin_dist.logits
    return logits


def _support(low: float | None, high: float | None, n: int, symlog: bool) -> Bins:
    """The bins between two returns, ±100,000 by default."""
    low = -DEFAULT_RETURN_LIMIT if low is None else float(low)
    high = DEFAULT_RETURN_LIMIT if high is None else float(high)
    if not low < high:
        raise ValueError(f"min_return must be smaller than max_return, got {low} and {high}")
    return Bins(low, high, n, symlog=symlog)
