"""Running statistics (InputNorm, PopArt) equal a float64 walk through their updates at random sizes."""

import numpy as np
import pytest
import torch

from amago.nets.actor_critic import PopArtLayer
from amago.nets.masking import MAGIC_PAD_VAL, masked_avg, timestep_mask
from amago.nets.utils import InputNorm


def step_size(beta, update, number=np.float32):
    """The counter starts at 1 and is incremented before use: the first update has t = 2.

    The counter's precision is part of the published numbers: with a small beta float32 is off by up to 3e-4 of
    the first step.
    """
    return float(number(beta) / (1 - number(1.0 - beta) ** number(update + 2)))


@pytest.mark.parametrize("told", ["by mask", "by filler"])
@pytest.mark.parametrize("seed", range(6))
def test_input_norm_over_several_padded_batches(draw, seed, told):
    d = draw(seed)
    width, beta, init = d.size(1, 12), d.choice([1e-4, 0.01, 0.3]), d.choice([0.5, 1.0, 30.0])
    centre, scale = d.normal(width, scale=3.0), d.uniform(width) * 4 + 0.2
    norm = InputNorm(width, beta=beta, init_nu=init)
    mu, nu = np.zeros(width), np.full(width, init)
    for update in range(6):
        rows, steps = d.size(1, 5), d.size(1, 9)
        lengths = [d.size(1, steps) for _ in range(rows)]
        x = centre + scale * d.normal(rows, steps, width)
        filler = MAGIC_PAD_VAL if told == "by filler" else 77.0
        for row, length in enumerate(lengths):
            x[row, length:] = filler
        real = np.concatenate([x[row, :length].double().numpy() for row, length in enumerate(lengths)])
        share = step_size(beta, update)
        mu = (1 - share) * mu + share * real.mean(0)
        nu = (1 - share) * nu + share * (real**2).mean(0)
        mask = torch.arange(steps) < torch.tensor(lengths)[:, None]
        with timestep_mask(mask.unsqueeze(-1) if told == "by mask" else None):
            norm.update_stats(x)
        sigma = np.sqrt(np.maximum(nu - mu**2, 0) + 1e-5)
        expected = np.clip((x.double().numpy() - mu) / np.where(sigma > 0.01, sigma, 1.0), -1e4, 1e4)
        np.testing.assert_allclose(norm(x).numpy(), expected, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(norm.mu, mu, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(norm.nu, nu, atol=1e-5, rtol=1e-4)
    assert norm._t.item() == 7


@pytest.mark.parametrize("seed", range(6))
def test_popart_over_several_masked_batches(draw, seed):
    d = draw(seed)
    gammas, critics = d.choice([1, 2, 3, 7]), d.choice([1, 2, 4])
    beta, init = d.choice([5e-4, 0.05, 0.5]), d.choice([1.0, 100.0])
    layer = PopArtLayer(gammas, beta=beta, init_nu=init)
    mu, nu, w, b = np.zeros(gammas), np.full(gammas, init), np.ones(gammas), np.zeros(gammas)
    raw = d.normal(2, 3, critics, gammas, 1)
    for update in range(6):
        shape = (d.size(1, 4), d.size(1, 7), 1, gammas, 1)
        values = d.normal(*shape, scale=20.0) + 15.0
        mask = d.uniform(*shape) < 0.7
        mask[0, 0] = True
        before = layer(raw, normalized=False)
        layer.update_stats(values, mask)
        exact, counted = values.double().numpy()[..., 0], mask.numpy()[..., 0]
        share = step_size(beta, update)
        old_sigma, old_mu = np.clip(np.sqrt(nu - mu**2), 1e-4, 1e6), mu.copy()
        for g in range(gammas):
            seen = exact[..., g][counted[..., g]]
            mu[g] = (1 - share) * mu[g] + share * seen.mean()
            nu[g] = (1 - share) * nu[g] + share * (seen**2).mean()
        sigma = np.clip(np.sqrt(nu - mu**2), 1e-4, 1e6)
        w *= old_sigma / sigma
        b = (old_sigma * b + old_mu - mu) / sigma
        close = {"atol": 1e-4, "rtol": 1e-3}
        np.testing.assert_allclose(layer(raw).numpy()[..., 0], w * raw.numpy()[..., 0] + b, **close)
        np.testing.assert_allclose(
            layer.normalize_values(values).numpy()[..., 0], (exact - mu) / sigma, **close
        )
        np.testing.assert_allclose(
            layer.denormalize_values(values).numpy()[..., 0], exact * sigma + mu, **close
        )
        # The meaning of the critics' outputs has not moved.
        torch.testing.assert_close(layer(raw, normalized=False), before, atol=1e-2, rtol=1e-3)
    for ours, exact in ((layer.mu, mu), (layer.nu, nu), (layer.w, w), (layer.b, b), (layer.sigma, sigma)):
        np.testing.assert_allclose(ours[:, 0], exact, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_popart_in_float64_is_exact(draw, seed):
    d = draw(seed)
    layer = PopArtLayer(2, beta=0.1).double()
    mu, nu = np.zeros(2), np.full(2, 100.0)
    for update in range(4):
        values = d.normal(3, 4, 1, 2, 1).double() + 1e-9
        layer.update_stats(values, torch.ones_like(values))
        share = step_size(0.1, update, np.float64)
        mu = (1 - share) * mu + share * values.numpy().mean((0, 1, 2))[:, 0]
        nu = (1 - share) * nu + share * (values.numpy() ** 2).mean((0, 1, 2))[:, 0]
    np.testing.assert_allclose(layer.mu[:, 0], mu, atol=0, rtol=1e-12)
    np.testing.assert_allclose(layer.nu[:, 0], nu, atol=0, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_masked_means_divide_by_the_count_and_a_hundred_thousandth(draw, seed):
    d = draw(seed)
    x = d.normal(d.size(1, 5), d.size(1, 6), d.size(1, 3), d.size(1, 4), 1)
    mask = d.uniform(*x.shape[:2], 1, 1, 1) < 0.5
    counted = x.double().numpy()[np.broadcast_to(mask.numpy(), x.shape)]
    assert masked_avg(x, mask, dim=None).item() == pytest.approx(
        counted.sum() / (len(counted) + 1e-5), abs=1e-5
    )
