"""New networks start from the published distributions: bounds, spreads and special cases."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from amago.nets.actor_critic import Actor, NCritics, NCriticsTwoHot, ResidualActor
from amago.nets.cnn import DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN
from amago.nets.ff import MLP, FFBlock
from amago.nets.traj_encoders import FFTrajEncoder, TformerTrajEncoder
from amago.nets.transformer import LearnablePosEmb, SigmaReparam

GAMMAS = [0.5, 0.9, 0.99]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def assert_uniform(x, bound, what):
    """All within ±bound; maximum and standard deviation as of that many uniform numbers, within five sigma."""
    x = x.detach().double().flatten()
    n = x.numel()
    assert x.abs().max() <= bound * (1 + 1e-6), what
    assert x.abs().max() >= bound * (1 - 20 / n), what
    if n >= 30:
        assert x.std().item() == pytest.approx(bound / math.sqrt(3), rel=5 * math.sqrt(0.2 / n)), what
        assert x.mean().item() == pytest.approx(0.0, abs=5 * bound / math.sqrt(3 * n)), what


@pytest.mark.parametrize("critics", [1, 4])
@pytest.mark.parametrize("cls", [NCritics, NCriticsTwoHot])
@pytest.mark.parametrize("discrete", [True, False])
def test_critics_start_wider_than_linear_layers(cls, discrete, critics):
    """Weights uniform within sqrt(3 / inputs of one critic), biases within sqrt(1 / inputs), to the last."""
    module = cls(
        state_dim=30, action_dim=6, discrete=discrete, gammas=GAMMAS, num_critics=critics, d_hidden=50
    )
    first = 30 if discrete and cls is NCritics else 37
    layers = [module.net.inp_layer, *module.net.core_layers, module.net.output_layer]
    for layer, fan_in in zip(layers, (first, 50, 50), strict=True):
        assert layer.weight.shape[:2] == (critics, fan_in)
        assert_uniform(layer.weight, math.sqrt(3 / fan_in), "weight")
        assert_uniform(layer.bias, math.sqrt(1 / fan_in), "bias")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Actor(30, 6, True, GAMMAS, d_hidden=40),
        lambda: ResidualActor(30, 6, False, GAMMAS, feature_dim=40, residual_ff_dim=50),
        lambda: MLP(20, 40, 3, 10),
        lambda: FFBlock(40, 60),
        lambda: FFTrajEncoder(20, 9, d_model=40),
        lambda: GridworldCNN((9, 9, 3)),
        lambda: IMPALAishCNN((3, 24, 24), channels_first=True),
        lambda: TformerTrajEncoder(20, 9, d_model=40, n_heads=4, d_ff=60, sigma_reparam=False),
    ],
    ids=["Actor", "ResidualActor", "MLP", "FFBlock", "FFTrajEncoder", "Gridworld", "IMPALA", "Transformer"],
)
def test_plain_layers_start_as_torch_starts_them(make):
    """Uniform within sqrt(1 / inputs), biases too; norms at 1 and 0."""
    for name, module in make().named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            bound = 1 / math.sqrt(module.weight[0].numel())
            assert_uniform(module.weight, bound, name)
            if module.bias is not None:
                assert_uniform(module.bias, bound, name)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_learned_positions_start_standard_normal():
    x = LearnablePosEmb(64, max_time_idx=500).embeddings.weight.detach()
    assert x.mean().item() == pytest.approx(0.0, abs=0.03)
    assert x.std().item() == pytest.approx(1.0, abs=0.03)
    assert 3.0 < x.abs().max() < 7.0


def test_reparametrised_layers_of_a_transformer_start_at_spectral_norm_one():
    encoder = TformerTrajEncoder(20, 9, d_model=40, n_heads=4, d_ff=60, sigma_reparam=True)
    layers = [m for m in encoder.modules() if isinstance(m, SigmaReparam)]
    assert len(layers) == 4 * 3
    for layer in layers:
        weight = layer.weight.detach().double()
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
        left, values, right = np.linalg.svd(weight.numpy())
        assert abs(left[:, 0] @ layer.u.double().numpy()) == pytest.approx(1.0, abs=1e-4)
        assert abs(right[0] @ layer.v.double().numpy()) == pytest.approx(1.0, abs=1e-4)
        assert layer.gamma.item() == 1.0
        if layer.bias is not None:
            assert_uniform(layer.bias, 1 / math.sqrt(layer.in_features), "bias")
        x = torch.from_numpy(right[0]).float()
        with torch.no_grad():
            out = layer.eval()(x) - (0.0 if layer.bias is None else layer.bias)
        assert out.norm().item() == pytest.approx(1.0, abs=1e-4), values[0]


def test_fast_init_starts_like_a_linear_layer_with_random_directions():
    layer = SigmaReparam(50, 70, fast_init=True)
    assert_uniform(layer.weight, 1 / math.sqrt(50), "weight")
    assert_uniform(layer.bias, 1 / math.sqrt(50), "bias")
    assert layer.u.norm().item() == pytest.approx(1.0, abs=1e-5)
    assert layer.v.norm().item() == pytest.approx(1.0, abs=1e-5)
    left = np.linalg.svd(layer.weight.detach().double().numpy())[0][:, 0]
    assert abs(left @ layer.u.double().numpy()) < 0.6


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("symlog", [True, False])
def test_an_initial_value_sets_the_bias_of_the_bins_alone(draw, seed, symlog):
    """-(bin - value)^2 / (2 (4 widths)^2) for every critic, in the space of the bins."""
    d = draw(seed)
    low, high, n = -float(d.size(1, 50)), float(d.size(1, 200)), d.size(8, 100)
    value = low + (high - low) * float(d.uniform(1))
    arguments = {
        "output_bins": n,
        "min_return": low,
        "max_return": high,
        "use_symlog": symlog,
        "d_hidden": 20,
    }
    module = NCriticsTwoHot(5, 3, GAMMAS, False, num_critics=2, init_value=value, **arguments)

    def place(x):
        return math.copysign(math.log1p(abs(x)), x) if symlog else x

    bins = np.linspace(place(low), place(high), n)
    expected = -((bins - place(value)) ** 2) / (2 * (4 * (bins[1] - bins[0])) ** 2)
    bias = module.net.output_layer.bias.detach().double().numpy()
    np.testing.assert_allclose(bias, np.broadcast_to(expected, bias.shape), atol=1e-4, rtol=1e-4)
    assert_uniform(module.net.output_layer.weight, math.sqrt(3 / 20), "weight")
    for outside in (low - 1.0, high + 1.0):
        with pytest.raises(ValueError, match="init_value"):
            NCriticsTwoHot(5, 3, GAMMAS, False, num_critics=2, init_value=outside, **arguments)


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
