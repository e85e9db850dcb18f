"""`Agent`: off-policy actor-critic on sequences, trained for many discounts at once.

`Agent.forward` is the algorithm; `return_head` implements the parts that differ between types of critics.

Shapes: B batch, T transitions, n real transitions of the batch, K action samples, C critics, G discounts, A
width of the action representation, S state width.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import gin
import torch
from annotated_types import Gt, Le
from torch import Tensor, nn

from amago.agent import losses
from amago.agent.acting import choose_actions
from amago.agent.base import BaseAgent, register_agent
from amago.agent.batch import Batch, Transitions, gather_from_batch, scatter_to_batch
from amago.agent.diagnostics import extremes, grad_norm, percentiles
from amago.agent.filters import binary_filter, with_bindings
from amago.agent.gammas import Multigammas
from amago.agent.return_head import RecordedValues, RegressionHead, ReturnHead
from amago.nets.actor_critic import Actor, BaseActorHead, BaseCriticHead, NCritics, PopArtLayer
from amago.nets.arguments import NonNegative, Positive, Probability, Size, check_arguments
from amago.nets.data_parallel import relative_share
from amago.nets.masking import masked_avg
from amago.nets.policy_dists import Multibinary, MultiDiscrete
from amago.nets.precision import at_least_float32
from amago.nets.registry import did_you_mean
from amago.nets.specs import as_obs_spec
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder

_PERCENTS = (5, 25, 50, 75, 95)


@register_agent("agent")
@gin.configurable(module="amago.agent")
class Agent(BaseAgent):
    """Off-policy actor-critic with an ensemble of critics over many discounts (Grigsby et al. 2024, appendix A).

    Critics regress n-step returns normalised by PopArt. The actor is trained by the critics' gradient
    (`online_coeff`) and by filtered behaviour cloning (`offline_coeff`). All losses train the encoders.

    Args:
        obs_space, rl2_space, action_space, max_seq_len, tstep_encoder_type, traj_encoder_type: see `BaseAgent`.
        num_critics: size C of the ensemble.
        num_critics_td: size of the random subset of critics for each target.
        online_coeff: weight of the policy-gradient loss; 0 skips it.
        offline_coeff: weight of filtered behaviour cloning; 0 skips it.
        critic_loss_weight: weight of the critic loss against the actor loss.
        gamma: discount of the acting policy, in [0, 1].
        reward_multiplier: positive factor of the rewards in the loss.
        tau: step size of the target networks, in (0, 1].
        fake_filter: clone all actions with weight 1. If `online_coeff` is 0, the critics are then not trained.
        num_actions_for_value_in_critic_loss: action samples for the value of the next state.
        num_actions_for_value_in_actor_loss: action samples for V(s) and for the online loss.
        fbc_filter_func: weights of behaviour cloning from advantages (B, T, G, 1), see `amago.agent.filters`; any
            callable, for example an object with state.
        popart: normalise the critics' targets by PopArt (van Hasselt et al. 2016).
        use_target_actor: compute targets with the actions of a target copy of the actor.
        use_multigamma: train for the discounts of `Multigammas` in addition to `gamma`.
        n_step: number of rewards in the n-step returns, at least 1.
        actor_type: class, `functools.partial` or function, called with `state_dim`, `action_dim`, `discrete`,
            `gammas`, and `continuous_dist_type` for MultiBinary and MultiDiscrete actions.
        critic_type: class, partial or function, called with `state_dim`, `action_dim`, `discrete`, `gammas` and
            `num_critics`.
        pass_obs_keys_to_actor: observation keys that are passed to the actor, as `straight_from_obs`.

    Raises:
        ValueError: if a setting is out of range, or `online_coeff` > 0 with a policy whose samples are not
            differentiable.
    """

    return_head_type: type[ReturnHead] = RegressionHead
    gammas: Tensor

    @check_arguments
    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        action_space: Any,
        max_seq_len: Size,
        tstep_encoder_type: Callable[..., TstepEncoder],
        traj_encoder_type: Callable[..., TrajEncoder],
        num_critics: Size = 4,
        num_critics_td: Size = 2,
        online_coeff: NonNegative = 1.0,
        offline_coeff: NonNegative = 0.1,
        critic_loss_weight: NonNegative = 10.0,
        gamma: Probability = 0.999,
        reward_multiplier: Positive = 10.0,
        tau: Annotated[float, Gt(0), Le(1)] = 0.003,
        fake_filter: bool = False,
        num_actions_for_value_in_critic_loss: Size = 1,
        num_actions_for_value_in_actor_loss: Size = 1,
        fbc_filter_func: Callable[..., Tensor] = binary_filter,
        popart: bool = True,
        use_target_actor: bool = True,
        use_multigamma: bool = True,
        n_step: Size = 1,
        actor_type: Callable[..., BaseActorHead] = Actor,
        critic_type: Callable[..., BaseCriticHead] = NCritics,
        pass_obs_keys_to_actor: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            obs_space=obs_space,
            rl2_space=rl2_space,
            action_space=action_space,
            max_seq_len=max_seq_len,
            tstep_encoder_type=tstep_encoder_type,
            traj_encoder_type=traj_encoder_type,
        )
        self.num_critics = num_critics
        self.num_critics_td = num_critics_td
        self.online_coeff = online_coeff
        self.offline_coeff = offline_coeff
        self.critic_loss_weight = critic_loss_weight
        self.gamma = gamma
        self.reward_multiplier = reward_multiplier
        self.tau = tau
        self.fake_filter = fake_filter
        self.num_actions_for_value_in_critic_loss = num_actions_for_value_in_critic_loss
        self.num_actions_for_value_in_actor_loss = num_actions_for_value_in_actor_loss
        self.fbc_filter_func = with_bindings(fbc_filter_func)
        self.use_target_actor = use_target_actor
        self.n_step = n_step
        self.actor_type = actor_type
        self.critic_type = critic_type
        self.pass_obs_keys_to_actor = list(pass_obs_keys_to_actor or ())
        self._check_settings()
        auxiliary = Multigammas().discrete if self.discrete else Multigammas().continuous
        gammas = torch.tensor([*auxiliary, gamma] if use_multigamma else [gamma], dtype=torch.float32)
        self.register_buffer("gammas", gammas, persistent=False)
        self.popart = PopArtLayer(gammas=len(gammas), enabled=popart)
        self.init_actor_critic()
        self.init_extra_networks()
        self._trained_networks = {name.partition(".")[0] for name, _ in self.named_parameters()}

    def _check_settings(self) -> None:
        """Raises ValueError for settings that contradict each other."""
        if self.num_critics_td > self.num_critics:
            raise ValueError(
                f"num_critics_td must be at most num_critics ({self.num_critics}), got {self.num_critics_td}"
            )
        if self.online_coeff + self.offline_coeff == 0:
            raise ValueError("online_coeff and offline_coeff must not both be 0: the actor would not learn")
        keys = as_obs_spec(self.obs_space)
        if unknown := [key for key in self.pass_obs_keys_to_actor if key not in keys]:
            raise ValueError(
                f"pass_obs_keys_to_actor has {unknown}, but the keys of the observation are {sorted(keys)}."
                f"{did_you_mean(unknown[0], keys)}"
            )

    def init_actor_critic(self) -> None:
        """Builds actor, critics, their targets and the return head."""
        sizes: dict[str, Any] = {
            "state_dim": self.state_dim,
            "action_dim": self.action_dim,
            "discrete": self.discrete,
            "gammas": self.gammas,
        }
        self.actor = self.actor_type(**sizes, **self._distribution_choice())
        if self.online_coeff > 0 and not self.actor.actions_differentiable:
            raise ValueError(
                f"online_coeff must be 0, got {self.online_coeff}: samples of "
                f"{type(self.actor.policy_dist).__name__} carry no gradient. Set "
                f"{type(self).__name__}.online_coeff = 0 and offline_coeff = 1, or choose another distribution"
            )
        self.critics = self.critic_type(**sizes, num_critics=self.num_critics)
        self.return_head = self.return_head_type(self.popart, self.discrete)
        self.return_head.check_critics(self.critics)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)

    def _distribution_choice(self) -> dict[str, Any]:
        """The actor's argument `continuous_dist_type` for the action space, as keywords.

        Empty if the default suits the action space, gin or a `functools.partial` sets the argument, or the actor
        does not take it.
        """
        choices: dict[str, Any] = {
            "multibinary": Multibinary,
            "multidiscrete": MultiDiscrete.with_sizes(self.action_spec.sizes),
        }
        choice = choices.get(self.action_spec.kind)
        if choice is None:
            return {}
        actor_type: Any = self.actor_type
        set_by_user: set[str] = set()
        while isinstance(actor_type, functools.partial):
            set_by_user |= actor_type.keywords.keys()
            actor_type = actor_type.func
        for cls in getattr(actor_type, "__mro__", (actor_type,)):
            with contextlib.suppress(ValueError):  # not configurable
                set_by_user |= gin.get_bindings(cls, resolve_references=False).keys()
        accepts = any(
            parameter.name == "continuous_dist_type" or parameter.kind is parameter.VAR_KEYWORD
            for parameter in inspect.signature(actor_type).parameters.values()
        )
        if not accepts or "continuous_dist_type" in set_by_user:
            return {}
        return {"continuous_dist_type": choice}

    def init_extra_networks(self) -> None:
        """Hook: builds additional networks of a subclass, which the optimizer trains."""

    @property
    def trainable_params(self) -> list[nn.Parameter]:
        """The parameters of encoders, actor, critics and extra networks, without frozen ones.

        A network that a subclass adds after `Agent.__init__`, for example a slow copy of an encoder, is not
        trained unless the subclass adds its parameters here.
        """
        return [
            parameter
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and name.partition(".")[0] in self._trained_networks
        ]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As in torch; ignores the additional copy of the critics in policies saved by AMAGO 3."""
        kept = {key: value for key, value in state_dict.items() if not key.startswith("maximized_critics.")}
        return super().load_state_dict(kept, strict=strict, assign=assign)

    def get_actions(
        self,
        obs: dict[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        sample: bool = True,
    ) -> tuple[Tensor, Any]:
        """Actions of the policy for discount `gamma`; see `BaseAgent.get_actions`."""
        with torch.no_grad():
            states, hidden_state = self.get_state_embedding(
                obs, rl2s=rl2s, time_idxs=time_idxs, hidden_state=hidden_state
            )
            dist = self.actor(states, straight_from_obs=self._direct_obs(obs))
            return choose_actions(dist, self.action_spec, sample), hidden_state

    def _direct_obs(self, obs: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The observations that the actor receives directly, by key; None without `pass_obs_keys_to_actor`."""
        if not self.pass_obs_keys_to_actor:
            return None
        return {key: obs[key] for key in self.pass_obs_keys_to_actor}

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        """Computes the loss of a batch.

        It is the actor loss + `critic_loss_weight` * the critic loss, each a mean over the real transitions.

        Args:
            batch: training batch.
            log_step: write metrics to `update_info`.

        Returns:
            The scalar loss, ().
        """
        self.update_info = {}
        log = self.update_info if log_step else None
        t = self._encode_transitions(batch, log)

        recorded, critic_loss = None, t.state.new_zeros(())
        if self.online_coeff > 0 or not self.fake_filter:
            recorded = self._evaluate_recorded(t, log)
            targets = self.td_targets(batch, t)  # (1, n, 1, G, 1)
            self.popart.update_stats(targets, mask=torch.ones_like(targets, dtype=torch.bool))
            critic_error = self.return_head.critic_error(self.critics, recorded, targets)  # (1, n, C, G, 1)
            critic_loss = self._masked_mean(critic_error, t, batch, self.edit_critic_mask)
            if log is not None:
                self._log_values(log, recorded, targets)

        dist = self.actor(t.state, log_dict=log, straight_from_obs=t.direct_obs)
        online = offline = policy_values = None
        if recorded is not None:
            policy_values = self._policy_values(t, dist, recorded)  # (K, 1, n, C, G, 1)
        if self.online_coeff > 0 and policy_values is not None:
            online = losses.online_actor_loss(self.return_head.normalize(policy_values))
        if self.offline_coeff > 0:
            weights = self._filter_weights(t, batch, recorded, policy_values, log)
            log_prob = self._log_prob(dist, t.action)
            offline = losses.offline_actor_loss(weights, log_prob)
            if log is not None:
                log["Log Prob of Buffer Actions"] = log_prob.detach().mean()
        actor_error = losses.combine_actor_losses(online, offline, self.online_coeff, self.offline_coeff)
        actor_loss = self._masked_mean(actor_error, t, batch, self.edit_actor_mask)

        loss = actor_loss + self.critic_loss_weight * critic_loss
        if log is not None:
            if self.discrete:
                log["Policy Entropy"] = dist.entropy().detach().mean()
            self._log_losses(log, batch, t, loss, actor_loss, critic_loss)
        return loss

    def _encode_transitions(self, batch: Batch, log: dict[str, Any] | None) -> Transitions:
        """Encodes the batch and gathers its real transitions."""
        states = self.encode_batch(batch, log)
        return Transitions.of(
            batch,
            states,
            to_action=self.actor.policy_dist.action_from_buffer,
            reward_multiplier=self.reward_multiplier,
            direct_obs=self._direct_obs(batch.obs),
        )

    def _evaluate_recorded(self, t: Transitions, log: dict[str, Any] | None) -> RecordedValues:
        """The critics' values of the recorded actions, for all discounts."""
        action = t.action.unsqueeze(2).expand(-1, -1, len(self.gammas), -1).unsqueeze(0)  # (1, 1, n, G, A)
        return self.return_head.evaluate_recorded(self.critics, t.state, action, log)

    @torch.no_grad()
    def td_targets(self, batch: Batch, t: Transitions) -> Tensor:
        """n-step targets of the critics, (1, n, 1, G, 1), in units of returns times the reward multiplier."""
        actor = self.target_actor if self.use_target_actor else self.actor
        dist = actor(t.next_state, straight_from_obs=t.next_direct_obs)
        action = self.return_head.policy_actions(dist, self.num_actions_for_value_in_critic_loss)
        values = self.return_head.raw_values(self.target_critics, self.target_critics(t.next_state, action))
        values = at_least_float32(self.return_head.denormalize(values).mean(0))  # (1, n, C, G, 1)
        reduce = "min" if self.online_coeff > 0 else "mean"
        values = losses.random_critic_subset(values, self.num_critics_td, reduce)  # (1, n, 1, G, 1)
        reward, done = (x.view(1, -1, 1, 1, 1) for x in (t.reward, t.done))
        gamma = self.gammas.unsqueeze(-1)  # (G, 1)
        if self.n_step == 1:
            return losses.nstep_return(reward, done, values, gamma, 1, torch.ones_like(done))
        reward, done, values = (scatter_to_batch(x, t.flat_idxs, batch) for x in (reward, done, values))
        mask = batch.transition_mask[..., None, None]  # (B, T, 1, 1, 1)
        returns = losses.nstep_return(reward, done, values, gamma, self.n_step, mask)
        return gather_from_batch(returns, t.flat_idxs)

    def _policy_values(self, t: Transitions, dist: Any, recorded: RecordedValues) -> Tensor:
        """Raw values of the policy's own actions, (K, 1, n, C, G, 1).

        The online loss moves the actor and, through it, the encoders, but not the critics; without that loss
        nothing carries a gradient.
        """
        grad = self.online_coeff > 0
        action = self.return_head.policy_actions(dist, self.num_actions_for_value_in_actor_loss, grad=grad)
        # torch.compile fails at `set_grad_enabled(grad)` after a change of `online_coeff`, then a symbol for it.
        with contextlib.nullcontext() if grad else torch.no_grad():
            return self.return_head.policy_values(self.critics, recorded, t.state, action)

    def _filter_weights(
        self,
        t: Transitions,
        batch: Batch,
        recorded: RecordedValues | None,
        policy_values: Tensor | None,
        log: dict[str, Any] | None,
    ) -> Tensor:
        """The weight of each transition in behaviour cloning: (1, n, G, 1), or a single 1 with `fake_filter`.

        `fbc_filter_func` receives advantages in the shape of the batch, (B, T, G, 1) with 0 in padding, so that
        a filter may combine them with other tensors of the batch.
        """
        if self.fake_filter or recorded is None or policy_values is None:
            return self.gammas.new_ones(())
        with torch.no_grad():
            advantages = losses.advantage(recorded.values, policy_values.mean(0))  # (1, n, G, 1)
            in_batch = scatter_to_batch(advantages, t.flat_idxs, batch)  # (B, T, G, 1)
            weights = self.fbc_filter_func(in_batch).broadcast_to(in_batch.shape)
            weights = gather_from_batch(weights, t.flat_idxs)
        if log is not None:
            self._log_advantages(log, advantages, weights)
        return weights

    def _log_prob(self, dist: Any, action: Tensor) -> Tensor:
        """log pi of the recorded actions under the policy of every discount, (1, n, G, 1)."""
        action = action.unsqueeze(2)  # (1, n, 1, A)
        if self.discrete:
            log_prob: Tensor = dist.log_prob(action.argmax(-1))
            return log_prob.unsqueeze(-1)
        log_prob = dist.log_prob(action.expand(-1, -1, len(self.gammas), -1))
        # The mean over bits keeps the loss of wide binary actions in the range of the others.
        return log_prob.mean(-1, keepdim=True) if self.multibinary else log_prob.sum(-1, keepdim=True)

    def _masked_mean(
        self,
        error: Tensor,
        t: Transitions,
        batch: Batch,
        edit_mask: Callable[[Batch, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """The mean of an error (1, n, ..., G, 1) over the entries that the mask hook keeps, ().

        The learner weighs the loss of a data-parallel process by its real transitions. A mask hook may keep
        another share of them in each process, so the mean is multiplied by the share here relative to that in all.
        """
        full = scatter_to_batch(at_least_float32(error), t.flat_idxs, batch)  # (B, T, ..., G, 1)
        mask = batch.transition_mask
        # Contiguous, since a hook may edit it in place.
        mask = mask.view(*mask.shape[:2], *(1 for _ in full.shape[2:])).expand_as(full).contiguous()
        kept = edit_mask(batch, full, mask)
        return masked_avg(full, kept, dim=None) * relative_share(kept, len(t.flat_idxs))

    def hard_sync_targets(self) -> None:
        """Copies the parameters of the online networks into their target networks."""
        self._full_copy(self.target_actor, self.actor)
        self._full_copy(self.target_critics, self.critics)

    def soft_sync_targets(self) -> None:
        """Moves the target networks towards the online networks: target += tau * (online - target)."""
        self._ema_copy(self.target_actor, self.actor)
        self._ema_copy(self.target_critics, self.critics)

    def _full_copy(self, target: nn.Module, online: nn.Module) -> None:
        """Copies the parameters of `online` into `target`, a network of the same architecture; not its buffers."""
        with torch.no_grad():
            torch._foreach_copy_(list(target.parameters()), list(online.parameters()))

    @torch.no_grad()
    def _ema_copy(self, target: nn.Module, online: nn.Module, tau: float | None = None) -> None:
        """target += tau * (online - target) in one fused operation; `tau` is the agent's unless given."""
        tau = self.tau if tau is None else tau
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)

    @torch.no_grad()
    def get_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Q(s, a) of the recorded actions and V(s), each (B, T, G, 1), 0 in padding.

        Both are means over the critics of raw values, as in training: `fbc_filter_func(q - v)` is the weight of a
        transition. Computed in eval mode; running statistics do not change.
        """
        was_training = self.training
        self.eval()
        try:
            t = self._encode_transitions(batch, None)
            dist = self.actor(t.state, straight_from_obs=t.direct_obs)
            recorded = self._evaluate_recorded(t, None)
            q = recorded.values.mean(dim=-3)
            v = self._policy_values(t, dist, recorded).mean(0).mean(dim=-3)
        finally:
            self.train(was_training)
        return scatter_to_batch(q, t.flat_idxs, batch), scatter_to_batch(v, t.flat_idxs, batch)

    def get_grad_norms(self) -> dict[str, Tensor]:
        """Gradient norms of actor, critics and encoders."""
        heads = {
            "Actor Grad Norm": grad_norm(self.actor.parameters()),
            "Critic Grad Norm": grad_norm(self.critics.parameters()),
        }
        return {**heads, **super().get_grad_norms()}

    @torch.no_grad()
    def _log_values(self, log: dict[str, Any], recorded: RecordedValues, targets: Tensor) -> None:
        """Logs targets, values in units of returns, the critics' disagreement, and PopArt's statistics.

        "gamma=..." is one discount of all that are trained; without it, a value is that of the acting discount.
        Targets are in units of returns times the reward multiplier.
        """
        values = at_least_float32(self.return_head.denormalize(recorded.values)) / self.reward_multiplier
        log["Min TD Target"], log["Max TD Target"] = extremes(targets)
        log["Mean TD Target"] = targets.mean()
        log["Std TD Target"] = targets.std(correction=0)
        log["Mean Q(s, a) (global mean, rescaled)"] = values[..., -1, :].mean()
        log["Std of Q(s, a) over the Ensemble"] = values[..., -1, :].std(dim=2, correction=0).mean()
        by_gamma = zip(values.mean((0, 1, 2, 4)), targets.mean((0, 1, 2, 4)), strict=True)
        for gamma, (value, target) in zip(self.gammas.tolist(), by_gamma, strict=True):
            log[f"Mean Q(s, a) gamma={gamma:.6g}"] = value
            log[f"Mean TD Target gamma={gamma:.6g}"] = target
        log["PopArt mu (mean over gamma)"] = self.popart.mu.mean()
        log["PopArt nu (mean over gamma)"] = self.popart.nu.mean()
        log["PopArt sigma (mean over gamma)"] = self.popart.sigma.mean()

    @torch.no_grad()
    def _log_advantages(self, log: dict[str, Any], advantages: Tensor, weights: Tensor) -> None:
        """Logs the filter's weights (1, n, G, 1), and advantages of the acting discount in the critics' units."""
        log["Filter Mean"] = weights.mean()
        log["Filter Approved Share"] = (weights > 0).float().mean()
        log["Advantage Mean"] = advantages.mean()
        acting = advantages[..., -1, :]
        log["Share of Positive Advantages"] = (acting > 0).float().mean()
        for percent, value in zip(_PERCENTS, percentiles(acting, _PERCENTS), strict=True):
            log[f"Advantage {percent}th Percentile"] = value

    def _log_losses(
        self, log: dict[str, Any], batch: Batch, t: Transitions, loss: Tensor, actor: Tensor, critic: Tensor
    ) -> None:
        """Logs the losses and the size of the batch."""
        device = loss.device
        log["Loss"] = loss.detach()
        log["Actor Loss"] = actor.detach()
        log["Critic Loss"] = critic.detach()
        log["Sequence Length"] = torch.tensor(float(batch.length + 1), device=device)
        log["Batch Size (in Timesteps)"] = torch.tensor(float(batch.batch_size * batch.length), device=device)
        log["Unmasked Batch Size (in Timesteps)"] = torch.tensor(float(len(t.flat_idxs)), device=device)
        log["Mean Reward (in training sequences)"] = t.reward.mean() / self.reward_multiplier
        done = batch.dones.bool() & batch.transition_mask
        log["Share of Sequences with a Done"] = done.flatten(1).any(dim=1).float().mean()
