"""The agent for tasks whose returns differ in scale: critics classify returns instead of regressing them.

It is `Agent` but for four things, which are the methods below: critics return distributions over bins, their loss
is a cross-entropy that weighs small and large returns alike, discrete actions are vectors that the critics see,
and by default the actor only imitates the better half of the data, so that no scale of values reaches it.

Shapes: n real transitions of the batch side by side, K action samples, C critics, G discounts, A width of the
action representation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import torch
from torch import Tensor

from amago.agent.agent import Agent
from amago.agent.filters import binary_filter
from amago.agent.registry import register_agent
from amago.agent.transitions import Transitions
from amago.nets.actor_critic import Actor, BaseActorHead, BaseCriticHead, NCriticsTwoHot
from amago.nets.policy_dists import DiscreteLikeContinuous
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder


@register_agent("multitask")
@gin.configurable(module="amago.agent")
class MultiTaskAgent(Agent):
    """Off-policy actor-critic that does not depend on the scale of returns (Grigsby et al. 2024, AMAGO-2).

    Critics classify n-step returns into bins; the actor imitates transitions of positive advantage. With
    `online_coeff` > 0 it also follows the values' gradient, which PopArt's statistics scale.

    Args:
        obs_space, rl2_space, action_space, tstep_encoder_type, traj_encoder_type, max_seq_len: see `BaseAgent`.
        num_actions_for_value_in_actor_loss: actions sampled for the state's value, discrete ones too.
        popart: follow the statistics of returns, for the online loss.
        critic_type: constructed as in `Agent`; returns distributions over bins and decodes them
            (`bin_dist_to_raw_vals`, `cross_entropy`), as `NCriticsTwoHot` does.

    All other arguments are those of `Agent`; a gin binding of `Agent` does not reach this class.

    Raises:
        TypeError: if the critics do not classify.
        ValueError: as in `Agent`.
    """

    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        action_space: Any,
        tstep_encoder_type: type[TstepEncoder],
        traj_encoder_type: type[TrajEncoder],
        max_seq_len: int,
        num_critics: int = 4,
        num_critics_td: int = 2,
        online_coeff: float = 0.0,
        offline_coeff: float = 1.0,
        critic_loss_weight: float = 10.0,
        gamma: float = 0.999,
        reward_multiplier: float = 10.0,
        tau: float = 0.003,
        fake_filter: bool = False,
        num_actions_for_value_in_critic_loss: int = 1,
        num_actions_for_value_in_actor_loss: int = 3,
        fbc_filter_func: Callable[..., Tensor] = binary_filter,
        popart: bool = True,
        use_target_actor: bool = True,
        use_multigamma: bool = True,
        n_step: int = 1,
        actor_type: type[BaseActorHead] = Actor,
        critic_type: type[BaseCriticHead] = NCriticsTwoHot,
        pass_obs_keys_to_actor: list[str] | None = None,
    ) -> None:
        # By name and all of them, so that nothing is left for gin to take from the bindings of `Agent`.
        super().__init__(
            obs_space=obs_space,
            rl2_space=rl2_space,
            action_space=action_space,
            max_seq_len=max_seq_len,
            tstep_encoder_type=tstep_encoder_type,
            traj_encoder_type=traj_encoder_type,
            num_critics=num_critics,
            num_critics_td=num_critics_td,
            online_coeff=online_coeff,
            offline_coeff=offline_coeff,
            critic_loss_weight=critic_loss_weight,
            gamma=gamma,
            reward_multiplier=reward_multiplier,
            tau=tau,
            fake_filter=fake_filter,
            num_actions_for_value_in_critic_loss=num_actions_for_value_in_critic_loss,
            num_actions_for_value_in_actor_loss=num_actions_for_value_in_actor_loss,
            fbc_filter_func=fbc_filter_func,
            popart=popart,
            use_target_actor=use_target_actor,
            use_multigamma=use_multigamma,
            n_step=n_step,
            actor_type=actor_type,
            critic_type=critic_type,
            pass_obs_keys_to_actor=pass_obs_keys_to_actor,
        )

    def init_actor_critic(self) -> None:
        """Builds actor, critics and their targets; raises TypeError if the critics do not classify."""
        super().init_actor_critic()
        missing = [
            name for name in ("bin_dist_to_raw_vals", "cross_entropy") if not hasattr(self.critics, name)
        ]
        if missing:
            raise TypeError(
                f"critic_type must classify returns, as NCriticsTwoHot does, got {type(self.critics).__name__} "
                f"without {' and '.join(missing)}"
            )

    def _q_values(self, t: Transitions, log: dict[str, Any] | None) -> Tensor:
        """Decoded values of the recorded actions (1, n, C, G, 1), without gradient.

        The distributions that they come from are kept in `t` for the critics' loss.
        """
        action = t.action.unsqueeze(2).expand(-1, -1, len(self.gammas), -1).unsqueeze(0)  # (1, 1, n, G, A)
        t.q_dist = self.critics(t.state, action, log_dict=log)
        with torch.no_grad():
            return self._values(t.q_dist)[0]

    def _critic_error(self, t: Transitions, q_values: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the critics' bins against targets (1, n, 1, G, 1): (1, n, C, G, 1)."""
        critics: Any = self.critics
        loss: Tensor = critics.cross_entropy(t.q_dist, targets)[0]
        return loss

    def _policy_actions(self, dist: Any, num_samples: int, *, grad: bool = False) -> Tensor:
        """Sampled actions (K, 1, n, G, A): one-hot vectors if discrete, with straight-through gradients."""
        if self.discrete:
            dist = DiscreteLikeContinuous(dist)
        return self._sampled_actions(dist, num_samples, grad=grad)

    def _values(self, critic_output: Any) -> Tensor:
        """Expected returns (..., C, G, 1) of the critics' distributions, in the units of the targets."""
        critics: Any = self.critics
        values: Tensor = critics.bin_dist_to_raw_vals(critic_output)
        return values

    def _as_returns(self, values: Tensor) -> Tensor:
        """Decoded values are returns already."""
        return values

    def _normalized(self, values: Tensor) -> Tensor:
        """(Q - mu) / sigma."""
        return self.popart.normalize_values(values)
