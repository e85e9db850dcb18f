"""n-step returns, filters and discounts as critics see them, against float64 walks through their definitions."""

import math

import numpy as np
import pytest
import torch

from amago.agent import nstep_return
from amago.nets.actor_critic import gammas_as_input_seq


def walked_return(r, d, q, gamma, n, mask, t):
    """Up to n rewards from step t on; ends at a done, before padding and at the end of the array."""
    total, discount = 0.0, 1.0
    for i in range(n):
        total += discount * r[t + i]
        discount *= gamma
        if d[t + i]:
            return total
        last = i + 1 == n or t + i + 1 == len(r) or not mask[t + i + 1]
        if last:
            return total + discount * q[t + i]
    raise AssertionError("unreachable")


@pytest.mark.parametrize("seed", range(2))
def test_returns_stop_at_dones_and_padding(draw, seed):
    d = draw(seed)
    rows, steps, gammas = d.size(1, 4), d.size(1, 12), d.size(1, 4)
    n = d.choice([1, 2, 3, 5, 10, 40])
    r = d.normal(rows, steps, 1, 1 if seed % 2 else gammas, 1)
    done = (d.uniform(*r.shape) < 0.2).float()
    q = d.normal(rows, steps, 1, gammas, 1, scale=5.0)
    gamma = d.uniform(gammas, 1)
    lengths = [d.size(1, steps) for _ in range(rows)]
    mask = (torch.arange(steps) < torch.tensor(lengths)[:, None])[..., None, None, None]
    ours = nstep_return(r, done, q, gamma, n, mask)
    assert ours.shape == q.shape
    wide_r, wide_d = (x.double().expand_as(q).numpy()[:, :, 0, :, 0] for x in (r, done))
    wide_q = q.double().numpy()[:, :, 0, :, 0]
    for row, length in enumerate(lengths):
        for g in range(gammas):
            real = np.arange(steps) < length
            args = (
                wide_r[row, :, g],
                wide_d[row, :, g],
                wide_q[row, :, g],
                gamma[g].double().item(),
                n,
                real,
            )
            for t in range(length):
                expected = walked_return(*args, t)
                assert ours[row, t, 0, g, 0].item() == pytest.approx(expected, abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_critics_see_the_symlog_of_the_horizon(draw, seed):
    d = draw(seed)
    gammas = torch.cat((d.uniform(d.size(1, 5)), torch.tensor([0.0, 0.999, 1.0])))
    rows, steps = d.size(1, 3), d.size(1, 4)
    features = gammas_as_input_seq(gammas, rows, steps)
    assert features.shape == (rows, steps, len(gammas), 1)
    for g, gamma in enumerate(gammas.double().tolist()):
        # float32 knows 1 - gamma to about 6e-8.
        expected = math.log(1 + 1 / min(max(1 - gamma, 1e-6), 1.0))
        torch.testing.assert_close(
            features[..., g, 0], torch.full((rows, steps), expected), atol=1e-4, rtol=1e-4
        )
