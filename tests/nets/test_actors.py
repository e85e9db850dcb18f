"""Actor heads: golden numbers, shapes, and heads that users write."""

import pytest
import torch
from torch import nn

from amago.nets.actor_critic import Actor, BaseActorHead, ResidualActor
from amago.nets.policy_dists import Discrete, Multibinary, MultiDiscrete, TanhGaussian

GAMMAS = [0.1, 0.9, 0.999]


@pytest.mark.parametrize("name", ["residual_actor_cont", "residual_actor_disc"])
def test_the_residual_actor_equals_the_golden_numbers(torch_golden, assert_forward, name):
    case = torch_golden(name)
    args = {key: value for key, value in case.args.items() if key not in ("cls", "note")}
    actor = ResidualActor(**args)
    actor.load_state_dict(case.state, strict=True)
    assert_forward(actor.actor_network_forward(case.tensors["state"]).detach(), case.tensors["y"])


@pytest.mark.parametrize("actor_type", [Actor, ResidualActor])
def test_an_actor_gives_one_policy_per_discount(actor_type):
    actor = actor_type(state_dim=8, action_dim=2, discrete=False, gammas=torch.tensor(GAMMAS))
    assert actor(torch.randn(4, 5, 8)).sample().shape == (4, 5, 3, 2)
    discrete = actor_type(state_dim=8, action_dim=6, discrete=True, gammas=GAMMAS)
    assert discrete(torch.randn(4, 5, 8)).probs.shape == (4, 5, 3, 6)


@pytest.mark.parametrize(
    ("dist_type", "action_dim"), [(Multibinary, 3), (MultiDiscrete.with_sizes((2, 3)), 5), (TanhGaussian, 2)]
)
def test_vector_actions_take_their_distribution_from_the_type(dist_type, action_dim):
    actor = Actor(8, action_dim, discrete=False, gammas=GAMMAS, continuous_dist_type=dist_type)
    dist = actor(torch.randn(4, 5, 8))
    assert dist.log_prob(dist.sample()).shape[:3] == (4, 5, 3)


def test_a_distribution_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="discrete_dist_type=TanhGaussian"):
        Actor(8, 2, discrete=True, gammas=GAMMAS, discrete_dist_type=TanhGaussian)
    with pytest.raises(ValueError, match="continuous_dist_type=Discrete"):
        Actor(8, 2, discrete=False, gammas=GAMMAS, continuous_dist_type=Discrete)


def test_an_actor_without_discounts_is_refused():
    with pytest.raises(ValueError, match=r"gammas must be a non-empty list of discounts, got \[\]"):
        Actor(8, 2, discrete=True, gammas=[])


def test_a_user_head_can_read_observations_directly():
    class GatedActor(BaseActorHead):
        """Multiplies the policy's parameters by an observation."""

        def __init__(self, state_dim, action_dim, discrete, gammas):
            super().__init__(state_dim, action_dim, discrete, gammas, continuous_dist_type=TanhGaussian)
            self.net = nn.Linear(state_dim, self.num_gammas * self.policy_dist.input_dimension)

        def actor_network_forward(self, state, log_dict=None, straight_from_obs=None):
            out = self.net(state).reshape(*state.shape[:2], self.num_gammas, -1)
            return out * straight_from_obs["gate"].unsqueeze(-1)

    actor = GatedActor(state_dim=8, action_dim=2, discrete=True, gammas=GAMMAS)
    dist = actor(torch.randn(4, 5, 8), straight_from_obs={"gate": torch.zeros(4, 5, 1)})
    torch.testing.assert_close(dist.probs, torch.full((4, 5, 3, 2), 0.5))
