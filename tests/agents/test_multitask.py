"""MultiTaskAgent: what differs from Agent, and that every setting is passed on."""

import inspect

import gin
import pytest
import torch
from torch.distributions import Distribution, OneHotCategorical

from amago.agent import Agent, MultiTaskAgent
from amago.nets.actor_critic import NCritics, NCriticsTwoHot
from amago.nets.policy_dists import Discrete
from amago.nets.specs import ActionSpec

SPACES = {
    "discrete": ActionSpec("discrete", (3,)),
    "box": ActionSpec("box", (2,)),
}
BOTH = {"online_coeff": 0.7, "offline_coeff": 0.4}


@pytest.fixture
def make(make_agent):
    def build(kind="discrete", encoder="ff", **kwargs):
        return make_agent(SPACES[kind], encoder, **{"cls": MultiTaskAgent, **kwargs})

    return build


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


def test_values_and_targets_are_returns_times_the_multiplier(make, make_batch):
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


class Classifying(NCriticsTwoHot):
    """Critics of a user."""


def test_gin_bindings_of_agent_do_not_apply_to_multitask_agent(make):
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
        "critic_type": Classifying,
        "pass_obs_keys_to_actor": ["observation"],
    }
    agent = make(**differing, popart=False, use_multigamma=False)
    assert {name: getattr(agent, name) for name in differing} == differing
    assert not agent.popart.enabled
    assert agent.gammas.tolist() == pytest.approx([0.7])
    rest = set(inspect.signature(Agent).parameters) - set(differing) - {"popart", "use_multigamma"}
    encoders = {"obs_space", "rl2_space", "action_space", "max_seq_len"}
    assert rest == {*encoders, "tstep_encoder_type", "traj_encoder_type", "actor_type"}


def test_critics_that_do_not_classify_are_refused(make):
    with pytest.raises(
        TypeError,
        match=r"critic_type must have bin_dist_to_raw_vals and cross_entropy .*, got NCritics without",
    ):
        make(critic_type=NCritics)
