"""The losses of `Agent` and `MultiTaskAgent`, on whole padded batches.

Shapes: B batch, T transitions, S state width, K action samples, C critics, G discounts, A action width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from amago.agent import Batch, nstep_return
from amago.agent.filters import binary_filter
from amago.nets.policy_dists import PolicyOutput
from amago.nets.specs import ActionSpec
from benchmarks.plain.encoders import TstepEncoder, trajectory_encoder
from benchmarks.plain.heads import Actor, Critics, PopArt, TwoHotCritics
from benchmarks.plain.policies import DiscretePolicy, PackagePolicy, Policy, TanhGaussianPolicy
from benchmarks.plain.sizes import Sizes

GAMMAS = (0.1, 0.9, 0.95, 0.97, 0.99, 0.995, 0.999)


class PlainAgent(nn.Module):
    """An ensemble of critics that regress returns, and an actor that follows and imitates.

    Args:
        sizes: of all networks.
        action: the action space, of kind "discrete", "box" or "multibinary".
        gammas: all discounts; the last one acts.
        policy: the distribution, `DiscretePolicy` or `TanhGaussianPolicy` if None.
        dropout_emb, dropout_ff: of a Transformer.
        all others: as in `amago.agent.Agent`.
    """

    gammas: Tensor

    def __init__(
        self,
        sizes: Sizes,
        action: ActionSpec,
        *,
        gammas: Sequence[float] = GAMMAS,
        num_critics: int = 4,
        num_critics_td: int = 2,
        online_coeff: float = 1.0,
        offline_coeff: float = 0.1,
        critic_loss_weight: float = 10.0,
        reward_multiplier: float = 10.0,
        tau: float = 0.003,
        fake_filter: bool = False,
        num_actions_for_value_in_critic_loss: int = 1,
        num_actions_for_value_in_actor_loss: int = 1,
        fbc_filter_func: Callable[[Tensor], Tensor] = binary_filter,
        popart: bool = True,
        use_target_actor: bool = True,
        n_step: int = 1,
        policy: Policy | PolicyOutput | None = None,
        dropout_emb: float = 0.05,
        dropout_ff: float = 0.05,
    ) -> None:
        super().__init__()
        self.discrete = action.kind == "discrete"
        self.num_critics = num_critics
        self.num_critics_td = num_critics_td
        self.online_coeff = online_coeff
        self.offline_coeff = offline_coeff
        self.critic_loss_weight = critic_loss_weight
        self.reward_multiplier = reward_multiplier
        self.tau = tau
        self.fake_filter = fake_filter
        self.samples_critic = num_actions_for_value_in_critic_loss
        self.samples_actor = num_actions_for_value_in_actor_loss
        self.filter = fbc_filter_func
        self.use_target_actor = use_target_actor
        self.n_step = n_step
        self.register_buffer("gammas", torch.tensor(gammas, dtype=torch.float32), persistent=False)
        if policy is None:
            policy = DiscretePolicy(action.dim) if self.discrete else TanhGaussianPolicy(action.dim)
        self.policy: Policy = PackagePolicy(policy) if isinstance(policy, PolicyOutput) else policy
        self.tstep_encoder = TstepEncoder(sizes)
        self.traj_encoder = trajectory_encoder(sizes, dropout_emb, dropout_ff)
        self.actor = Actor(sizes, len(gammas), self.policy.params)
        self.critics = self.make_critics(sizes, action)
        self.popart = PopArt(len(gammas), popart)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.maximized_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.info: dict[str, Tensor] = {}

    def make_critics(self, sizes: Sizes, action: ActionSpec) -> nn.Module:
        """The critics of this kind of agent."""
        return Critics(sizes, action.dim, self.discrete, self.gammas, self.num_critics)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As in torch; the copy of the critics follows the critics, whether the state dict holds it or not."""
        copied = {
            f"maximized_{key}": value for key, value in state_dict.items() if key.startswith("critics.")
        }
        return super().load_state_dict({**state_dict, **copied}, strict=strict, assign=assign)

    @torch.no_grad()
    def update_targets(self) -> None:
        """Moves the targets by `tau` and copies the critics for the online loss; after each optimizer step."""
        for online, target in ((self.actor, self.target_actor), (self.critics, self.target_critics)):
            for p, t in zip(online.parameters(), target.parameters(), strict=True):
                t.lerp_(p, self.tau)
        self.maximized_critics.load_state_dict(self.critics.state_dict())

    def forward(self, batch: Batch) -> Tensor:
        """Actor loss + `critic_loss_weight` * critic loss, each a mean over the real transitions."""
        timesteps = self.tstep_encoder(batch.obs, batch.rl2s, batch.timestep_mask)
        states: Tensor = self.traj_encoder(timesteps, batch.time_idxs)  # (B, T + 1, S)
        state, next_state = states[:, :-1], states[:, 1:].detach()
        mask = batch.transition_mask[..., None, None]  # (B, T, 1, 1, 1)
        taken = self.policy.from_buffer(batch.actions)
        taken = taken.unsqueeze(2).repeat(1, 1, len(self.gammas), 1)  # (B, T, G, A)

        critic_loss, q_values = states.new_zeros(()), None
        if not self.fake_filter or self.online_coeff > 0:
            predictions = self.critics(state, taken.unsqueeze(0))[0]  # (B, T, C, G, 1 or bins)
            q_values = self.raw_values(predictions.detach())
            target = self.td_target(batch, next_state, mask)  # (B, T, 1, G, 1)
            self.popart.update(target, mask)
            critic_loss = masked_mean(self.critic_loss(predictions, target), mask)
        actor_loss = masked_mean(self.actor_loss(state, taken, q_values), mask.squeeze(2))
        loss: Tensor = actor_loss + self.critic_loss_weight * critic_loss
        self.info = {"Actor Loss": actor_loss.detach(), "Critic Loss": critic_loss.detach()}
        return loss

    @torch.no_grad()
    def td_target(self, batch: Batch, next_state: Tensor, mask: Tensor) -> Tensor:
        """n-step returns that end in the value of the target networks, (B, T, 1, G, 1)."""
        actor = self.target_actor if self.use_target_actor else self.actor
        action = self.policy_actions(self.policy(actor(next_state)), self.samples_critic, grad=False)
        values = self.returns(self.target_critics(next_state, action)).float().mean(0)  # (B, T, C, G, 1)
        if self.num_critics_td < self.num_critics:
            drawn = torch.rand_like(values).argsort(dim=2)[:, :, : self.num_critics_td]
            values = values.gather(2, drawn)
        values = values.min(dim=2, keepdim=True)[0] if self.online_coeff > 0 else values.mean(2, keepdim=True)
        reward = (self.reward_multiplier * batch.rews)[..., None, None]
        done = batch.dones.float()[..., None, None]
        return nstep_return(reward, done, values, self.gammas.unsqueeze(-1), self.n_step, mask)

    def actor_loss(self, state: Tensor, taken: Tensor, q_values: Tensor | None) -> Tensor:
        """Policy gradient and filtered imitation, (B, T, G, 1)."""
        dist = self.policy(self.actor(state))
        loss = torch.zeros((), device=state.device)
        weights = torch.ones((), device=state.device)
        if self.online_coeff > 0 or (self.offline_coeff > 0 and not self.fake_filter):
            with torch.set_grad_enabled(self.online_coeff > 0):
                action = self.policy_actions(dist, self.samples_actor, grad=self.online_coeff > 0)
                outputs = self.maximized_critics(state.detach(), action)
                if self.online_coeff > 0:
                    online = -self.normalized(outputs).min(dim=3)[0].mean(0)  # (B, T, G, 1)
                    loss = loss + self.online_coeff * online
            if q_values is not None and not self.fake_filter:
                values = self.raw_values(outputs.detach()).mean(0)  # (B, T, C, G, 1)
                weights = self.filter(q_values.mean(2) - values.mean(2))
        if self.offline_coeff > 0:
            loss = loss - self.offline_coeff * weights * dist.log_prob(taken)
        return loss

    def policy_actions(self, dist: Any, samples: int, *, grad: bool) -> Tensor:
        """The policy's actions as critics take them, (K, B, T, G, A): the probabilities if discrete."""
        if self.discrete:
            probs: Tensor = dist.probs.unsqueeze(0)
            return probs
        return _draw(dist, samples, grad)

    def raw_values(self, outputs: Tensor) -> Tensor:
        """What the advantage is a difference of."""
        return outputs

    def returns(self, outputs: Tensor) -> Tensor:
        """Critic outputs in units of returns times the reward multiplier."""
        return self.popart.denormalize(self.popart.predict(outputs))

    def normalized(self, outputs: Tensor) -> Tensor:
        """What the policy gradient maximises."""
        return self.popart.predict(outputs)

    def critic_loss(self, predictions: Tensor, target: Tensor) -> Tensor:
        """Squared error of normalised values, (B, T, C, G, 1)."""
        return (self.popart.predict(predictions) - self.popart.normalize(target)).square()


