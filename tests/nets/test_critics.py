"""Critic ensembles against the golden numbers and against the unfactored formula."""

import pytest
import torch

from amago.nets.actor_critic import NCritics
from amago.nets.actor_critic.ensemble import EnsembleMLP


def tensors(case):
    return {key: torch.from_numpy(value) for key, value in case.arrays.items()}


def state_of(arrays):
    return {key.removeprefix("state."): value for key, value in arrays.items() if key.startswith("state.")}


@pytest.mark.parametrize("name", ["ncritics_cont", "ncritics_disc"])
def test_values_equal_the_golden_numbers(golden, name):
    case = golden(name)
    t = tensors(case)
    critic = NCritics(
        state_dim=case.case["state_dim"],
        action_dim=case.case["action_dim"],
        discrete=case.case["discrete"],
        gammas=torch.tensor(case.case["gammas"]),
        num_critics=case.case["num_critics"],
        d_hidden=case.case["d_hidden"],
        n_layers=case.case["n_layers"],
    )
    critic.load_state_dict(state_of(t), strict=True)
    torch.testing.assert_close(critic(t["state"], t["action"]), t["y"], atol=1e-5, rtol=1e-4)


def test_discrete_values_are_expectations_under_the_probabilities():
    torch.manual_seed(0)
    critic = NCritics(5, 3, True, [0.1, 0.9, 0.999], 2, d_hidden=8)
    state = torch.randn(2, 4, 5)
    one_hots = torch.eye(3)[:, None, None, None].expand(3, 2, 4, 3, 3)  # (K = A, B, L, G, A)
    probs = torch.softmax(torch.randn(1, 2, 4, 3, 3), dim=-1)
    each = critic(state, one_hots)  # (A, B, L, C, G, 1)
    expected = torch.einsum("ablcgx,blga->blcgx", each, probs[0])
    torch.testing.assert_close(critic(state, probs)[0], expected)


def test_an_ensemble_without_layers_is_an_error():
    with pytest.raises(ValueError, match="n_layers must be at least 1, got 0"):
        EnsembleMLP(2, 3, 4, 0, 1)


@pytest.mark.parametrize("activation", ["leaky_relu", "gelu"])
def test_networks_one_by_one_on_blocks_equal_all_of_them_at_once(activation):
    """The first is how a CPU computes them, the second how other devices do; many rows, so there are blocks."""
    torch.manual_seed(0)
    net = EnsembleMLP(3, 5 + 4, 16, 3, 2, activation=activation)
    pieces = (torch.randn(1, 700, 1, 5, requires_grad=True), torch.randn(2, 700, 3, 4, requires_grad=True))
    inputs = (*pieces, *net.parameters())
    blocks, batched = net._one_by_one(pieces), net._all_at_once(pieces)
    assert blocks.shape == (3, 2, 700, 3, 2)
    torch.testing.assert_close(blocks, batched)
    weights = torch.randn_like(blocks)
    for ours, theirs in zip(
        torch.autograd.grad((blocks * weights).sum(), inputs),
        torch.autograd.grad((batched * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
