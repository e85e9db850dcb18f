"""Timestep encoders equal their formulas: convolutions by loops over taps, statistics written out, in float64."""

import numpy as np
import pytest
import torch

from amago.nets.cnn import DrQCNN, NatureishCNN
from amago.nets.masking import timestep_mask
from amago.nets.tstep_encoders import FFTstepEncoder

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("seed", range(3))
def test_the_array_encoder(f64, draw, same_forward, f64_weights, seed, training):
    d = draw(seed)
    shapes = {"zeta": (d.size(1, 3), d.size(1, 3)), "alpha": (d.size(1, 4),), "mid": (d.size(1, 5),)}
    keys = d.choice([None, ["zeta", "alpha"], ["mid"]])
    activation, norm, out_norm = (
        d.choice(options)
        for options in (ACTIVATIONS, [None, "layer", "rmsnorm"], ["layer", None, "unitball"])
    )
    width, skip = d.size(2, 5), bool(d.size(0, 1))
    encoder = FFTstepEncoder(
        obs_space=shapes,
        rl2_space=(width,),
        n_layers=d.size(1, 3),
        d_hidden=d.size(3, 24),
        d_output=d.size(2, 24),
        norm=norm,
        out_norm=out_norm,
        activation=activation,
        normalize_inputs=not skip,
        specify_obs_keys=keys,
        auto_scale=bool(d.size(0, 1)),
    )
    d.disturb(encoder).train(training)
    rows, steps = d.size(1, 4), d.size(1, 7)
    obs = {key: 3 * d.normal(rows, steps, *shape) + 1 for key, shape in shapes.items()}
    rl2s = d.normal(rows, steps, width)
    lengths = torch.tensor([d.size(1, steps) for _ in range(rows)])
    mask = (torch.arange(steps) < lengths[:, None]).unsqueeze(-1)
    w = f64_weights(encoder)
    x = [obs[key].double().reshape(rows, steps, -1) for key in sorted(keys or shapes)]
    x = torch.cat([*x, rl2s.double()], -1)
    mu, nu = w["in_norm.mu"], w["in_norm.nu"]
    if training:
        # The counter is float32, so the step is known to 2e-4 of itself at first: part of the published numbers.
        beta = np.float32(1e-4)
        share = float(beta / (1 - np.float32(1 - 1e-4) ** np.float32(2)))
        real = x[mask.expand_as(x)].view(-1, x.shape[-1])
        mu = (1 - share) * mu + share * real.mean(0)
        nu = (1 - share) * nu + share * (real**2).mean(0)
    inputs = x if skip else (x - mu) / (nu - mu**2 + 1e-5) ** 0.5
    expected = f64.norm(out_norm, w, "out_norm", f64.mlp(w, "base", inputs, activation, norm))
    with timestep_mask(mask):
        y = encoder(obs=obs, rl2s=rl2s)
    same_forward(y, expected)
    same_forward(encoder.in_norm.mu, mu)
    same_forward(encoder.in_norm.nu, nu)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (y * upstream).sum().backward()
    (expected * upstream.double()).sum().backward()
    for name, p in encoder.named_parameters():
        torch.testing.assert_close(p.grad.double(), w[name].grad, atol=1e-3, rtol=2e-3, msg=name)


@pytest.mark.parametrize("cls", [NatureishCNN, DrQCNN])
@pytest.mark.parametrize("seed", range(2))
def test_pixel_networks_start_delta_orthogonal(draw, cls, seed):
    """All zero but the centre tap, whose rows or columns are orthogonal with the gain of a leaky ReLU."""
    torch.manual_seed(seed)
    d = draw(seed)
    network = cls(img_shape=(40, 40, d.size(1, 12)))
    gain = 2 / (1 + 0.01**2)
    for conv in (m for m in network.modules() if isinstance(m, torch.nn.Conv2d)):
        weight = conv.weight.detach().double()
        centre = weight[:, :, weight.shape[2] // 2, weight.shape[3] // 2].numpy()
        small = centre if centre.shape[0] <= centre.shape[1] else centre.T
        np.testing.assert_allclose(small @ small.T, gain * np.eye(len(small)), atol=1e-5)
        assert weight.abs().sum() == pytest.approx(np.abs(centre).sum())
        assert not conv.bias.any()
