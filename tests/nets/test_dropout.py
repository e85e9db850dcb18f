"""`Dropout`: what is kept, what it is multiplied by, and that a seed decides it."""

import pytest
import torch

from amago.nets.dropout import Dropout


def dropped(p, x, seed=0):
    torch.manual_seed(seed)
    return Dropout(p).train()(x)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_share_of_dropped_elements_equals_p(p):
    n = 400_000
    share = (dropped(p, torch.ones(n)) == 0).double().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations


def test_neighbours_are_dropped_independently():
    # Four neighbours are decided by the parts of one draw.
    zeros = (dropped(0.5, torch.ones(4 * 100_000)) == 0).double().view(-1, 4)
    correlation = torch.corrcoef(zeros.t()) - torch.eye(4, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 100_000**0.5


def test_a_seed_decides_what_is_dropped():
    x = torch.ones(1000)
    assert torch.equal(dropped(0.3, x, seed=7), dropped(0.3, x, seed=7))
    assert not torch.equal(dropped(0.3, x, seed=7), dropped(0.3, x, seed=8))


@pytest.mark.parametrize("shape", [(0,), (5, 1)])
def test_zero_keeps_all_and_one_drops_all(shape):
    x = torch.randn(shape)
    assert torch.equal(dropped(0.0, x), x)
    assert torch.equal(dropped(1.0, x), torch.zeros(shape))


def test_evaluation_changes_nothing_and_draws_nothing():
    x = torch.randn(50)
    before = torch.get_rng_state()
    assert torch.equal(Dropout(0.7).eval()(x), x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [0.25, 1.0])
def test_gradients_pass_where_values_pass(p):
    x = torch.randn(64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    out = dropped(p, x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out / x).detach())


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_probabilities_outside_0_and_1_are_refused(p):
    with pytest.raises(ValueError, match=f"dropout probability .* got {p}"):
        Dropout(p)
