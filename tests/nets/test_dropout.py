"""`Dropout`: what is kept, what it is multiplied by, and that a seed decides it."""

import pytest
import torch

from amago.nets.dropout import Dropout

LEVELS = 2**16  # probabilities are rounded to multiples of 1 / LEVELS


def dropped(p, x, seed=0):
    torch.manual_seed(seed)
    return Dropout(p).train()(x)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_p_says(p):
    n = 400_000
    share = (dropped(p, torch.ones(n)) == 0).double().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_mean_and_variance_are_those_of_dropout(p):
    n = 400_000
    out = dropped(p, torch.ones(n)).double()
    variance = p / (1 - p)  # of a number that is 1 / (1 - p) with probability 1 - p, else 0
    assert abs(out.mean().item() - 1.0) < 5 * (variance / n) ** 0.5
    torch.testing.assert_close(out.var().item(), variance, rtol=0.03, atol=0.0)


@pytest.mark.parametrize("p", [1 / 3, 0.05, 0.999, 1.0 / LEVELS])
def test_what_is_kept_is_scaled_by_the_probability_that_it_was_drawn_with(p):
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    out = dropped(p, x)
    kept = out != 0
    scale = LEVELS / (LEVELS - round(p * LEVELS))
    assert abs(scale * (1 - p) - 1) < 1 / (LEVELS * (1 - p))
    torch.testing.assert_close(out[kept], x[kept] * scale, rtol=1e-6, atol=0.0)


def test_neighbours_are_dropped_independently():
    # Four neighbours are decided by the parts of one draw.
    zeros = (dropped(0.5, torch.ones(4 * 100_000)) == 0).double().view(-1, 4)
    correlation = torch.corrcoef(zeros.t()) - torch.eye(4, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 100_000**0.5


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5,), (2, 3, 7), (0, 4)])
def test_any_shape_keeps_its_shape(shape):
    out = dropped(0.5, torch.ones(shape))
    assert out.shape == shape
    assert ((out == 0) | (out == 2)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_stays(dtype):
    out = dropped(0.5, torch.ones(64, dtype=dtype))
    assert out.dtype == dtype
    assert set(out.tolist()) == {0.0, 2.0}


def test_a_seed_decides_what_is_dropped():
    x = torch.ones(1000)
    assert torch.equal(dropped(0.3, x, seed=7), dropped(0.3, x, seed=7))
    assert not torch.equal(dropped(0.3, x, seed=7), dropped(0.3, x, seed=8))


def test_each_call_drops_others():
    torch.manual_seed(0)
    layer, x = Dropout(0.5), torch.ones(1000)
    assert not torch.equal(layer(x), layer(x))


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


def test_inputs_laid_out_otherwise_and_in_place_are_served():
    x = torch.ones(6, 8).t()
    assert set(dropped(0.5, x).flatten().tolist()) == {0.0, 2.0}
    torch.manual_seed(0)
    assert Dropout(0.5, inplace=True)(x) is x
    assert set(x.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_probabilities_outside_0_and_1_are_refused(p):
    with pytest.raises(ValueError, match=f"dropout probability .* got {p}"):
        Dropout(p)
