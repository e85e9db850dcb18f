"""The agent whose critics classify returns: its losses by formula, its action spaces, and what it shares."""

import inspect

import gin
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Distribution, OneHotCategorical

from amago.agent import Agent, MultiTaskAgent, binary_filter, get_agent_cls
from amago.nets.actor_critic import NCritics, NCriticsTwoHot, gammas_as_input_seq
from amago.nets.policy_dists import Beta, Discrete
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import get_traj_encoder_cls, list_registered_traj_encoders
from amago.nets.tstep_encoders import get_tstep_encoder_cls, list_registered_tstep_encoders

SPACES = {
    "discrete": ActionSpec("discrete", (3,)),
    "many": ActionSpec("discrete", (1000,)),
    "multidiscrete": ActionSpec("multidiscrete", (3, 2)),
    "multibinary": ActionSpec("multibinary", (4,)),
    "box": ActionSpec("box", (2,)),
}
BOTH = {"online_coeff": 0.7, "offline_coeff": 0.4}


@pytest.fixture
def make(make_agent):
    def build(kind="discrete", encoder="ff", **kwargs):
        return make_agent(SPACES[kind], encoder, **{"cls": MultiTaskAgent, **kwargs})

    return build


def plain_values(critics, state, action):
    """Logits and decoded values of states (n, S) and actions (n, G, A), (n, C, G, ...): all written out."""
    inputs = torch.cat(
        (
            state[:, None].expand(-1, action.shape[1], -1),
            gammas_as_input_seq(critics.gammas, 1, len(state))[0].double(),
            action.clamp(-0.999, 0.999),
        ),
        dim=-1,
    )
    layers = [critics.net.inp_layer, *critics.net.core_layers, critics.net.output_layer]
    outs = []
    for c in range(critics.num_critics):
        x = inputs
        for i, layer in enumerate(layers):
            x = x @ layer.weight[c].double() + layer.bias[0, 0, c].double()
            x = F.leaky_relu(x) if i < len(layers) - 1 else x
        outs.append(x)
    logits = torch.stack(outs, dim=1)  # (n, C, G, bins)
    mean = (logits.softmax(-1) * critics.bins.points(torch.float64)).sum(-1)
    return logits, mean.sign() * torch.expm1(mean.abs())


def plain_labels(critics, returns):
    """Two-hot labels (..., bins) of returns (...)."""
    points = critics.bins.points(torch.float64)
    x = (returns.sign() * torch.log1p(returns.abs())).clamp(points[0], points[-1])
    return (1 - (x.unsqueeze(-1) - points).abs() / (points[1] - points[0])).clamp_min(0)


def certain(agent, kind):
    """Makes every policy certain of its action, so that no draw matters."""
    with torch.no_grad():
        for actor in (agent.actor, agent.target_actor):
            actor.base.out_layer.weight.mul_(1e5 if kind == "discrete" else 1.0)
    return agent


def certain_actions(actor, state, kind):
    """(n, G, A), the actions of a certain policy."""
    dist = actor(state.float().unsqueeze(0))
    if kind == "discrete":
        return F.one_hot(dist.probs[0].argmax(-1), dist.probs.shape[-1]).double()
    return dist.mean[0].double()


