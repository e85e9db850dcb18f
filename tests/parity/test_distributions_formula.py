"""Action distributions: densities, means and samples against formulas of numpy float64."""

import math

import numpy as np
import pytest
import torch
from torch.special import gammaln

from amago.nets.policy_dists import GMM, Beta, Discrete, Multibinary, MultiDiscrete, TanhGaussian

CLOSE = {"atol": 2e-5, "rtol": 2e-4}
LEAD = (2, 3, 2)  # batch, timesteps, discounts


def softplus(x):
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def log_normal(u, loc, std):
    return -0.5 * ((u - loc) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)


def actions_of(d, width):
    """Some of them at and beyond the border."""
    return (2.4 * d.uniform(*LEAD, width) - 1.2).clamp(-1.0, 1.0)


def sample_moments(dist, count=4000):
    torch.manual_seed(0)
    samples = dist.sample((count,)).double()
    return samples, samples.mean(0).numpy(), samples.std(0).numpy()


def clipped_probabilities(logits, low, high):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    probs = np.clip(powers / powers.sum(-1, keepdims=True), low, high)
    return probs / probs.sum(-1, keepdims=True)


@pytest.mark.parametrize("width", [1, 2, 5, 18, 300])
@pytest.mark.parametrize("seed", range(3))
def test_discrete(draw, seed, width):
    d = draw(seed)
    low, high = d.choice([(0.001, 0.99), (0.0, 1.0), (0.01, 0.8)])
    vec = d.normal(*LEAD, width, scale=3.0)
    floor = low * min(1.0, (256 / width) ** 3)  # so that the floors of many actions leave room for a choice
    probs = clipped_probabilities(vec.double().numpy(), floor, high)
    policy = Discrete(width, clip_prob_low=low, clip_prob_high=high)
    dist = policy(vec)
    np.testing.assert_allclose(dist.probs, probs, **CLOSE)
    index = d.indices(width, *LEAD)
    epsilon = np.finfo(np.float32).eps  # where torch's categorical distributions end log-probabilities
    logs = np.log(np.clip(probs, epsilon, 1 - epsilon))
    picked = np.take_along_axis(logs, index.numpy()[..., None], -1)[..., 0]
    np.testing.assert_allclose(dist.log_prob(index), picked, **CLOSE)
    np.testing.assert_allclose(dist.entropy(), -(probs * logs).sum(-1), **CLOSE)
    taken = torch.nn.functional.one_hot(index, width).float()
    softened = np.clip(taken.double().numpy(), floor, high)
    np.testing.assert_allclose(
        policy.action_from_buffer(taken), softened / softened.sum(-1, keepdims=True), **CLOSE
    )
    torch.manual_seed(0)
    counts = torch.nn.functional.one_hot(dist.sample((3000,)).squeeze(-1), width).double().mean(0)
    np.testing.assert_allclose(counts, probs, atol=0.05)


@pytest.mark.parametrize("seed", range(2))
def test_tanh_gaussian(draw, seed):
    d = draw(seed)
    width = d.choice([1, 2, 5, 300])
    low, high = d.choice([(math.exp(-5.0), math.exp(2.0)), (0.1, 1.5)])
    clip = d.choice([0.99, 0.9])
    vec = d.normal(*LEAD, 2 * width)
    dist = TanhGaussian(width, std_low=low, std_high=high, clip_actions_on_log_prob=(-clip, clip))(vec)
    loc, raw = np.split(vec.double().numpy(), 2, axis=-1)
    std = np.exp(math.log(low) + 0.5 * (math.log(high) - math.log(low)) * (np.tanh(raw) + 1))
    action = actions_of(d, width)
    inside = np.clip(action.double().numpy(), -clip, clip)
    expected = log_normal(np.arctanh(inside), loc, std) - np.log(1 - inside**2)
    np.testing.assert_allclose(dist.log_prob(action), expected, atol=2e-4, rtol=5e-4)
    np.testing.assert_allclose(dist.mean, np.tanh(loc), **CLOSE)
    z = np.linspace(-9, 9, 4001)
    u = loc[..., :3, None] + std[..., :3, None] * z
    mass = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    samples, mean, deviation = sample_moments(dist)
    assert samples.abs().max() <= 1.0
    if width <= 5:
        first = np.tanh(u)
        expected_mean = (mass * first).sum(-1)
        expected_std = np.sqrt((mass * first**2).sum(-1) - expected_mean**2)
        np.testing.assert_allclose(mean[..., :3], expected_mean, atol=0.08)
        np.testing.assert_allclose(deviation[..., :3], expected_std, atol=0.05)


@pytest.mark.parametrize("seed", range(2))
def test_gmm(draw, seed):
    d = draw(seed)
    width, modes = d.choice([1, 2, 4, 30]), d.choice([1, 2, 5])
    vec = d.normal(*LEAD, modes * (2 * width + 1))
    dist = GMM(width, gmm_modes=modes)(vec)
    exact = vec.double().numpy()
    loc = exact[..., : modes * width].reshape(*LEAD, modes, width)
    std = softplus(exact[..., modes * width : 2 * modes * width].reshape(*LEAD, modes, width)) + 1e-4
    weights = np.exp(exact[..., 2 * modes * width :])
    weights /= weights.sum(-1, keepdims=True)
    action = 1.9 * d.uniform(*LEAD, width) - 0.95
    a = action.double().numpy()
    joint = log_normal(np.arctanh(a)[..., None, :], loc, std).sum(-1) + np.log(weights)
    peak = joint.max(-1)
    expected = peak + np.log(np.exp(joint - peak[..., None]).sum(-1)) - np.log(1 - a**2).sum(-1)
    np.testing.assert_allclose(dist.log_prob(action)[..., 0], expected, atol=5e-4, rtol=5e-4)
    np.testing.assert_allclose(dist.mean, np.tanh((weights[..., None] * loc).sum(-2)), **CLOSE)
    samples, _, _ = sample_moments(dist, 500)
    assert samples.abs().max() <= 1.0
    border = torch.ones(*LEAD, width)
    assert dist.log_prob(border).isfinite().all()


