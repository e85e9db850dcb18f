"""Activations, norms, feed-forward blocks and goal embedders equal their formulas at random sizes."""

import pytest
import torch

from amago.nets.activations import activation_switch
from amago.nets.ff import MLP, FFBlock, Normalization
from amago.nets.utils import symexp, symlog

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]
NORMS = ["none", "layer", "rmsnorm", "unitball", "unitball-detach", "hypersphere", "simnorm"]


@pytest.mark.parametrize("seed", range(3))
def test_the_adaptive_activation_is_a_quotient_of_polynomials(draw, same_as_formula, seed):
    d = draw(seed)
    x = d.normal(d.size(1, 5), d.size(1, 9), scale=2.0)
    module = d.disturb(activation_switch("adaptive"), 0.05)

    def formula(w, x):
        top = sum(w["numerator"][i] * x**i for i in range(6))
        return top / (1 + sum((w["denominator"][i] * x ** (i + 1)).abs() for i in range(4)))

    same_as_formula(module, module, formula, x)


@pytest.mark.parametrize("seed", range(3))
def test_symlog_and_its_inverse(f64, draw, seed):
    d = draw(seed)
    x = d.normal(d.size(1, 200), scale=10.0 ** d.size(-3, 6))
    torch.testing.assert_close(symlog(x).double(), f64.symlog(x.double()), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(symexp(symlog(x.double())), x.double(), atol=1e-9, rtol=1e-9)
    y = symlog(x)
    exact = torch.where(y < 0, 1 - torch.exp(-y.double()), torch.exp(y.double()) - 1)
    torch.testing.assert_close(symexp(y).double(), exact, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("method", NORMS)
def test_norms(f64, draw, same_as_formula, method, seed):
    d = draw(seed)
    width = 8 * d.size(1, 4) if method == "simnorm" else d.size(2, 40)
    x = d.normal(d.size(1, 4), d.size(1, 6), width, scale=d.choice([0.3, 1.0, 4.0])) + 0.5
    module = d.disturb(Normalization(method, width))
    same_as_formula(module, module, lambda w, x: f64.norm(method, f64.named(w, "m"), "m", x), x)


@pytest.mark.parametrize("seed", range(2))
def test_mlps(f64, draw, same_as_formula, seed):
    d = draw(seed)
    activation, norm = d.choice(ACTIVATIONS), d.choice(NORMS)
    hidden = 8 * d.size(1, 3) if norm == "simnorm" else d.size(2, 30)
    d_inp, layers, d_out = d.size(1, 20), d.size(1, 4), d.size(1, 20)
    module = d.disturb(MLP(d_inp, hidden, layers, d_out, activation=activation, normalization=norm))
    x = d.normal(d.size(1, 3), d.size(1, 6), d_inp)
    same_as_formula(module, module, lambda w, x: f64.mlp(f64.named(w, "m"), "m", x, activation, norm), x)


@pytest.mark.parametrize("seed", range(2))
def test_residual_blocks(f64, draw, same_as_formula, seed):
    d = draw(seed)
    activation, norm = d.choice(ACTIVATIONS), d.choice(NORMS)
    step = 8 if norm == "simnorm" else 1
    width, hidden = step * d.size(2, 4), step * d.size(2, 5)
    module = d.disturb(FFBlock(width, hidden, activation=activation, norm=norm))
    x = d.normal(d.size(1, 3), d.size(1, 6), width)
    same_as_formula(module, module, lambda w, x: f64.ff_block(f64.named(w, "m"), "m", x, activation, norm), x)