@torch.no_grad()
def plain_losses(agent, batch, kind):
    """Critic loss, filter, online and offline actor loss of certain policies, one mean each, in float64."""
    states = agent.encode_batch(batch)
    real = batch.transition_mask[..., 0]
    state, after = (x[real].double() for x in (states[:, :-1], states[:, 1:]))
    reward = 10.0 * batch.rews[real].double()  # (n, 1)
    done = batch.dones[real].double()
    action = agent.actor.policy_dist.action_from_buffer(batch.actions[real]).double()
    gammas = agent.gammas.double()
    _, future = plain_values(agent.target_critics, after, certain_actions(agent.target_actor, after, kind))
    future = future.amin(1) if agent.online_coeff > 0 else future.mean(1)  # (n, G)
    target = reward + gammas * (1 - done) * future
    repeated = action.unsqueeze(1).expand(-1, len(gammas), -1)
    logits, q = plain_values(agent.critics, state, repeated)
    labels = plain_labels(agent.critics, target).unsqueeze(1)  # (n, 1, G, bins)
    critic_loss = -(labels * logits.log_softmax(-1)).sum(-1).mean()
    _, v = plain_values(agent.critics, state, certain_actions(agent.actor, state, kind))
    weights = (q.mean(1) > v.mean(1)).double()
    # The first step of the running statistics: half of the start, half of the targets.
    beta = agent.popart.beta
    step = beta / (1 - (1 - beta) ** 2)
    mu, nu = step * target.mean(0), (1 - step) * 100.0 + step * target.square().mean(0)
    online = -((v - mu) / (nu - mu**2).sqrt()).amin(1).mean()
    dist = agent.actor(state.float().unsqueeze(0))
    log_prob = agent._log_prob(dist, action.float().unsqueeze(0))[0, ..., 0].double()
    return critic_loss, weights, online, -(weights * log_prob).mean()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("coeffs", [{}, {"online_coeff": 1.0, "offline_coeff": 0.3}], ids=["offline", "both"])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_losses_equal_the_formula(make, make_batch, kind, coeffs, seed):
    torch.manual_seed(seed)
    gin.bind_parameter("TanhGaussian.std_low", 1e-6)
    gin.bind_parameter("TanhGaussian.std_high", 1.1e-6)
    gin.bind_parameter("NCriticsTwoHot.n_layers", 1 + seed)
    critics = 1 + 2 * seed
    agent = make(kind, num_critics=critics, num_critics_td=critics, **coeffs)
    certain(agent, kind).eval()
    for net, target in ((agent.critics, agent.target_critics), (agent.actor, agent.target_actor)):
        for p, moved in zip(net.parameters(), target.parameters(), strict=True):
            moved.data.copy_(p + 0.05 * p.abs().mean() * torch.randn_like(p))
    batch = make_batch(SPACES[kind], lengths=(4 + seed, 9, 3), seed=seed)
    critic, weights, online, offline = plain_losses(agent, batch, kind)
    loss = agent(batch, log_step=True)
    info = agent.update_info
    close = {"atol": 1e-3, "rtol": 1e-3}
    torch.testing.assert_close(info["Critic Loss"].double(), critic, **close)
    torch.testing.assert_close(info["Filter Mean"].double(), weights.mean(), atol=1e-4, rtol=0.0)
    actor = agent.online_coeff * online + agent.offline_coeff * offline
    if kind == "discrete":  # log-probabilities of a nearly certain normal distribution are mostly rounding
        torch.testing.assert_close(info["Actor Loss"].double(), actor, **close)
        torch.testing.assert_close(loss.detach().double(), actor + 10.0 * critic, **close)


@pytest.mark.parametrize("coeffs", [{}, BOTH], ids=["offline", "both"])
@pytest.mark.parametrize("kind", SPACES)
def test_a_training_step_gives_every_trainable_part_a_finite_gradient(make, make_batch, kind, coeffs):
    if kind == "multibinary":  # samples of bits carry no gradient
        coeffs = {}
    torch.manual_seed(0)
    agent = make(kind, "transformer", **coeffs)
    agent(make_batch(SPACES[kind]), log_step=True).backward()
    assert not [name for name, p in agent.named_parameters() if p.requires_grad and p.grad is None]
    assert all(torch.isfinite(p.grad).all() for p in agent.parameters() if p.requires_grad)
    assert all(torch.isfinite(value).all() for value in agent.update_info.values())


OBSERVATIONS = {"cnn": {"observation": (36, 36, 3)}}


@pytest.mark.parametrize("agent_cls", [Agent, MultiTaskAgent])
@pytest.mark.parametrize("traj", list_registered_traj_encoders())
@pytest.mark.parametrize("tstep", list_registered_tstep_encoders())
def test_every_pair_of_encoders_trains_and_acts(make_batch, make, tstep, traj, agent_cls):
    torch.manual_seed(0)
    make()  # binds small sizes
    gin.bind_parameter("MambaTrajEncoder.d_model", 16)
    shapes = OBSERVATIONS.get(tstep, {"observation": (4,)})
    agent = agent_cls(
        obs_space=shapes,
        rl2_space=(4,),
        action_space=SPACES["discrete"],
        max_seq_len=9,
        tstep_encoder_type=get_tstep_encoder_cls(tstep),
        traj_encoder_type=get_traj_encoder_cls(traj),
    )
    batch = make_batch()
    batch.obs = {key: torch.rand(3, 9, *shape) for key, shape in shapes.items()}
    agent(batch, log_step=False).backward()
    assert all(p.grad is not None for p in agent.actor.parameters())
    agent.eval()
    hidden = agent.init_hidden_state(3, "cpu")
    for _ in range(2):
        now = {key: value[:, :1] for key, value in batch.obs.items()}
        actions, hidden = agent.get_actions(now, batch.rl2s[:, :1], batch.time_idxs[:, :1], hidden)
        hidden = agent.reset_hidden_state(hidden, [False, True, False])
    assert actions.shape == (3, 1, 1)


