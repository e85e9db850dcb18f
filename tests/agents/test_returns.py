"""n-step returns: golden numbers, a walk through the definition, and values computed by hand."""

import pytest
import torch

from amago.agent import nstep_return


@pytest.mark.parametrize("n", [1, 3, 5])
def test_real_steps_equal_the_golden_numbers(golden, n):
    t = {key: torch.from_numpy(value) for key, value in golden(f"nstep_{n}").arrays.items()}
    ours = nstep_return(t["r"], t["d"], t["q"], t["gamma"], n, t["mask"])
    real = t["mask"].bool().expand_as(ours)
    torch.testing.assert_close(ours[real], t["y"][real], atol=1e-5, rtol=1e-4)


def test_three_steps_by_hand():
    r = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1, 1)
    q = torch.tensor([10.0, 20.0, 30.0]).view(1, 3, 1, 1, 1)
    none, ones = torch.zeros_like(r), torch.ones_like(r)
    gamma = torch.tensor([[0.5]])
    returns = nstep_return(r, none, q, gamma, 3, ones).flatten()
    expected = [1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 30, 2 + 0.5 * 3 + 0.25 * 30, 3 + 0.5 * 30]
    torch.testing.assert_close(returns, torch.tensor(expected))


def walk(r, d, q, gamma, n, mask, b, t):
    """The return from one step on, straight from the definition, in floats."""
    total, discount = 0.0, 1.0
    for i in range(n):
        total += discount * float(r[b, t + i])
        if float(d[b, t + i]):
            return total
        discount *= gamma
        last = i == n - 1 or t + i + 1 == r.shape[1] or not bool(mask[b, t + i + 1])
        if last:
            return total + discount * float(q[b, t + i])
    raise AssertionError


@pytest.mark.parametrize(("n", "seed"), [(1, 0), (2, 1), (4, 2), (9, 3), (50, 4)])
def test_random_returns_equal_the_definition(n, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 12, 1, 1, 1)
    r, q = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    d = (torch.rand(shape, generator=generator) < 0.15).double()
    mask = torch.arange(12).view(1, 12, 1, 1, 1) < torch.tensor([12, 7, 1]).view(3, 1, 1, 1, 1)
    ours = nstep_return(r, d, q, torch.tensor([[0.93]], dtype=torch.float64), n, mask)
    for b in range(3):
        for t in range(12):
            if mask[b, t]:
                assert ours[b, t].item() == pytest.approx(walk(r, d, q, 0.93, n, mask, b, t))


def test_padding_never_enters_a_return():
    r = torch.ones(1, 6, 1, 1, 1)
    mask = (torch.arange(6) < 3).view(1, 6, 1, 1, 1)
    arguments = (torch.zeros_like(r), torch.ones_like(r), torch.tensor([[0.9]]), 5, mask)
    poisoned = torch.where(mask, r, torch.full_like(r, float("nan")))
    torch.testing.assert_close(nstep_return(poisoned, *arguments)[:, :3], nstep_return(r, *arguments)[:, :3])


def test_less_than_one_step_is_an_error():
    x = torch.zeros(1, 2, 1, 1, 1)
    with pytest.raises(ValueError, match="n must be at least 1 step, got 0"):
        nstep_return(x, x, x, torch.ones(1, 1), 0, x)
