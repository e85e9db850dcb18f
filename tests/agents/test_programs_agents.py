"""What user programs build on amago.agent: masked actors, own policies and filters, agents with slow copies.

Each part is a small program as users write it. Shapes: B batch, T transitions, L = T + 1 timesteps, C critics, G
discounts, N actions.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from functools import partial
from typing import Any

import gin
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from amago.agent import Agent, Batch, MultiTaskAgent, binary_filter, nstep_return
from amago.agent.acting import compile_actor
from amago.nets.actor_critic import Actor, NCritics, ResidualActor
from amago.nets.masking import masked_avg
from amago.nets.policy_dists import (
    Discrete,
    DiscreteLikeContinuous,
    Multibinary,
    MultiDiscrete,
    TanhGaussian,
    _Categorical,
)
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

N = 5
CHOICE = ActionSpec("discrete", (N,))
SMALL_FF = partial(FFTstepEncoder, d_hidden=16, d_output=12, n_layers=1)
SMALL_GRU = partial(GRUTrajEncoder, d_hidden=12, d_output=12, n_layers=1)


def make(agent_type: Any = Agent, action: ActionSpec = CHOICE, **kwargs: Any) -> Any:
    """An agent for 4 numbers and a mask of illegal actions."""
    arguments: dict[str, Any] = {
        "obs_space": {"observation": (4,), "illegal_actions": (N,)},
        "rl2_space": (1 + action.dim,),
        "action_space": action,
        "max_seq_len": 8,
        "tstep_encoder_type": SMALL_FF,
        "traj_encoder_type": SMALL_GRU,
        **kwargs,
    }
    torch.manual_seed(0)
    return agent_type(**arguments)


def with_illegal_actions(batch: Batch) -> Batch:
    """Masks (B, L, N) of int8 in which the recorded actions are legal but for some; the last state of a sequence
    has no legal action, and padding is filled as in the collate function."""
    steps = batch.rl2s.shape[:2]
    illegal = (torch.rand(*steps, N, generator=torch.Generator().manual_seed(1)) < 0.5).to(torch.int8)
    illegal[:, :-1][batch.actions == 1] = 0
    illegal[0, 0] = batch.actions[0, 0].to(torch.int8)  # this action became illegal later
    for row, length in enumerate(batch.lengths.tolist()):
        illegal[row, length - 1] = 1
        illegal[row, length:] = 4
    batch.obs["illegal_actions"] = illegal
    return batch


def acting_inputs(rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    illegal = (torch.rand(rows, 1, N) < 0.6).to(torch.int8)
    illegal[..., -1] = 0
    obs = {"observation": torch.randn(rows, 1, 4), "illegal_actions": illegal}
    return obs, torch.randn(rows, 1, 1 + N), torch.zeros(rows, 1, 1, dtype=torch.long)


# An actor that masks illegal actions


class MaskedActor(Actor):
    """Sets the logits of illegal actions to -inf, in place."""

    def actor_network_forward(
        self, state: Tensor, log_dict: Any = None, straight_from_obs: dict[str, Tensor] | None = None
    ) -> Tensor:
        params = super().actor_network_forward(
            state, log_dict=log_dict, straight_from_obs=straight_from_obs
        )  # (B, L, G, N)
        assert straight_from_obs is not None
        illegal = straight_from_obs["illegal_actions"].bool()
        assert illegal.shape[:2] == state.shape[:2]
        params.masked_fill_(illegal.unsqueeze(2).expand_as(params), -float("inf"))
        return params


MASKED = {"actor_type": MaskedActor, "pass_obs_keys_to_actor": ["illegal_actions"]}


@pytest.mark.parametrize("agent_type", [Agent, MultiTaskAgent])
@pytest.mark.parametrize("n_step", [1, 3])
def test_an_actor_that_masks_illegal_actions_in_place_learns(agent_type, n_step, make_batch):
    agent = make(agent_type, **MASKED, online_coeff=1.0, offline_coeff=1.0, n_step=n_step)
    batch = with_illegal_actions(make_batch(CHOICE))
    for log_step in (True, False):
        loss = agent(batch, log_step=log_step)
        assert loss.isfinite()
        loss.backward()
    assert all(torch.as_tensor(value).isfinite().all() for value in agent.update_info.values())
    for module in (agent.actor, agent.critics, agent.traj_encoder, agent.tstep_encoder):
        grads = [p.grad for p in module.parameters()]
        assert all(grad is not None and grad.isfinite().all() for grad in grads)
        assert any(grad.any() for grad in grads)


def test_no_gradient_reaches_the_logits_of_illegal_actions(make_batch):
    agent = make(**MASKED, use_multigamma=False)
    batch = with_illegal_actions(make_batch(CHOICE))
    batch.obs["illegal_actions"][:, :, 2] = 1
    agent(batch, log_step=False).backward()
    grad = agent.actor.base.out_layer.weight.grad
    assert not grad[2].any()
    assert grad[3].any()


def test_a_masked_actor_acts_by_its_modules_which_is_told_once():
    agent = make(**MASKED).eval()
    with pytest.warns(
        UserWarning, match="acts with its torch modules .* because Agent passes observations to its actor"
    ):
        assert compile_actor(agent) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_actor(agent) is None
    obs, rl2s, times = acting_inputs(200)
    for sample in (True, False):
        actions, _ = agent.get_actions(obs, rl2s, times, sample=sample)
        assert actions.shape == (200, 1, 1)
        assert not obs["illegal_actions"].gather(-1, actions).any()


def test_nothing_is_told_about_an_agent_that_is_compiled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_actor(make().eval()) is not None


class Unmasked(Actor):
    """Computes what Actor does, but is another class."""


def test_an_actor_of_another_class_acts_as_the_compiled_one_would():
    inputs = acting_inputs(6)
    plain, other = make().eval(), make(actor_type=Unmasked).eval()
    other.load_state_dict(plain.state_dict())
    with pytest.warns(UserWarning, match="because Unmasked has no translation"):
        assert compile_actor(other) is None
    compiled = compile_actor(plain)
    assert compiled is not None
    fast, _ = compiled.get_actions(*inputs, sample=False)
    slow, _ = other.get_actions(*inputs, sample=False)
    assert torch.equal(fast, slow)


# A policy of one's own


class WithTemperature(Discrete):
    """Halves the logits."""

    def forward(self, vec: Tensor, log_dict: Any = None) -> _Categorical:
        return _Categorical(logits=vec / 2.0)


class Greedy(_Categorical):
    """Draws what is most likely."""

    def sample(self, sample_shape: Any = ()) -> Tensor:
        best = self.probs.argmax(-1, keepdim=True)
        return best.expand(torch.Size(sample_shape) + best.shape)


class GreedyPolicy(Discrete):
    """A policy whose distribution has a `sample` of its own."""

    def forward(self, vec: Tensor, log_dict: Any = None) -> Greedy:
        return Greedy(logits=vec)


@pytest.mark.parametrize("agent_type", [Agent, MultiTaskAgent])
@pytest.mark.parametrize("policy", [WithTemperature, GreedyPolicy])
def test_agents_learn_with_a_categorical_of_the_users(agent_type, policy, make_batch):
    agent = make(
        agent_type, actor_type=partial(Actor, discrete_dist_type=policy), online_coeff=1.0, offline_coeff=0.5
    )
    batch = with_illegal_actions(make_batch(CHOICE))
    loss = agent(batch, log_step=True)
    loss.backward()
    assert loss.isfinite()
    assert agent.update_info["Policy Entropy"].isfinite()
    assert agent.actor.base.out_layer.weight.grad.any()


def test_a_temperature_changes_what_is_sampled_with_and_without_compilation():
    agent = make(actor_type=partial(Actor, discrete_dist_type=WithTemperature)).eval()
    with torch.no_grad():
        agent.actor.base.out_layer.weight.zero_()
        agent.actor.base.out_layer.bias.copy_(torch.arange(N).repeat(len(agent.gammas)))
    expected = torch.softmax(torch.arange(N) / 2.0, -1)
    inputs = acting_inputs(4000)
    compiled = compile_actor(agent)
    assert compiled is not None
    for acting in (agent, compiled):
        actions, _ = acting.get_actions(*inputs, sample=True)
        shares = F.one_hot(actions.flatten(), N).float().mean(0)
        torch.testing.assert_close(shares, expected, atol=0.03, rtol=0.0)


def test_actions_are_drawn_by_the_distributions_own_sample():
    agent = make(actor_type=partial(Actor, discrete_dist_type=GreedyPolicy)).eval()
    inputs = acting_inputs(50)
    best, _ = agent.get_actions(*inputs, sample=False)
    for acting in (agent, compile_actor(agent)):
        actions, _ = acting.get_actions(*inputs, sample=True)
        assert torch.equal(actions, best)


# A filter with state


class NormalizedAdvantages:
    """exp of advantages that are standardised over a mask of the batch."""

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.shapes: list[torch.Size] = []

    def __call__(self, adv: Tensor) -> Tensor:
        assert self.mask is not None
        self.shapes.append(adv.shape)
        mask = self.mask.expand_as(adv)
        chosen = adv[mask]
        weights = torch.exp((adv - chosen.mean()) / (chosen.std() + 1e-5)).clamp(max=20.0)
        return weights * mask


class SetsTheMask(Agent):
    """Tells its filter which transitions count."""

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        real = ~(batch.rl2s == self.pad_val).all(-1, keepdim=True)[:, 1:]  # (B, T, 1)
        expert = batch.obs["observation"][:, :-1, :1] > 0.0
        self.fbc_filter_func.mask = (real & expert).unsqueeze(-1)  # (B, T, 1, 1)
        return super().forward(batch, log_step)


def test_a_filter_object_normalises_advantages_over_a_mask_of_the_batch(make_batch):
    filter_func = NormalizedAdvantages()
    agent = make(SetsTheMask, fbc_filter_func=filter_func, online_coeff=0.0, offline_coeff=1.0).eval()
    assert agent.fbc_filter_func is filter_func
    batch = with_illegal_actions(make_batch(CHOICE))  # lengths 9, 7 and 6
    agent(batch, log_step=True).backward()
    assert filter_func.shapes == [(3, 8, len(agent.gammas), 1)]

    # The loss by the same filter on the values that the agent gives.
    q, v = agent.get_values(batch)
    weights = filter_func(q - v)
    real = batch.transition_mask.unsqueeze(-1).expand_as(weights)
    assert agent.update_info["Filter Mean"].item() == pytest.approx(weights[real].mean().item(), rel=1e-4)
    assert not weights[~real].any()


@pytest.mark.parametrize("filter_func", [binary_filter, partial(binary_filter, threshold=0.1), torch.sigmoid])
def test_any_callable_is_a_filter(filter_func, make_batch):
    agent = make(fbc_filter_func=filter_func, offline_coeff=1.0)
    assert agent(with_illegal_actions(make_batch(CHOICE)), log_step=False).isfinite()


# An agent with slow copies, a frozen base policy and an extra actor


class SlowAgent(Agent):
    """Slow copies of encoders and heads, a frozen base policy to stay close to, and an extra actor beside."""

    def __init__(self, *args: Any, slow_tau: float = 0.25, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slow_tau = slow_tau
        self.slow_tstep_encoder = copy.deepcopy(self.tstep_encoder)
        self.slow_traj_encoder = copy.deepcopy(self.traj_encoder)
        self.slow_actor = copy.deepcopy(self.actor)
        self.slow_critics = copy.deepcopy(self.critics)
        self.base_actor = copy.deepcopy(self.actor)
        self.extra_actor = self.actor_type(
            state_dim=self.traj_encoder.emb_dim,
            action_dim=self.action_dim,
            discrete=self.discrete,
            gammas=self.gammas,
        )
        self.loaded: list[bool] = []
        self.hard_sync_targets()

    @property
    def slow_pairs(self) -> list[tuple[Any, Any]]:
        return [
            (self.slow_tstep_encoder, self.tstep_encoder),
            (self.slow_traj_encoder, self.traj_encoder),
            (self.slow_actor, self.actor),
            (self.slow_critics, self.critics),
        ]

    @property
    def trainable_params(self) -> Any:
        return itertools.chain(super().trainable_params, self.extra_actor.parameters())

    def hard_sync_targets(self) -> None:
        super().hard_sync_targets()
        for slow, online in self.slow_pairs:
            self._full_copy(slow, online)

    def soft_sync_targets(self) -> None:
        super().soft_sync_targets()
        for slow, online in self.slow_pairs:
            self._ema_copy(slow, online, tau=self.slow_tau)

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        loss = super().forward(batch, log_step)
        log = self.update_info if log_step else None
        real = ~(batch.rl2s == self.pad_val).all(-1)  # (B, L)
        with torch.no_grad():
            seq = self.slow_tstep_encoder(obs=batch.obs, rl2s=batch.rl2s, log_dict=None)
            state, _ = self.slow_traj_encoder(seq=seq, time_idxs=batch.time_idxs, hidden_state=None)
        imitated = self.slow_actor(state, log_dict=None, straight_from_obs=None).probs[:, :-1, -1]
        log_probs = self.extra_actor(state, log_dict=log, straight_from_obs=None).logits[:, :-1, -1]
        extra = -(imitated.detach() * log_probs).sum(-1)[real[:, 1:]].mean()
        # Without no_grad: the base policy stays as it is because it is not among trainable_params.
        base = self.base_actor(state).probs
        now = self.actor(state).logits
        distance = -(base * now).sum(-1)[real].mean()
        if log is not None:
            log["Extra Actor Loss"] = extra.detach()
            log["Distance to Base"] = distance.item()
        return loss + extra + 0.1 * distance

    def get_actions(
        self, obs: Any, rl2s: Tensor, time_idxs: Tensor, hidden_state: Any = None, sample: bool = True
    ) -> tuple[Tensor, Any]:
        with torch.no_grad():
            seq = self.slow_tstep_encoder(obs=obs, rl2s=rl2s)
            state, hidden_state = self.slow_traj_encoder(seq, time_idxs=time_idxs, hidden_state=hidden_state)
            dists = self.extra_actor(state)
            actions = dists.sample() if sample else dists.probs.argmax(-1, keepdim=True)  # (B, 1, G, 1)
            return actions[..., -1, :].to(torch.uint8), hidden_state

    def get_grad_norms(self) -> dict[str, Any]:
        squares = sum(p.grad.square().sum() for p in self.extra_actor.parameters() if p.grad is not None)
        return {**super().get_grad_norms(), "Extra Actor Grad Norm": squares**0.5}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        if any(name.startswith("slow_") for name in state_dict):
            return super().load_state_dict(state_dict, strict=strict)
        loaded = super().load_state_dict(state_dict, strict=False)
        self._full_copy(self.base_actor, self.actor)
        self.hard_sync_targets()
        return loaded

    def on_checkpoint_loaded(self, is_resume: bool = False) -> None:
        self.loaded.append(is_resume)


def parameters(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_an_agent_with_slow_copies_a_frozen_base_and_an_extra_actor(make_batch):
    agent = make(SlowAgent)
    names = ("actor", "critics", "extra_actor", "base_actor", "slow_actor", "slow_critics", "tstep_encoder")
    before = {name: parameters(getattr(agent, name)) for name in names}
    owned = list(agent.trainable_params)
    assert len(owned) == len({id(p) for p in owned})
    optimizer = torch.optim.AdamW(owned, lr=1e-2)
    agent(with_illegal_actions(make_batch(CHOICE)), log_step=True).backward()
    assert {"Extra Actor Loss", "Distance to Base", "Critic Loss"} <= set(agent.update_info)
    assert agent.get_grad_norms()["Extra Actor Grad Norm"] > 0
    optimizer.step()
    after = {name: parameters(getattr(agent, name)) for name in names}
    for name in ("actor", "critics", "extra_actor", "tstep_encoder"):
        assert not torch.equal(before[name], after[name]), name
    for name in ("base_actor", "slow_actor", "slow_critics"):
        assert torch.equal(before[name], after[name]), name
    agent.soft_sync_targets()
    for slow, online in (("slow_actor", "actor"), ("slow_critics", "critics")):
        expected = before[slow] + 0.25 * (after[online] - before[slow])
        torch.testing.assert_close(parameters(getattr(agent, slow)), expected)
    agent.hard_sync_targets()
    for slow, online in agent.slow_pairs:
        assert torch.equal(parameters(slow), parameters(online))
    assert torch.equal(parameters(agent.target_actor), parameters(agent.actor))


def test_the_replaced_get_actions_acts():
    agent = make(SlowAgent).eval()
    with pytest.warns(UserWarning, match="because SlowAgent overrides get_actions"):
        assert compile_actor(agent) is None
    obs, rl2s, times = acting_inputs(7)
    for sample in (True, False):
        actions, hidden = agent.get_actions(obs, rl2s, times, agent.init_hidden_state(7, "cpu"), sample)
        assert actions.shape == (7, 1, 1)
        assert actions.max() < N
        assert hidden.shape == (1, 7, 12)


def test_a_slow_agent_starts_from_the_policy_of_a_plain_one():
    plain = make(online_coeff=1.0)
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(0.1)
    agent = make(SlowAgent)
    agent.load_state_dict(plain.state_dict())
    for module in (agent.actor, agent.base_actor, agent.slow_actor, agent.target_actor):
        assert torch.equal(parameters(module), parameters(plain.actor))
    again = make(SlowAgent)
    again.load_state_dict(agent.state_dict())
    assert torch.equal(parameters(again), parameters(agent))


def test_networks_added_after_the_constructor_are_trained_only_if_the_subclass_says_so():
    class Forgets(Agent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.later = torch.nn.Linear(2, 2)

        def init_extra_networks(self) -> None:
            self.extra = torch.nn.Linear(2, 2)
            self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)

    agent = make(Forgets)
    trained = {id(p) for p in agent.trainable_params}
    assert {id(p) for p in agent.extra.parameters()} <= trained
    for module in (agent.later, agent.frozen, agent.target_actor, agent.target_critics):
        assert not {id(p) for p in module.parameters()} & trained


# A forward of one's own


class OwnForward(Agent):
    """Filtered behaviour cloning and TD learning written out for all L timesteps, padding included."""

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        self.update_info = {}
        log = self.update_info if log_step else None
        direct = {key: batch.obs[key] for key in self.pass_obs_keys_to_actor}
        seq = self.tstep_encoder(obs=batch.obs, rl2s=batch.rl2s, log_dict=log)
        state, _ = self.traj_encoder(seq=seq, time_idxs=batch.time_idxs, hidden_state=None, log_dict=log)
        B, L, _ = state.shape
        G, C = len(self.gammas), self.num_critics
        real = ~((batch.rl2s == self.pad_val).all(-1, keepdim=True))[:, 1:]  # (B, T, 1)
        actor_mask = real.unsqueeze(2).repeat(1, 1, G, 1)
        critic_mask = real[:, :, None, None].repeat(1, 1, C, G, 1)
        recorded = self.actor.policy_dist.action_from_buffer(batch.actions)
        recorded = recorded.unsqueeze(2).expand(-1, -1, G, -1)  # (B, T, G, A)
        r = (self.reward_multiplier * batch.rews)[:, :, None, None]
        d = batch.dones.float()[:, :, None, None]

        dist = self.actor(state, log_dict=log, straight_from_obs=direct)
        with torch.no_grad():
            next_probs = self.target_actor(state, straight_from_obs=direct).probs[:, 1:].unsqueeze(0)
            next_values = self.popart(self.target_critics(state[:, 1:], next_probs), normalized=False)
            assert next_values.shape == (1, B, L - 1, C, G, 1)
            next_values = next_values.mean(0).mean(2, keepdim=True)
            target = nstep_return(r, d, next_values, self.gammas.unsqueeze(-1), 1, real[:, :, None, None])
            self.popart.update_stats(target, mask=critic_mask[:, :, :1])
        values = self.critics(state[:, :-1], recorded.unsqueeze(0), log_dict=log)[0]
        critic_loss = (self.popart(values) - self.popart.normalize_values(target)) ** 2
        critic_mask = self.edit_critic_mask(batch, critic_loss, critic_mask)

        with torch.no_grad():
            expected = self.critics(state[:, :-1], dist.probs[:, :-1].unsqueeze(0))[0]
            weights = self.fbc_filter_func((values - expected).mean(2))
        log_prob = DiscreteLikeContinuous(dist).log_prob(F.pad(recorded, (0, 0, 0, 0, 0, 1)))[:, :-1]
        actor_loss = -(weights * log_prob)
        actor_mask = self.edit_actor_mask(batch, actor_loss, actor_mask)
        losses = masked_avg(actor_loss, actor_mask, dim=None), masked_avg(critic_loss, critic_mask, dim=None)
        if log is not None:
            log["Actor Loss"], log["Critic Loss"] = losses
        return losses[0] + self.critic_loss_weight * losses[1]


@pytest.mark.parametrize("masked", [False, True])
def test_a_forward_written_out_by_the_user_equals_ours(masked, make_batch):
    settings: dict[str, Any] = MASKED if masked else {}
    settings = {**settings, "online_coeff": 0.0, "offline_coeff": 1.0, "num_critics": 3, "num_critics_td": 3}
    batch = with_illegal_actions(make_batch(CHOICE))
    ours, users = make(**settings).eval(), make(OwnForward, **settings).eval()
    users.load_state_dict(ours.state_dict())
    for agent in (ours, users):
        agent(batch, log_step=True).backward()
    for name in ("Actor Loss", "Critic Loss"):
        torch.testing.assert_close(users.update_info[name], ours.update_info[name], rtol=1e-4, atol=1e-5)
    for module in ("actor", "critics", "traj_encoder", "tstep_encoder"):
        pairs = zip(getattr(users, module).parameters(), getattr(ours, module).parameters(), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)


# Masks of losses as functions


def test_functions_put_on_the_agent_edit_the_masks_of_the_losses(make_batch):
    agent = make(online_coeff=0.0, offline_coeff=1.0).eval()
    discounts, critics = len(agent.gammas), agent.num_critics
    batch = with_illegal_actions(make_batch(CHOICE))
    seen: dict[str, tuple[torch.Size, Tensor]] = {}

    def edit_actor_mask(batch: Batch, actor_loss: Tensor, pad_mask: Tensor) -> Tensor:
        assert actor_loss.shape == pad_mask.shape == (3, 8, discounts, 1)
        seen["actor"] = (pad_mask.shape, actor_loss)
        pad_mask[:, :, :-1] = False  # in place
        return pad_mask

    def edit_critic_mask(batch: Batch, critic_loss: Tensor, pad_mask: Tensor) -> Tensor:
        assert critic_loss.shape == pad_mask.shape == (3, 8, critics, discounts, 1)
        seen["critic"] = (pad_mask.shape, critic_loss)
        return pad_mask * torch.tensor([1.0, 0.0, 0.5]).view(3, 1, 1, 1, 1)  # weights

    agent.edit_actor_mask = edit_actor_mask
    agent.edit_critic_mask = edit_critic_mask
    agent(batch, log_step=True).backward()
    actor_loss, critic_loss = seen["actor"][1], seen["critic"][1]
    real = batch.transition_mask.squeeze(-1)
    expected = actor_loss[..., -1, 0][real].mean()
    torch.testing.assert_close(agent.update_info["Actor Loss"], expected.detach(), rtol=1e-4, atol=1e-6)
    first, third = critic_loss[0, real[0]], critic_loss[2, real[2]]
    expected = (first.sum() + 0.5 * third.sum()) / (first.numel() + 0.5 * third.numel())
    torch.testing.assert_close(agent.update_info["Critic Loss"], expected.detach(), rtol=1e-4, atol=1e-6)


# Parts that are partials and functions


def make_transformer(tstep_dim: int, max_seq_len: int) -> TformerTrajEncoder:
    return TformerTrajEncoder(tstep_dim, max_seq_len, d_model=16, n_heads=2, d_ff=16, n_layers=1)


def make_actor(**kwargs: Any) -> ResidualActor:
    return ResidualActor(feature_dim=16, residual_ff_dim=16, **kwargs)


@pytest.mark.parametrize(
    "agent_type", [Agent, partial(Agent, tau=0.5), lambda **kwargs: Agent(tau=0.5, **kwargs)]
)
def test_parts_may_be_partials_or_functions(agent_type, make_batch):
    agent = make(
        partial(agent_type, reward_multiplier=2.0),
        traj_encoder_type=make_transformer,
        actor_type=make_actor,
        critic_type=partial(NCritics, d_hidden=16, n_layers=1),
    )
    assert agent.reward_multiplier == 2.0
    loss = agent(with_illegal_actions(make_batch(CHOICE, lengths=(8, 5))), log_step=True)
    loss.backward()
    assert agent.actor.out.weight.grad.any()
    assert compile_actor(agent.eval()) is not None


class AnyArguments(Actor):
    """Passes its arguments on, as short subclasses do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    "actor_type",
    [Actor, AnyArguments, partial(Actor, d_hidden=8), partial(AnyArguments, n_layers=1), make_actor],
)
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (ActionSpec("multibinary", (3,)), Multibinary),
        (ActionSpec("multidiscrete", (2, 3)), MultiDiscrete),
        (ActionSpec("box", (2,), -1.0, 1.0), TanhGaussian),
        (CHOICE, Discrete),
    ],
)
def test_every_kind_of_actor_gets_the_distribution_of_the_action_space(actor_type, action, expected):
    agent = make(action=action, actor_type=actor_type, online_coeff=0.0, offline_coeff=1.0)
    assert type(agent.actor.policy_dist) is expected


class OwnBits(Multibinary):
    """Another distribution over bits."""


def test_a_distribution_that_is_set_elsewhere_wins():
    bits = ActionSpec("multibinary", (3,))
    offline = {"action": bits, "online_coeff": 0.0, "offline_coeff": 1.0}
    by_partial = make(actor_type=partial(AnyArguments, continuous_dist_type=OwnBits), **offline)
    assert type(by_partial.actor.policy_dist) is OwnBits
    with gin.unlock_config():
        gin.bind_parameter("Actor.continuous_dist_type", OwnBits)
    assert type(make(actor_type=AnyArguments, **offline).actor.policy_dist) is OwnBits