def test_what_stands_in_padding_changes_nothing(make, make_batch):
    losses = []
    for poison in (4.0, float("nan")):
        torch.manual_seed(0)
        agent = make("box", "transformer", n_step=3, **BOTH)
        batch = make_batch(SPACES["box"])
        for row, length in enumerate(batch.lengths.tolist()):
            batch.rews[row, length - 1 :] = poison
            batch.actions[row, length - 1 :] = poison
        torch.manual_seed(1)
        losses.append(agent(batch, log_step=False).detach())
    torch.testing.assert_close(*losses)


def test_bf16_autocast_trains(make, make_batch):
    torch.manual_seed(0)
    agent = make("box", "transformer", **BOTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = agent(make_batch(SPACES["box"]), log_step=False)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in agent.parameters() if p.grad is not None)


@pytest.fixture
def validating():
    """Distributions that validate their arguments: torch's default, which torch.compile turns off."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def soft_log_prob_is_refused():
    """The fault: a recorded action as `Discrete` softens it, judged by a distribution of one-hot vectors."""
    action = Discrete(3).action_from_buffer(torch.tensor([[0.0, 1.0, 0.0]]))
    with pytest.raises(ValueError, match="to be within the support"):
        OneHotCategorical(logits=torch.zeros(1, 3)).log_prob(action)


@pytest.mark.usefixtures("validating")
def test_discrete_actions_train_while_distributions_validate_their_arguments(make, make_batch):
    soft_log_prob_is_refused()
    torch.manual_seed(0)
    for coeffs in ({}, BOTH):
        loss = make("discrete", **coeffs)(make_batch(), log_step=True)
        assert torch.isfinite(loss)


def test_critics_see_discrete_actions_as_hard_one_hot_samples(make):
    torch.manual_seed(0)
    agent = make()
    dist = agent.actor(torch.randn(1, 500, 16))
    action = agent.return_head.policy_actions(dist, 4)
    assert action.shape == (4, 1, 500, 3, 3)
    assert set(action.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(action.sum(-1), torch.ones(4, 1, 500, 3))
    frequency = action.mean((0, 1, 2))
    torch.testing.assert_close(frequency, dist.probs.mean((0, 1)), atol=0.05, rtol=0.0)
    carried = agent.return_head.policy_actions(dist, 2, grad=True)
    assert set(carried.round(decimals=5).unique().tolist()) <= {0.0, 1.0}
    assert carried.requires_grad


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete", "box"])
def test_the_online_loss_moves_actor_and_encoders_but_not_the_critics(make, make_batch, kind):
    torch.manual_seed(0)
    agent = make(kind, "gru", online_coeff=1.0, offline_coeff=0.0, critic_loss_weight=0.0)
    agent(make_batch(SPACES[kind]), log_step=False).backward()
    norms = {name: value.item() for name, value in agent.get_grad_norms().items()}
    assert norms["Actor Grad Norm"] > 0.0
    assert norms["TrajEncoder Grad Norm"] > 0.0
    assert norms["Critic Grad Norm"] == 0.0


def test_the_actors_gradient_does_not_grow_with_the_values(make, make_batch):
    """By default the actor imitates; however large returns are, only the sign of the advantage counts."""
    grads = []
    for multiplier in (1.0, 100.0):
        torch.manual_seed(0)
        agent = make("box", reward_multiplier=multiplier, critic_loss_weight=0.0)
        agent(make_batch(SPACES["box"]), log_step=False).backward()
        grads.append([p.grad for p in agent.actor.parameters()])
        assert not any(p.grad.any() for p in agent.critics.parameters())
    for small, large in zip(*grads, strict=True):
        assert small.any()
        torch.testing.assert_close(small, large)


def test_get_values_filters_as_training_does(make, make_batch):
    torch.manual_seed(0)
    gin.bind_parameter("TanhGaussian.std_low", 1e-6)  # so that the sampled actions do not differ
    gin.bind_parameter("TanhGaussian.std_high", 1.1e-6)
    agent = make("box", use_multigamma=False).eval()
    batch = make_batch(SPACES["box"])
    q, v = agent.get_values(batch)
    assert q.shape == v.shape == (3, 8, 1, 1)
    agent(batch, log_step=True)
    real = batch.transition_mask.unsqueeze(-1)
    torch.testing.assert_close(binary_filter(q - v)[real].mean(), agent.update_info["Filter Mean"])
    torch.testing.assert_close(
        (q - v)[real].mean(), agent.update_info["Advantage Mean"], atol=1e-4, rtol=1e-4
    )
    assert not (q - v)[~real].any()


def test_values_are_returns_times_the_multiplier_and_targets_are_too(make, make_batch):
    torch.manual_seed(0)
    gin.bind_parameter("NCriticsTwoHot.init_value", 40.0)
    agent = make("box", reward_multiplier=7.0)
    batch = make_batch(SPACES["box"])
    q, v = agent.get_values(batch)
    real = batch.transition_mask.unsqueeze(-1).expand_as(q)
    assert 20.0 < q[real].mean() < 80.0
    assert 20.0 < v[real].mean() < 80.0
    batch.dones[:] = True
    targets = agent.td_targets(batch, agent._encode_transitions(batch, None))  # (1, n, 1, G, 1)
    rewards = batch.rews[batch.transition_mask].view(1, -1, 1, 1, 1)
    torch.testing.assert_close(targets, (7.0 * rewards).expand_as(targets))


def test_fake_filter_without_an_online_loss_skips_the_critics(make, make_batch):
    torch.manual_seed(0)
    agent = make(fake_filter=True)
    before = agent.popart.mu.clone()
    agent(make_batch(), log_step=True).backward()
    assert agent.update_info["Critic Loss"].item() == 0.0
    assert all(p.grad is None for p in agent.critics.parameters())
    assert torch.equal(agent.popart.mu, before)


class Counting(NCriticsTwoHot):
    """Notes the shape of every action that it is asked about."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []

    def critic_network_forward(self, state, action, log_dict=None):
        self.asked.append((tuple(action.shape), torch.is_grad_enabled()))
        return super().critic_network_forward(state, action, log_dict=log_dict)