class PlainMultiTaskAgent(PlainAgent):
    """Critics that classify returns; discrete actions are one-hot vectors that critics take as input.

    Args:
        labels, min_return, max_return: of the critics' classes.
        all others: as in `PlainAgent`, with the defaults of `amago.agent.MultiTaskAgent`.
    """

    critics: TwoHotCritics

    def __init__(
        self,
        sizes: Sizes,
        action: ActionSpec,
        *,
        online_coeff: float = 0.0,
        offline_coeff: float = 1.0,
        num_actions_for_value_in_actor_loss: int = 3,
        labels: Literal["twohot", "hlgauss"] = "twohot",
        min_return: float = -100_000.0,
        max_return: float = 100_000.0,
        **kwargs: Any,
    ) -> None:
        self.bin_settings: tuple[float, float, Literal["twohot", "hlgauss"]] = (
            min_return,
            max_return,
            labels,
        )
        super().__init__(
            sizes,
            action,
            online_coeff=online_coeff,
            offline_coeff=offline_coeff,
            num_actions_for_value_in_actor_loss=num_actions_for_value_in_actor_loss,
            **kwargs,
        )

    def make_critics(self, sizes: Sizes, action: ActionSpec) -> nn.Module:
        """The critics of this kind of agent."""
        return TwoHotCritics(sizes, action.dim, self.gammas, self.num_critics, *self.bin_settings)

    def policy_actions(self, dist: Any, samples: int, *, grad: bool) -> Tensor:
        """The policy's actions as critics take them, (K, B, T, G, A)."""
        return _draw(dist, samples, grad)

    def raw_values(self, outputs: Tensor) -> Tensor:
        """Returns."""
        return self.critics.values(outputs)

    def returns(self, outputs: Tensor) -> Tensor:
        """The returns that the logits stand for."""
        return self.critics.values(outputs)

    def normalized(self, outputs: Tensor) -> Tensor:
        """Returns in units of their standard deviation."""
        return self.popart.normalize(self.critics.values(outputs))

    def critic_loss(self, predictions: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy with the target's class, (B, T, C, G, 1)."""
        return self.critics.loss(predictions, target)


def _draw(dist: Any, samples: int, grad: bool) -> Tensor:
    """(K, B, T, G, A), with a gradient into the policy if asked."""
    drawn: Tensor = dist.rsample((samples,)) if grad else dist.sample((samples,))
    return drawn


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of `x` where `mask` (broadcastable) is true."""
    mask = mask.expand_as(x)
    return (x * mask).sum() / (mask.sum() + 1e-5)
