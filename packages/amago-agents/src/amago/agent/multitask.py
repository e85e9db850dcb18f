"""`MultiTaskAgent`: `Agent` for tasks whose returns differ in scale, with critics that classify returns.

It differs from `Agent` in its `ClassificationHead`, whose cross-entropy treats small and large returns alike,
and in its defaults: the actor only imitates transitions of positive advantage, so its loss does not depend on
the scale of returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import gin
from annotated_types import Gt, Le
from torch import Tensor

from amago.agent.agent import Agent
from amago.agent.base import register_agent
from amago.agent.filters import binary_filter
from amago.agent.return_head import ClassificationHead, ReturnHead
from amago.nets.actor_critic import Actor, BaseActorHead, BaseCriticHead, NCriticsTwoHot
from amago.nets.arguments import NonNegative, Positive, Probability, Size, check_arguments
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder


@register_agent("multitask")
@gin.configurable(module="amago.agent")
class MultiTaskAgent(Agent):
    """Off-policy actor-critic that does not depend on the scale of returns (Grigsby et al. 2024, AMAGO-2).

    Critics classify n-step returns into bins; the actor imitates transitions of positive advantage. With
    `online_coeff` > 0 it also follows the gradient of the values, normalised by PopArt's statistics.

    Args:
        obs_space, rl2_space, action_space, tstep_encoder_type, traj_encoder_type, max_seq_len: see `BaseAgent`.
        num_actions_for_value_in_actor_loss: actions sampled for V(s), also for discrete actions.
        popart: track the statistics of returns, which normalise the values in the online loss.
        critic_type: constructed as in `Agent`; must have `bin_dist_to_raw_vals` and `cross_entropy`, as
            `NCriticsTwoHot` does.

    All other arguments are those of `Agent`; a gin binding of `Agent` does not reach this class.

    Raises:
        TypeError: if the critics lack `bin_dist_to_raw_vals` or `cross_entropy`.
        ValueError: as in `Agent`.
    """

    return_head_type: type[ReturnHead] = ClassificationHead

    @check_arguments
    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        action_space: Any,
        tstep_encoder_type: Callable[..., TstepEncoder],
        traj_encoder_type: Callable[..., TrajEncoder],
        max_seq_len: Size,
        num_critics: Size = 4,
        num_critics_td: Size = 2,
        online_coeff: NonNegative = 0.0,
        offline_coeff: NonNegative = 1.0,
        critic_loss_weight: NonNegative = 10.0,
        gamma: Probability = 0.999,
        reward_multiplier: Positive = 10.0,
        tau: Annotated[float, Gt(0), Le(1)] = 0.003,
        fake_filter: bool = False,
        num_actions_for_value_in_critic_loss: Size = 1,
        num_actions_for_value_in_actor_loss: Size = 3,
        fbc_filter_func: Callable[..., Tensor] = binary_filter,
        popart: bool = True,
        use_target_actor: bool = True,
        use_multigamma: bool = True,
        n_step: Size = 1,
        actor_type: Callable[..., BaseActorHead] = Actor,
        critic_type: Callable[..., BaseCriticHead] = NCriticsTwoHot,
        pass_obs_keys_to_actor: Sequence[str] | None = None,
    ) -> None:
        # Every argument is passed, so that gin bindings of `Agent` do not apply here.
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
