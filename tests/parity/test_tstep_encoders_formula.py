"""Timestep encoders equal their formulas: convolutions by loops over taps, statistics written out, in float64."""

import numpy as np
import pytest
import torch

from amago.nets.cnn import DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN
from amago.nets.masking import timestep_mask
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("seed", range(6))
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


def convolution(w, name, x, stride, padding=0):
    """(N, C, H, W) -> (N, C', H', W'): a sum over the taps of the kernel."""
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    kernel = weight.shape[-1]
    height, width = (x.shape[i] + 2 * padding for i in (2, 3))
    framed = torch.zeros(*x.shape[:2], height, width, dtype=x.dtype)
    framed[:, :, padding : height - padding, padding : width - padding] = x
    rows, columns = ((size - kernel) // stride + 1 for size in (height, width))
    y = bias.view(1, -1, 1, 1)
    for i in range(kernel):
        for j in range(kernel):
            patch = framed[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride]
            y = y + torch.einsum("nchw,oc->nohw", patch[:, :, :rows, :columns], weight[:, :, i, j])
    return y


def stack(f64, w, x, activation, strides):
    for i, stride in enumerate(strides, start=1):
        x = f64.activation(activation, convolution(w, f"cnn.conv{i}", x, stride))
    return x


def group_norm(w, name, x, groups=4):
    grouped = x.reshape(x.shape[0], groups, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    grouped = centred / ((centred**2).mean(-1, keepdim=True) + 1e-5) ** 0.5
    return grouped.reshape(x.shape) * w[f"{name}.weight"].view(1, -1, 1, 1) + w[f"{name}.bias"].view(
        1, -1, 1, 1
    )


def max_pool(x):
    """Over 3 x 3 pixels with stride 2."""
    rows, columns = ((x.shape[i] - 3) // 2 + 1 for i in (2, 3))
    corners = [
        x[:, :, i : i + 2 * rows : 2, j : j + 2 * columns : 2][:, :, :rows, :columns]
        for i in range(3)
        for j in range(3)
    ]
    return torch.stack(corners).amax(0)


def impala(f64, w, x, activation, blocks, with_norm):
    for i in range(blocks):
        x = max_pool(convolution(w, f"cnn.blocks.{i}.conv", x, 1, padding=1))
        for part in ("residual1", "residual2"):
            name = f"cnn.blocks.{i}.{part}"
            hidden = convolution(w, f"{name}.conv1", f64.activation(activation, x), 1, padding=1)
            x = x + convolution(w, f"{name}.conv2", f64.activation(activation, hidden), 1, padding=1)
            x = group_norm(w, f"{name}.norm", x) if with_norm else x
    return x


def image_case(d, kind):
    """The network's class as the encoder calls it, and its formula over scaled images."""
    if kind == "nature":
        return NatureishCNN, lambda f64, w, x, a: stack(f64, w, x, a, (4, 2, 1)), d.size(36, 47)
    if kind == "drq":
        return DrQCNN, lambda f64, w, x, a: stack(f64, w, x, a, (2, 1, 1, 1)), d.size(15, 22)
    if kind == "grid":
        return GridworldCNN, lambda f64, w, x, a: stack(f64, w, x, a, (1, 1, 1)), d.size(4, 9)
    depths = [4 * d.size(1, 3) for _ in range(d.size(1, 3))]
    with_norm = bool(d.size(0, 1))

    def make(**kwargs):
        return IMPALAishCNN(**kwargs, cnn_block_depths=depths, post_group_norm=with_norm)

    return make, lambda f64, w, x, a: impala(f64, w, x, a, len(depths), with_norm), d.size(24, 30)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["nature", "drq", "grid", "impala"])
def test_image_encoders(f64, draw, same_as_formula, kind, seed):
    d = draw(seed)
    make, network, size = image_case(d, kind)
    first, activation, channels = bool(seed % 2), d.choice(ACTIVATIONS), d.size(1, 4)
    height, width = size, size + d.size(0, 3)
    shape = (channels, height, width) if first else (height, width, channels)
    encoder = CNNTstepEncoder(
        obs_space={"picture": shape, "other": (2,)},
        rl2_space=(d.size(2, 5),),
        cnn_type=make,
        channels_first=first,
        img_features=d.size(2, 12),
        rl2_features=d.size(1, 6),
        d_output=d.size(2, 12),
        activation=activation,
        obs_key="picture",
    )
    d.disturb(encoder, 0.1)
    rows, steps = d.size(1, 2), d.size(1, 3)
    pixels = d.indices(256, rows, steps, *shape).to(torch.uint8)
    rl2s = d.normal(rows, steps, encoder.rl2_features.in_features, scale=4.0)

    def formula(w, rl2s):
        images = pixels.double().reshape(-1, *shape) / 128 - 1
        images = images if first else images.permute(0, 3, 1, 2)
        features = network(f64, w, images, activation).reshape(rows, steps, -1)
        features = f64.activation(activation, f64.linear(w, "img_features", features))
        extra = f64.activation(activation, f64.linear(w, "rl2_features", f64.symlog(rl2s)))
        return f64.norm("layer", w, "out_norm", f64.linear(w, "merge", torch.cat((features, extra), -1)))

    same_as_formula(encoder, lambda rl2s: encoder(obs={"picture": pixels}, rl2s=rl2s), formula, rl2s)


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
