"""Agents: gradients of each loss, padding, actions, hooks, and arguments out of range."""

import copy
import threading

import gin
import pytest
import torch

from amago.agent import Agent, MultiTaskAgent, binary_filter
from amago.nets.masking import current_timestep_mask, masked_avg
from amago.nets.policy_dists import GMM
from amago.nets.specs import ActionSpec

SPACES = {
    "discrete": ActionSpec("discrete", (3,)),
    "many": ActionSpec("discrete", (1000,)),
    "multidiscrete": ActionSpec("multidiscrete", (3, 2)),
    "multibinary": ActionSpec("multibinary", (4,)),
    "box": ActionSpec("box", (2,)),
}
OFFLINE = {"online_coeff": 0.0, "offline_coeff": 1.0}


def settings_for(kind):
    return OFFLINE if kind == "multibinary" else {}


AGENTS = pytest.mark.parametrize("cls", [Agent, MultiTaskAgent])
BOTH = {"online_coeff": 0.7, "offline_coeff": 0.4}


@AGENTS
@pytest.mark.parametrize("encoder", ["ff", "gru", "transformer"])
@pytest.mark.parametrize("kind", SPACES)
def test_a_training_step_gives_every_trainable_part_a_finite_gradient(
    make_agent, make_batch, kind, encoder, cls
):
    torch.manual_seed(0)
    agent = make_agent(SPACES[kind], encoder, cls=cls, **(OFFLINE if kind == "multibinary" else BOTH))
    agent(make_batch(SPACES[kind]), log_step=True).backward()
    missing = [name for name, p in agent.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing
    assert all(torch.isfinite(p.grad).all() for p in agent.parameters() if p.requires_grad)
    assert all(torch.isfinite(value).all() for value in agent.update_info.values())


@AGENTS
@pytest.mark.parametrize("kind", ["discrete", "multidiscrete", "box"])
def test_the_online_loss_moves_actor_and_encoders_but_not_the_critics(make_agent, make_batch, kind, cls):
    torch.manual_seed(0)
    settings = {"online_coeff": 1.0, "offline_coeff": 0.0, "critic_loss_weight": 0.0}
    agent = make_agent(SPACES[kind], "gru", cls=cls, **settings)
    agent(make_batch(SPACES[kind]), log_step=False).backward()
    norms = {name: value.item() for name, value in agent.get_grad_norms().items()}
    assert norms.pop("Critic Grad Norm") == 0.0
    assert len(norms) == 3
    assert all(norm > 0.0 for norm in norms.values())


@AGENTS
@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_padding_does_not_change_losses_or_gradients(make_agent, make_batch, kind, n_step, cls):
    spec = SPACES[kind]
    results = []
    for fill in (4.0, 1e4, float("nan")):
        torch.manual_seed(0)
        agent = make_agent(spec, "transformer", cls=cls, n_step=n_step, **BOTH)
        batch = make_batch(spec)
        for row, length in enumerate(batch.lengths.tolist()):
            batch.obs["observation"][row, length:] = 1e4 if fill != 4.0 else 4.0
            batch.rews[row, length - 1 :] = fill
            batch.actions[row, length - 1 :] = fill
        torch.manual_seed(1)
        loss = agent(batch, log_step=False)
        loss.backward()
        results.append((loss.detach(), agent.actor.base.in_layer.weight.grad))
    for loss, grad in results[1:]:
        torch.testing.assert_close(loss, results[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(grad, results[0][1], rtol=1e-4, atol=1e-6)


@AGENTS
def test_fake_filter_without_an_online_loss_skips_the_critics(make_agent, make_batch, cls):
    torch.manual_seed(0)
    agent = make_agent(cls=cls, fake_filter=True, **OFFLINE)
    before = agent.popart.mu.clone()
    agent(make_batch(), log_step=True).backward()
    assert agent.update_info["Critic Loss"].item() == 0.0
    assert all(p.grad is None for p in agent.critics.parameters())
    assert torch.equal(agent.popart.mu, before)


@AGENTS
def test_bf16_autocast_trains(make_agent, make_batch, cls):
    torch.manual_seed(0)
    agent = make_agent(SPACES["box"], "transformer", cls=cls, **BOTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = agent(make_batch(SPACES["box"]), log_step=False)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in agent.parameters() if p.grad is not None)


@AGENTS
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_the_same_seed_gives_the_same_updates_bit_for_bit(make_agent, make_batch, kind, cls):
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        agent = make_agent(SPACES[kind], "transformer", cls=cls, **BOTH)
        optimizer = torch.optim.AdamW(agent.trainable_params, lr=1e-3)
        for seed in range(3):
            optimizer.zero_grad()
            agent(make_batch(SPACES[kind], seed=seed), log_step=False).backward()
            optimizer.step()
            agent.soft_sync_targets()
        results.append([p.detach().clone() for p in agent.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@AGENTS
def test_get_values_filters_as_training_does(make_agent, make_batch, cls):
    torch.manual_seed(0)
    gin.bind_parameter("TanhGaussian.std_low", 1e-6)  # so that samples hardly differ
    gin.bind_parameter("TanhGaussian.std_high", 1.1e-6)
    agent = make_agent(SPACES["box"], cls=cls, use_multigamma=False, **OFFLINE).eval()
    batch = make_batch(SPACES["box"])
    q, v = agent.get_values(batch)
    assert q.shape == v.shape == (3, 8, 1, 1)
    agent(batch, log_step=True)
    real = batch.transition_mask.unsqueeze(-1)
    torch.testing.assert_close(binary_filter(q - v)[real].mean(), agent.update_info["Filter Mean"])
    assert not (q - v)[~real].any()


@AGENTS
def test_filters_receive_advantages_in_the_shape_of_the_batch(make_agent, make_batch, cls):
    """So that a filter can combine them with a mask of the batch."""
    torch.manual_seed(0)
    batch = make_batch()
    keep = torch.zeros(3, 8, 1, 1)
    keep[0, :4] = 1.0
    agent = make_agent(cls=cls, fbc_filter_func=lambda adv: keep.expand_as(adv), **OFFLINE)
    agent(batch, log_step=True)
    expected = keep[batch.transition_mask.unsqueeze(-1)].mean()
    torch.testing.assert_close(agent.update_info["Filter Mean"], expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_acting_in_another_thread_does_not_change_training(make_agent, make_batch, compiled):
    """The padding mask of a batch belongs to the thread that trains on it."""
    torch.manual_seed(0)
    agent = make_agent()
    acting, batch = copy.deepcopy(agent).eval(), make_batch()
    stop = threading.Event()

    def act():
        obs = {key: value[:, :1] for key, value in batch.obs.items()}
        while not stop.is_set():
            acting.get_actions(obs, batch.rl2s[:, :1], batch.time_idxs[:, :1], sample=False)
            assert current_timestep_mask() is None

    def statistics(loss, trained):
        for seed in range(3):
            loss(make_batch(seed=seed), log_step=False)
        return trained.tstep_encoder.in_norm.mu

    alone = copy.deepcopy(agent)
    expected = statistics(alone, alone)
    thread = threading.Thread(target=act)
    thread.start()
    try:
        loss = torch.compile(agent, backend="eager") if compiled else agent
        torch.testing.assert_close(statistics(loss, agent), expected)
    finally:
        stop.set()
        thread.join()


def test_the_loss_compiles_as_one_graph_for_batches_of_any_size_and_new_coefficients(make_agent, make_batch):
    torch.manual_seed(0)
    agent = make_agent(encoder="transformer", num_critics_td=4).eval()
    compiled = torch.compile(agent, backend="eager", fullgraph=True)
    for online_coeff, lengths in [(1.0, (9, 7, 6)), (0.0, (8, 8, 2)), (0.5, (9, 5, 4))]:
        agent.online_coeff = online_coeff
        batch = make_batch(lengths=lengths)
        batch.flat_idxs = batch.real_transitions()
        losses = []
        for loss in (copy.deepcopy(agent), compiled):  # a loss moves PopArt's statistics
            torch.manual_seed(1)
            losses.append(loss(batch, log_step=False))
        torch.testing.assert_close(*losses)


@pytest.mark.parametrize("kind", SPACES)
def test_actions_have_the_form_that_environments_take(make_agent, kind):
    torch.manual_seed(0)
    spec = SPACES[kind]
    agent = make_agent(spec, **settings_for(kind)).eval()
    inputs = (
        {"observation": torch.randn(6, 1, 4)},
        torch.zeros(6, 1, 1 + spec.dim),
        torch.zeros(6, 1, 1).long(),
    )
    for sample in (True, False):
        actions, _ = agent.get_actions(*inputs, sample=sample)
        if kind in ("discrete", "many"):
            assert actions.shape == (6, 1, 1)
            assert actions.dtype == torch.int64
            assert 0 <= actions.min() <= actions.max() < spec.dim
        elif kind == "multidiscrete":
            assert actions.shape == (6, 1, 2)
            assert (actions < torch.tensor(spec.sizes)).all()
        elif kind == "multibinary":
            assert actions.shape == (6, 1, 4)
            assert set(actions.unique().tolist()) <= {0, 1}
        else:
            assert actions.shape == (6, 1, 2)
            assert actions.dtype == torch.float32
            assert actions.abs().max() <= 1.0


def test_without_sampling_the_likeliest_action_of_the_last_discount_is_taken(make_agent):
    torch.manual_seed(0)
    agent = make_agent().eval()
    obs, rl2s, times = (
        {"observation": torch.randn(5, 1, 4)},
        torch.zeros(5, 1, 4),
        torch.zeros(5, 1, 1).long(),
    )
    states, _ = agent.get_state_embedding(obs, rl2s, times)
    probs = agent.actor(states).probs[:, :, -1]
    assert torch.equal(agent.get_actions(obs, rl2s, times, sample=False)[0][..., 0], probs.argmax(-1))


def test_sampling_follows_the_probabilities(make_agent):
    torch.manual_seed(0)
    agent = make_agent().eval()
    obs, rl2s = {"observation": torch.ones(20000, 1, 4)}, torch.zeros(20000, 1, 4)
    times = torch.zeros(20000, 1, 1).long()
    actions, _ = agent.get_actions(obs, rl2s, times)
    states, _ = agent.get_state_embedding({"observation": torch.ones(1, 1, 4)}, rl2s[:1], times[:1])
    expected = agent.actor(states).probs[0, 0, -1]
    frequencies = torch.bincount(actions.flatten(), minlength=3) / 20000
    torch.testing.assert_close(frequencies, expected, atol=0.02, rtol=0.0)


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("encoder", ["ff", "gru", "transformer"])
def test_acting_step_by_step_sees_the_states_of_training(make_agent, make_batch, encoder, kind):
    torch.manual_seed(0)
    spec = SPACES[kind]
    agent = make_agent(spec, encoder).eval()
    batch = make_batch(spec, lengths=(9, 9))
    whole, _ = agent.get_state_embedding(batch.obs, batch.rl2s, batch.time_idxs)
    hidden, steps = agent.init_hidden_state(2, "cpu"), []
    for i in range(9):
        now = slice(i, i + 1)
        obs = {"observation": batch.obs["observation"][:, now]}
        state, hidden = agent.get_state_embedding(obs, batch.rl2s[:, now], batch.time_idxs[:, now], hidden)
        steps.append(state)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_a_batch_without_transitions_gives_a_loss_of_zero_and_leaves_popart_alone(make_agent, make_batch):
    agent = make_agent()
    before = {key: value.clone() for key, value in agent.popart.state_dict().items()}
    loss = agent(make_batch(lengths=(3, 3)), log_step=False)
    assert loss.item() != 0.0
    moved = agent.popart.mu.clone()
    empty = make_batch(lengths=(3, 3))
    empty.lengths = torch.tensor([1, 1])
    loss = agent(empty, log_step=True)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(agent.popart.mu, moved)
    assert not torch.equal(moved, before["mu"])


def test_targets_have_no_gradient_and_move_by_tau(make_agent, make_batch):
    torch.manual_seed(0)
    agent = make_agent(tau=0.25)
    agent(make_batch(), log_step=False).backward()
    frozen = [*agent.target_actor.parameters(), *agent.target_critics.parameters()]
    assert all(not p.requires_grad and p.grad is None for p in frozen)
    assert not {id(p) for p in frozen} & {id(p) for p in agent.trainable_params}
    old = agent.target_actor.base.in_layer.weight.clone()
    agent.actor.base.in_layer.weight.data += 1.0
    agent.soft_sync_targets()
    torch.testing.assert_close(agent.target_actor.base.in_layer.weight, old + 0.25)
    agent.hard_sync_targets()
    torch.testing.assert_close(agent.target_actor.base.in_layer.weight, agent.actor.base.in_layer.weight)


def test_full_copy_and_ema_copy(make_agent):
    agent = make_agent(tau=0.25)
    target, online = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    start = target.weight.clone()
    agent._ema_copy(target, online)
    torch.testing.assert_close(target.weight, start + 0.25 * (online.weight - start))
    agent._ema_copy(target, online, tau=0.0)
    torch.testing.assert_close(target.weight, start + 0.25 * (online.weight - start))
    agent._full_copy(target, online)
    assert torch.equal(target.weight, online.weight)


def test_get_values_changes_no_state(make_agent, make_batch):
    torch.manual_seed(0)
    agent = make_agent(encoder="transformer")
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    agent.get_values(make_batch())
    assert agent.training
    torch.testing.assert_close(agent.state_dict(), before, rtol=0, atol=0)


def test_targets_are_of_the_scale_of_rewards_times_the_multiplier(make_agent, make_batch):
    torch.manual_seed(0)
    agent = make_agent(reward_multiplier=7.0)
    batch = make_batch()
    batch.dones[:] = True
    t = agent._encode_transitions(batch, None)
    targets = agent.td_targets(batch, t)  # (1, n, 1, G, 1)
    rewards = batch.rews[batch.transition_mask].view(1, -1, 1, 1, 1)
    torch.testing.assert_close(targets, (7.0 * rewards).expand_as(targets))


class OnlyTheFirstStep(Agent):
    """Counts the first transition of every sequence, and remembers what the hooks saw."""

    def edit_actor_mask(self, batch, actor_loss, pad_mask):
        self.actor_seen = (actor_loss.detach(), pad_mask)
        mask = torch.zeros_like(pad_mask)
        mask[:, 0] = True
        return mask

    def edit_critic_mask(self, batch, critic_loss, pad_mask):
        self.critic_seen = (critic_loss.detach(), pad_mask)
        return pad_mask


def test_mask_hooks_see_whole_sequences_and_decide_what_counts(make_agent, make_batch):
    torch.manual_seed(0)
    agent = make_agent(cls=OnlyTheFirstStep)
    batch = make_batch()
    agent(batch, log_step=True)
    actor_loss, pad_mask = agent.actor_seen
    assert actor_loss.shape == pad_mask.shape == (3, 8, 3, 1)
    assert agent.critic_seen[0].shape == agent.critic_seen[1].shape == (3, 8, 4, 3, 1)
    assert torch.equal(pad_mask[:, :, 0], batch.transition_mask)
    first = torch.zeros_like(pad_mask)
    first[:, 0] = True
    torch.testing.assert_close(agent.update_info["Actor Loss"], masked_avg(actor_loss, first, dim=None))


def test_chosen_observations_reach_actor_and_target_actor(make_agent, make_batch):
    seen = []

    def spy(module, args, kwargs):
        seen.append(kwargs["straight_from_obs"])

    agent = make_agent(pass_obs_keys_to_actor=["observation"])
    for actor in (agent.actor, agent.target_actor):
        actor.register_forward_pre_hook(spy, with_kwargs=True)
    batch = make_batch()
    agent(batch, log_step=False)
    real = batch.transition_mask.squeeze(-1)
    torch.testing.assert_close(seen[0]["observation"][0], batch.obs["observation"][:, 1:][real])
    torch.testing.assert_close(seen[1]["observation"][0], batch.obs["observation"][:, :-1][real])


def test_a_key_that_is_not_observed_is_an_error(make_agent):
    with pytest.raises(ValueError, match=r"pass_obs_keys_to_actor has \['goal'\], but the keys of the obs"):
        make_agent(pass_obs_keys_to_actor=["goal"])


def test_a_policy_without_differentiable_samples_refuses_the_online_loss(make_agent):
    with pytest.raises(
        ValueError, match=r"online_coeff must be 0, got 1.0: samples of Multibinary carry no gradient"
    ):
        make_agent(SPACES["multibinary"])
    gin.bind_parameter("Actor.continuous_dist_type", GMM)
    with pytest.raises(ValueError, match="samples of GMM carry no gradient"):
        make_agent(SPACES["box"])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_critics_td": 5}, r"num_critics_td must be at most num_critics \(4\), got 5"),
        ({"gamma": 1.2}, "gamma must be at most 1, got 1.2"),
        ({"tau": 0.0}, "tau must be above 0, got 0.0"),
        ({"n_step": 0}, "n_step must be at least 1, got 0"),
        ({"online_coeff": 0.0, "offline_coeff": 0.0}, "must not both be 0"),
        (
            {"num_actions_for_value_in_actor_loss": 0},
            "num_actions_for_value_in_actor_loss must be at least 1, got 0",
        ),
        ({"max_seq_len": 0}, "max_seq_len must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_named(make_agent, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_agent(**kwargs)


def test_saved_weights_of_older_policies_load_without_their_copy_of_the_critics(make_agent):
    agent = make_agent()
    saved = agent.state_dict()
    old = saved | {
        key.replace("critics.", "maximized_critics.", 1): v
        for key, v in saved.items()
        if key[:8] == "critics."
    }
    assert len(old) > len(saved)
    make_agent().load_state_dict(old, strict=True)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        agent.load_state_dict(saved | {"stray.weight": torch.zeros(1)})
