"""The default agent: an off-policy actor-critic over long sequences, learned for many discounts at once.

Shapes: B batch, T transitions, n real transitions of the batch side by side, K action samples, C critics,
G discounts, A width of the action representation, S state width.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gin
import torch
from torch import Tensor, nn
from torch.func import functional_call

from amago.agent import losses
from amago.agent.acting import choose_actions
from amago.agent.base import BaseAgent
from amago.agent.batch import Batch
from amago.agent.diagnostics import extremes, grad_norm
from amago.agent.filters import binary_filter
from amago.agent.gammas import Multigammas
from amago.agent.registry import register_agent
from amago.agent.returns import nstep_return
from amago.agent.targets import move_towards, random_critic_subset
from amago.agent.transitions import Transitions, spread
from amago.nets.actor_critic import Actor, BaseActorHead, BaseCriticHead, NCritics, PopArtLayer
from amago.nets.actor_critic.critic import expected_values
from amago.nets.configurable import with_bindings
from amago.nets.masking import masked_avg
from amago.nets.policy_dists import Multibinary, MultiDiscrete
from amago.nets.precision import at_least_float32
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder


@register_agent("agent")
@gin.configurable(module="amago.agent")
class Agent(BaseAgent):
    """Off-policy actor-critic with an ensemble of critics over many discounts (Grigsby et al. 2024, appendix A).

    The critics regress n-step returns that are normalised by PopArt; the actor follows their gradient
    (`online_coeff`) and imitates the better half of the data (`offline_coeff`). Encoders learn from both.

    Args:
        obs_space, rl2_space, action_space, max_seq_len, tstep_encoder_type, traj_encoder_type: see `BaseAgent`.
        num_critics: size C of the ensemble.
        num_critics_td: critics that are drawn for each target.
        online_coeff: weight of the policy-gradient loss; 0 skips it.
        offline_coeff: weight of filtered behaviour cloning; 0 skips it.
        critic_loss_weight: weight of the critic loss against the actor loss.
        gamma: the discount that acts, in [0, 1].
        reward_multiplier: rewards are multiplied by this in the loss.
        tau: share of the way that targets move after each update, in (0, 1].
        fake_filter: imitate all data; without an online loss the critics are not trained then.
        num_actions_for_value_in_critic_loss: actions sampled for the value of the next state.
        num_actions_for_value_in_actor_loss: actions sampled for the state's value and for the online loss.
        fbc_filter_func: weight of a transition in imitation as a function of its advantage.
        popart: normalise the critics' targets.
        use_target_actor: targets take the actions of a slowly moving copy of the actor.
        use_multigamma: learn the discounts of `Multigammas` besides `gamma`.
        n_step: length of the returns.
        actor_type: constructed with `state_dim`, `action_dim`, `discrete`, `gammas`.
        critic_type: constructed with the same and `num_critics`.
        pass_obs_keys_to_actor: keys of the observation that the actor also gets, as `straight_from_obs`.

    Raises:
        ValueError: if a setting is out of range, or `online_coeff` > 0 meets a policy whose samples carry no
            gradient.
    """

    gammas: Tensor

    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        action_space: Any,
        max_seq_len: int,
        tstep_encoder_type: type[TstepEncoder],
        traj_encoder_type: type[TrajEncoder],
        num_critics: int = 4,
        num_critics_td: int = 2,
        online_coeff: float = 1.0,
        offline_coeff: float = 0.1,
        critic_loss_weight: float = 10.0,
        gamma: float = 0.999,
        reward_multiplier: float = 10.0,
        tau: float = 0.003,
        fake_filter: bool = False,
        num_actions_for_value_in_critic_loss: int = 1,
        num_actions_for_value_in_actor_loss: int = 1,
        fbc_filter_func: Callable[..., Tensor] = binary_filter,
        popart: bool = True,
        use_target_actor: bool = True,
        use_multigamma: bool = True,
        n_step: int = 1,
        actor_type: type[BaseActorHead] = Actor,
        critic_type: type[BaseCriticHead] = NCritics,
        pass_obs_keys_to_actor: list[str] | None = None,
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
        self.pass_obs_keys_to_actor = pass_obs_keys_to_actor
        self._check_settings()
        auxiliary = Multigammas().discrete if self.discrete else Multigammas().continuous
        gammas = torch.tensor([*auxiliary, gamma] if use_multigamma else [gamma], dtype=torch.float32)
        self.register_buffer("gammas", gammas, persistent=False)
        self.popart = PopArtLayer(gammas=len(gammas), enabled=popart)
        self.init_actor_critic()
        self.init_extra_networks()

    def _check_settings(self) -> None:
        """Raises ValueError for settings outside their ranges."""
        if not 1 <= self.num_critics_td <= self.num_critics:
            raise ValueError(
                f"num_critics_td must lie between 1 and num_critics ({self.num_critics}), "
                f"got {self.num_critics_td}"
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must lie between 0 and 1, got {self.gamma}")
        if not 0.0 < self.tau <= 1.0:
            raise ValueError(f"tau must lie in (0, 1], got {self.tau}")
        if self.n_step < 1:
            raise ValueError(f"n_step must be at least 1, got {self.n_step}")
        if self.online_coeff < 0 or self.offline_coeff < 0 or self.online_coeff + self.offline_coeff == 0:
            raise ValueError(
                "online_coeff and offline_coeff must not be negative, nor both 0, "
                f"got {self.online_coeff} and {self.offline_coeff}"
            )
        for name in ("num_actions_for_value_in_critic_loss", "num_actions_for_value_in_actor_loss"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def init_actor_critic(self) -> None:
        """Builds actor, critics and their targets."""
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
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)

    def _distribution_choice(self) -> dict[str, Any]:
        """The distribution that the action space asks for, unless the actor's own was configured by gin."""
        choices: dict[str, Any] = {
            "multibinary": Multibinary,
            "multidiscrete": MultiDiscrete.with_sizes(self.action_spec.sizes),
        }
        choice = choices.get(self.action_spec.kind)
        if choice is None or "continuous_dist_type" not in inspect.signature(self.actor_type).parameters:
            return {}
        try:
            configured = gin.get_bindings(self.actor_type)
        except ValueError:  # the actor is not configurable
            configured = {}
        return {} if "continuous_dist_type" in configured else {"continuous_dist_type": choice}

    def init_extra_networks(self) -> None:
        """Hook: build further networks of a subclass; the optimizer trains what requires gradients."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As in torch, but the copy of the critics that older saved policies hold is passed over."""
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
        direct_obs = self._direct_obs(obs)
        with torch.no_grad():
            states, hidden_state = self.get_state_embedding(
                obs, rl2s=rl2s, time_idxs=time_idxs, hidden_state=hidden_state
            )
            dist = self.actor(states, straight_from_obs=direct_obs)
            return choose_actions(dist, self.action_spec, sample), hidden_state

    def _direct_obs(self, obs: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The observations that the actor gets without the encoders."""
        if self.pass_obs_keys_to_actor is None:
            return None
        missing = [key for key in self.pass_obs_keys_to_actor if key not in obs]
        if missing:
            raise ValueError(f"pass_obs_keys_to_actor names {missing}, but the observation has {sorted(obs)}")
        return {key: obs[key] for key in self.pass_obs_keys_to_actor}

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        """Actor loss + `critic_loss_weight` * critic loss, each a mean over the real transitions."""
        self.update_info = {}
        log = self.update_info if log_step else None
        t = self._gather(batch, log)
        q_values, critic_loss = None, t.state.new_zeros(())
        if not self.fake_filter or self.online_coeff > 0:
            q_values = self._q_values(t, log)
            critic_losses = self._critic_loss(batch, t, q_values, log)
            critic_loss = self._masked(critic_losses, batch, t, self.edit_critic_mask)
        actor_loss = self._masked(self._actor_loss(t, q_values, log), batch, t, self.edit_actor_mask)
        loss = actor_loss + self.critic_loss_weight * critic_loss
        if log is not None:
            self._log_losses(log, batch, t, loss, actor_loss, critic_loss)
        return loss

    def _gather(self, batch: Batch, log: dict[str, Any] | None) -> Transitions:
        """Encodes the batch and picks its real transitions."""
        states = self.encode_batch(batch, log)
        return Transitions.of(
            batch,
            states,
            to_action=self.actor.policy_dist.action_from_buffer,
            reward_multiplier=self.reward_multiplier,
            direct_obs=self._direct_obs(batch.obs),
        )

    def _q_values(self, t: Transitions, log: dict[str, Any] | None) -> Tensor:
        """Raw values of the recorded actions (1, n, C, G, 1), before PopArt.

        Where one pass of the critics gives the values of every action, they are kept in `t` for the policy's.
        """
        action = t.action.unsqueeze(2).expand(-1, -1, len(self.gammas), -1).unsqueeze(0)  # (1, 1, n, G, A)
        critics = self._critics_of_every_action()
        if critics is not None:
            t.every_action = critics.all_action_values(t.state)
            return expected_values(t.every_action, action)[0]
        values: Tensor = self.critics(t.state, action, log_dict=log)[0]
        return values

    def _critic_loss(
        self, batch: Batch, t: Transitions, q_values: Tensor, log: dict[str, Any] | None
    ) -> Tensor:
        """The critics' error against targets, (1, n, C, G, 1); moves PopArt's statistics first."""
        targets = self.td_targets(batch, t)
        self.popart.update_stats(targets, mask=torch.ones_like(targets, dtype=torch.bool))
        if log is not None:
            log["Min TD Target"], log["Max TD Target"] = extremes(targets)
            self._log_values(log, q_values)
        return self._critic_error(t, q_values, targets)

    @torch.no_grad()
    def td_targets(self, batch: Batch, t: Transitions) -> Tensor:
        """n-step targets of the critics, (1, n, 1, G, 1), in units of returns times the reward multiplier."""
        actor = self.target_actor if self.use_target_actor else self.actor
        dist = actor(t.next_state, straight_from_obs=t.next_direct_obs)
        action = self._policy_actions(dist, self.num_actions_for_value_in_critic_loss)
        values = self._as_returns(self._values(self.target_critics(t.next_state, action))).mean(0)
        reduce = "min" if self.online_coeff > 0 else "mean"
        values = at_least_float32(values)
        values = random_critic_subset(values, self.num_critics_td, reduce)  # (1, n, 1, G, 1)
        reward, done = (x.view(1, -1, 1, 1, 1) for x in (t.reward, t.done))
        gamma = self.gammas.unsqueeze(-1)  # (G, 1)
        if self.n_step == 1:
            return nstep_return(reward, done, values, gamma, 1, torch.ones_like(done))
        reward, done, values = (spread(x, t.places, batch) for x in (reward, done, values))
        mask = batch.transition_mask[..., None, None]  # (B, T, 1, 1, 1)
        returns = nstep_return(reward, done, values, gamma, self.n_step, mask)
        return returns.flatten(0, 1).index_select(0, t.places).unsqueeze(0)

    def _actor_loss(self, t: Transitions, q_values: Tensor | None, log: dict[str, Any] | None) -> Tensor:
        """The weighted sum of online and offline loss, (1, n, G, 1)."""
        dist = self.actor(t.state, log_dict=log, straight_from_obs=t.direct_obs)
        needs_values = self.online_coeff > 0 or (self.offline_coeff > 0 and not self.fake_filter)
        policy_values = self._policy_values(t, dist) if needs_values else None
        online = offline = None
        if self.online_coeff > 0 and policy_values is not None:
            online = losses.online_actor_loss(self._normalized(policy_values))
        if self.offline_coeff > 0:
            weights = self._filter(q_values, policy_values, log)
            log_prob = self._log_prob(dist, t.action)
            offline = losses.offline_actor_loss(weights, log_prob)
            if log is not None:
                log["Log Prob of Buffer Actions"] = log_prob.detach().mean()
        if log is not None and self.discrete:
            log["Policy Entropy"] = dist.entropy().detach().mean()
        return losses.combine_actor_losses(online, offline, self.online_coeff, self.offline_coeff)

    def _policy_values(self, t: Transitions, dist: Any) -> Tensor:
        """Raw values of the policy's own actions, (K, 1, n, C, G, 1), with a gradient into the actions alone.

        The critics' weights and their state input are cut off: the online loss moves the actor, and through it
        the encoders, but never the critics.
        """
        learns = self.online_coeff > 0
        action = self._policy_actions(dist, self.num_actions_for_value_in_actor_loss, grad=learns)
        with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
            if t.every_action is not None:
                return expected_values(t.every_action.detach(), action)
            weights = {name: p.detach() for name, p in self.critics.named_parameters()}
            return self._values(functional_call(self.critics, weights, (t.state.detach(), action)))

    def _filter(
        self, q_values: Tensor | None, policy_values: Tensor | None, log: dict[str, Any] | None
    ) -> Tensor:
        """The weight of each transition in imitation, (1, n, G, 1) or a single 1."""
        if self.fake_filter or q_values is None or policy_values is None:
            return self.gammas.new_ones(())
        with torch.no_grad():
            adv = losses.advantage(q_values, policy_values.mean(0))
            weights: Tensor = self.fbc_filter_func(adv)
        if log is not None:
            log["Filter Mean"] = weights.mean()
            log["Advantage Mean"] = adv.mean()
        return weights

    def _log_prob(self, dist: Any, action: Tensor) -> Tensor:
        """log pi of the recorded actions under the policy of every discount, (1, n, G, 1)."""
        action = action.unsqueeze(2)  # (1, n, 1, A)
        if self.discrete:
            log_prob: Tensor = dist.log_prob(action.argmax(-1))
            return log_prob.unsqueeze(-1)
        log_prob = dist.log_prob(action.expand(-1, -1, len(self.gammas), -1))
        # A mean over bits keeps the loss of wide binary actions in the range of the others.
        return log_prob.mean(-1, keepdim=True) if self.multibinary else log_prob.sum(-1, keepdim=True)

    def _masked(
        self, loss: Tensor, batch: Batch, t: Transitions, edit_mask: Callable[[Batch, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The mean of a loss over real transitions, (1, n, ..., G, 1) -> (), after the subclass's mask hook."""
        full = spread(at_least_float32(loss), t.places, batch)  # (B, T, ..., G, 1)
        mask = batch.transition_mask
        mask = mask.view(*mask.shape[:2], *(1 for _ in full.shape[2:])).expand_as(full)
        return masked_avg(full, edit_mask(batch, full, mask))

    # What follows, down to the targets' updates, is what agents with critics of another kind do otherwise.

    def _critic_error(self, t: Transitions, q_values: Tensor, targets: Tensor) -> Tensor:
        """Squared error of normalised values against normalised targets (1, n, 1, G, 1): (1, n, C, G, 1)."""
        predictions: Tensor = self.popart(q_values)
        return losses.critic_regression_loss(predictions, self.popart.normalize_values(targets))

    def _policy_actions(self, dist: Any, num_samples: int, *, grad: bool = False) -> Tensor:
        """Actions as the critics take them, (K, 1, n, G, A): probabilities if discrete, else samples."""
        if self.discrete:
            probs: Tensor = dist.probs
            return probs.unsqueeze(0)
        return self._sampled_actions(dist, num_samples, grad=grad)

    def _sampled_actions(self, dist: Any, num_samples: int, *, grad: bool) -> Tensor:
        """K samples (K, 1, n, G, A), with a gradient into the policy if asked for."""
        samples: Tensor = dist.rsample((num_samples,)) if grad else dist.sample((num_samples,))
        return samples

    def _values(self, critic_output: Any) -> Tensor:
        """Raw values (..., C, G, 1) from what the critics return."""
        values: Tensor = critic_output
        return values

    def _as_returns(self, values: Tensor) -> Tensor:
        """Raw values (..., G, 1) in the units of the targets."""
        return self.popart(values, normalized=False)  # type: ignore[no-any-return]

    def _normalized(self, values: Tensor) -> Tensor:
        """Raw values (..., G, 1) as the online loss weighs them, alike for every discount."""
        return self.popart(values)  # type: ignore[no-any-return]

    def _critics_of_every_action(self) -> NCritics | None:
        """The critics, if one pass of theirs serves all actions of a state, the recorded and the policy's."""
        critics = self.critics
        if not self.discrete or not isinstance(critics, NCritics):
            return None
        overridden = type(critics).critic_network_forward is not NCritics.critic_network_forward
        return None if overridden else critics

    def _target_pairs(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters of the target networks and of the networks that they follow."""
        targets = [*self.target_actor.parameters(), *self.target_critics.parameters()]
        return targets, [*self.actor.parameters(), *self.critics.parameters()]

    def hard_sync_targets(self) -> None:
        """Copies the online networks into their targets."""
        move_towards(*self._target_pairs(), tau=1.0)

    def soft_sync_targets(self) -> None:
        """Moves the targets by `tau` towards the online networks."""
        move_towards(*self._target_pairs(), tau=self.tau)

    @torch.no_grad()
    def get_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Q(s, a) of the recorded actions and V(s), each (B, T, G, 1), 0 in padding.

        Means over the critics of their raw outputs: `fbc_filter_func(q - v)` is the weight that training gives.
        Computed in eval mode, so that looking at values moves no statistics.
        """
        was_training = self.training
        self.eval()
        try:
            t = self._gather(batch, None)
            dist = self.actor(t.state, straight_from_obs=t.direct_obs)
            q = self._q_values(t, None).mean(dim=-3)
            v = self._policy_values(t, dist).mean(0).mean(dim=-3)
        finally:
            self.train(was_training)
        return spread(q, t.places, batch), spread(v, t.places, batch)

    def get_grad_norms(self) -> dict[str, Tensor]:
        """Gradient norms of actor, critics and encoders."""
        heads = {
            "Actor Grad Norm": grad_norm(self.actor.parameters()),
            "Critic Grad Norm": grad_norm(self.critics.parameters()),
        }
        return {**heads, **super().get_grad_norms()}

    def _log_values(self, log: dict[str, Any], q_values: Tensor) -> None:
        """Values of the acting discount in units of returns, and PopArt's statistics."""
        with torch.no_grad():
            acting = self._as_returns(q_values)[..., -1, :]
            log["Mean Q(s, a) (global mean, rescaled)"] = acting.mean() / self.reward_multiplier
            log["PopArt mu (mean over gamma)"] = self.popart.mu.mean()
            log["PopArt nu (mean over gamma)"] = self.popart.nu.mean()
            log["PopArt sigma (mean over gamma)"] = self.popart.sigma.mean()

    def _log_losses(
        self, log: dict[str, Any], batch: Batch, t: Transitions, loss: Tensor, actor: Tensor, critic: Tensor
    ) -> None:
        """What is logged of every update."""
        device = loss.device
        log["Loss"] = loss.detach()
        log["Actor Loss"] = actor.detach()
        log["Critic Loss"] = critic.detach()
        log["Sequence Length"] = torch.tensor(float(batch.length + 1), device=device)
        log["Batch Size (in Timesteps)"] = torch.tensor(float(batch.batch_size * batch.length), device=device)
        log["Unmasked Batch Size (in Timesteps)"] = torch.tensor(float(len(t.places)), device=device)
        log["Mean Reward (in training sequences)"] = t.reward.mean() / self.reward_multiplier