@pytest.mark.parametrize("seed", range(2))
def test_beta(draw, seed):
    d = draw(seed)
    width = d.choice([1, 3, 300])
    vec = d.normal(*LEAD, 2 * width, scale=2.0)
    dist = Beta(width)(vec)
    raw_alpha, raw_beta = np.split(vec.double().numpy(), 2, axis=-1)
    alpha, beta = softplus(raw_alpha) + 1.0001, softplus(raw_beta) + 1.0001
    action = actions_of(d, width)
    x = (np.clip(action.double().numpy(), -0.99, 0.99) + 1) / 2

    def special(function, x):
        return function(torch.from_numpy(x)).numpy()

    log_b = special(gammaln, alpha) + special(gammaln, beta) - special(gammaln, alpha + beta)
    expected = (alpha - 1) * np.log(x) + (beta - 1) * np.log(1 - x) - log_b - math.log(2)
    np.testing.assert_allclose(dist.log_prob(action), expected, atol=2e-4, rtol=5e-4)
    np.testing.assert_allclose(dist.mean, 2 * alpha / (alpha + beta) - 1, **CLOSE)
    samples, mean, deviation = sample_moments(dist, 1500)
    assert samples.abs().max() <= 1.0
    total = alpha + beta
    np.testing.assert_allclose(mean, 2 * alpha / total - 1, atol=0.1)
    np.testing.assert_allclose(deviation, 2 * np.sqrt(alpha * beta / (total**2 * (total + 1))), atol=0.08)


@pytest.mark.parametrize("seed", range(3))
def test_multibinary(draw, seed):
    d = draw(seed)
    width = d.choice([1, 4, 300])
    vec = d.normal(*LEAD, width, scale=4.0)
    dist = Multibinary(width)(vec)
    logits = vec.double().numpy()
    bits = (d.uniform(*LEAD, width) > 0.5).float()
    np.testing.assert_allclose(
        dist.log_prob(bits), np.where(bits.numpy() > 0.5, -softplus(-logits), -softplus(logits)), **CLOSE
    )
    p = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(dist.probs, p, **CLOSE)
    np.testing.assert_allclose(dist.mean, p, **CLOSE)
    np.testing.assert_allclose(dist.entropy(), p * softplus(-logits) + (1 - p) * softplus(logits), **CLOSE)
    samples, mean, _ = sample_moments(dist, 2000)
    assert set(samples.unique().tolist()) <= {0.0, 1.0}
    np.testing.assert_allclose(mean, p, atol=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_multidiscrete(draw, seed):
    d = draw(seed)
    sizes = tuple(d.size(1, 6) for _ in range(d.size(1, 4)))
    vec = d.normal(*LEAD, sum(sizes), scale=3.0)
    dist = MultiDiscrete.with_sizes(sizes)(d_action=sum(sizes))(vec)
    parts = np.split(vec.double().numpy(), np.cumsum(sizes)[:-1], axis=-1)
    probs = [clipped_probabilities(part, 0.001, 0.99) for part in parts]
    np.testing.assert_allclose(dist.probs, np.concatenate(probs, -1), **CLOSE)
    hots = [torch.nn.functional.one_hot(d.indices(n, *LEAD), n).float() for n in sizes]
    logp = sum(np.log((p * hot.numpy()).sum(-1)) for p, hot in zip(probs, hots, strict=True))
    np.testing.assert_allclose(dist.log_prob(torch.cat(hots, -1))[..., 0], logp, **CLOSE)
    samples, mean, _ = sample_moments(dist, 2000)
    np.testing.assert_allclose(mean, np.concatenate(probs, -1), atol=0.06)
    assert (samples.sum(-1) == len(sizes)).all()


@pytest.mark.parametrize("make", [Discrete, TanhGaussian, GMM, Beta, Multibinary])
@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
def test_extreme_outputs_of_the_network_give_finite_log_probs_and_gradients(draw, make, scale):
    """A single large step of the optimizer must not end a run in NaN."""
    d = draw(0)
    policy = make(d_action=3)
    vec = d.normal(40, policy.input_dimension, scale=scale).requires_grad_()
    dist = policy(vec)
    action = d.indices(3, 40) if policy.is_discrete else 1.8 * d.uniform(40, 3) - 0.9
    if make is Multibinary:
        action = (action > 0).float()
    logp = dist.log_prob(action)
    logp.sum().backward()
    assert logp.isfinite().all()
    assert vec.grad.isfinite().all()
    torch.manual_seed(0)
    samples = dist.sample((5,))
    assert samples.isfinite().all()
    if make is not Multibinary:
        assert dist.log_prob(samples).isfinite().all()
