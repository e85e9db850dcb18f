"""What an update measures and moves is of that update alone, and in the units that it says.

Each behaviour is also tried on a small recreation of the mistake that it guards against.
"""

import copy

import pytest
import torch
from torch import nn

from amago.agent import Agent, exp_filter
from amago.agent.filters import binary_filter
from amago.nets.masking import masked_avg
from amago.nets.specs import ActionSpec

BOX = ActionSpec("box", (2,), -1.0, 1.0)


class CopiesItsCritics(Agent):
    """The fault: the online loss runs through a copy of the critics that learns nothing and is never cleared."""

    def init_extra_networks(self):
        self.second_critics = copy.deepcopy(self.critics)

    def _policy_values(self, t, dist, recorded):
        self.second_critics.load_state_dict(self.critics.state_dict())
        action = self.return_head.policy_actions(dist, self.num_actions_for_value_in_actor_loss, grad=True)
        return self.second_critics(t.state.detach(), action)

    @property
    def trainable_params(self):
        copied = {id(p) for p in self.second_critics.parameters()}
        return [p for p in super().trainable_params if id(p) not in copied]


def norms_before_clipping(agent, batch, updates=3):
    """Total gradient norms of updates that change nothing, so that all of them should be equal."""
    agent.eval()  # no dropout, no moving statistics
    optimizer = torch.optim.SGD(agent.trainable_params, lr=0.0)
    norms = []
    for _ in range(updates):
        torch.manual_seed(0)
        agent(batch, log_step=False).backward()
        norms.append(nn.utils.clip_grad_norm_(agent.parameters(), 1e6).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms


def test_the_norm_that_gradients_are_clipped_by_counts_this_updates_gradients_only(make_agent, make_batch):
    torch.manual_seed(0)
    clean, faulty = (make_agent(BOX, popart=False, cls=cls) for cls in (Agent, CopiesItsCritics))
    batch = make_batch(BOX)
    norms = norms_before_clipping(clean, batch)
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-6)
    growing = norms_before_clipping(faulty, batch)
    assert growing[0] < growing[1] < growing[2]


def test_every_gradient_that_enters_clipping_belongs_to_the_optimizer(make_agent, make_batch):
    def strays(agent):
        agent(make_batch(BOX), log_step=False).backward()
        owned = {id(p) for p in agent.trainable_params}
        return [name for name, p in agent.named_parameters() if p.grad is not None and id(p) not in owned]

    torch.manual_seed(0)
    assert strays(make_agent(BOX)) == []
    assert strays(make_agent(BOX, cls=CopiesItsCritics))


def test_values_are_given_in_the_units_that_training_filters_by(make_agent, make_batch):
    """PopArt's scale is far from 1 here, and the filter is not blind to scale as a binary one is."""
    torch.manual_seed(0)
    arguments = {"online_coeff": 0.0, "offline_coeff": 1.0, "use_multigamma": False}
    agent = make_agent(fbc_filter_func=exp_filter, **arguments).eval()
    agent.popart.w.fill_(3.0)
    agent.popart.b.fill_(0.5)
    batch = make_batch()
    q, v = agent.get_values(batch)
    agent(batch, log_step=True)
    real = batch.transition_mask.unsqueeze(-1)
    seen = agent.update_info["Filter Mean"]

    def mean_weight(q, v):
        return masked_avg(exp_filter(q - v), real, dim=None)

    torch.testing.assert_close(mean_weight(q, v), seen, rtol=1e-4, atol=1e-5)
    # The fault: the given values have gone through PopArt, the ones that training compares have not.
    assert (mean_weight(3.0 * q + 0.5, 3.0 * v + 0.5) - seen).abs() > 1e-3 * seen
    # A binary filter would not have noticed.
    assert torch.equal(binary_filter(3.0 * (q - v)), binary_filter(q - v))


@pytest.mark.parametrize("multiplier", [1.0, 10.0])
def test_the_logged_reward_is_the_environments_over_real_transitions(make_agent, make_batch, multiplier):
    torch.manual_seed(0)
    batch = make_batch()
    expected = batch.rews[batch.transition_mask].mean()
    agent = make_agent(reward_multiplier=multiplier)
    agent(batch, log_step=True)
    torch.testing.assert_close(agent.update_info["Mean Reward (in training sequences)"], expected)
    # The faults: padding counts, or the multiplier of the loss is left in.
    assert (batch.rews.mean() - expected).abs() > 0.1
    assert multiplier == 1.0 or (multiplier * expected - expected).abs() > 0.1


def test_logged_gradient_norms_are_those_of_what_was_just_computed(make_agent, make_batch):
    torch.manual_seed(0)
    agent = make_agent()
    agent(make_batch(), log_step=True).backward()
    measured = {name: norm.item() for name, norm in agent.get_grad_norms().items()}
    parts = {
        "Actor Grad Norm": agent.actor,
        "Critic Grad Norm": agent.critics,
        "TrajEncoder Grad Norm": agent.traj_encoder,
        "TstepEncoder Grad Norm": agent.tstep_encoder,
    }
    for name, part in parts.items():
        flat = torch.cat([p.grad.flatten() for p in part.parameters() if p.grad is not None])
        assert measured[name] == pytest.approx(flat.norm().item(), rel=1e-5)
    # The fault: measured after clipping, every norm is below the limit whatever the update was.
    nn.utils.clip_grad_norm_(agent.parameters(), 0.1)
    clipped = {name: norm.item() for name, norm in agent.get_grad_norms().items()}
    assert all(clipped[name] < 0.2 * measured[name] for name in measured)


@pytest.mark.parametrize("poison", [float("inf"), float("nan"), 1e38])
def test_a_reward_that_is_not_finite_leaves_the_statistics_of_an_agent_usable(make_agent, make_batch, poison):
    torch.manual_seed(0)
    agent = make_agent()
    spoiled = make_batch()
    spoiled.rews[0, 0] = poison
    agent(spoiled, log_step=False)
    assert all(buffer.isfinite().all() for buffer in agent.popart.buffers())
    assert agent(make_batch(seed=1), log_step=False).isfinite()
    # The fault: one such value makes a plain mean, and all that it is averaged into, not finite for good.
    naive = 0.9 * torch.zeros(()) + 0.1 * (10.0 * spoiled.rews).square().mean()
    assert not (0.9 * naive + 0.1 * make_batch(seed=1).rews.mean()).isfinite()