def test_critics_judge_recorded_actions_once_and_samples_without_gradient(make, make_batch):
    torch.manual_seed(0)
    agent = make("box", critic_type=Counting)
    agent(make_batch(SPACES["box"]), log_step=True)
    n = int(make_batch(SPACES["box"]).transition_mask.sum())
    assert agent.critics.asked == [((1, 1, n, 3, 2), True), ((3, 1, n, 3, 2), False)]
    assert agent.target_critics.asked == [((1, 1, n, 3, 2), False)]


def test_the_same_seed_gives_the_same_updates_bit_for_bit(make, make_batch):
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        agent = make("discrete", "transformer", **BOTH)
        optimizer = torch.optim.AdamW(agent.trainable_params, lr=1e-3)
        for seed in range(3):
            optimizer.zero_grad()
            agent(make_batch(seed=seed), log_step=False).backward()
            optimizer.step()
            agent.soft_sync_targets()
        results.append([p.detach().clone() for p in agent.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_bindings_of_agent_do_not_reach_it(make):
    gin.bind_parameter("Agent.tau", 0.9)
    gin.bind_parameter("Agent.num_critics", 9)
    gin.bind_parameter("MultiTaskAgent.reward_multiplier", 3.0)
    agent = make()
    assert (agent.tau, agent.num_critics, agent.reward_multiplier) == (0.003, 4, 3.0)


def test_every_setting_of_agent_is_passed_on(make):
    """A setting that were forgotten would silently keep the default of `Agent`."""
    differing = {
        "num_critics": 5,
        "num_critics_td": 3,
        "online_coeff": 0.25,
        "offline_coeff": 0.5,
        "critic_loss_weight": 2.0,
        "gamma": 0.7,
        "reward_multiplier": 3.0,
        "tau": 0.5,
        "fake_filter": True,
        "num_actions_for_value_in_critic_loss": 2,
        "num_actions_for_value_in_actor_loss": 4,
        "fbc_filter_func": torch.sigmoid,
        "use_target_actor": False,
        "n_step": 3,
        "critic_type": Counting,
        "pass_obs_keys_to_actor": ["observation"],
    }
    agent = make(**differing, popart=False, use_multigamma=False)
    assert {name: getattr(agent, name) for name in differing} == differing
    assert not agent.popart.enabled
    assert agent.gammas.tolist() == pytest.approx([0.7])
    rest = set(inspect.signature(Agent).parameters) - set(differing) - {"popart", "use_multigamma"}
    encoders = {"obs_space", "rl2_space", "action_space", "max_seq_len"}
    assert rest == {*encoders, "tstep_encoder_type", "traj_encoder_type", "actor_type"}


def test_it_is_known_by_name():
    assert get_agent_cls("multitask") is MultiTaskAgent


def test_critics_that_do_not_classify_are_refused(make):
    with pytest.raises(
        TypeError,
        match="critic_type must have bin_dist_to_raw_vals and cross_entropy .*, got NCritics without",
    ):
        make(critic_type=NCritics)


def test_another_distribution_of_continuous_actions_works_too(make, make_batch):
    torch.manual_seed(0)
    gin.bind_parameter("Actor.continuous_dist_type", Beta)
    loss = make("box", **BOTH)(make_batch(SPACES["box"]), log_step=False)
    assert torch.isfinite(loss)
