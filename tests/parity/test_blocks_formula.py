"""Activations, norms, feed-forward blocks and goal embedders equal their formulas at random sizes."""

import math

import pytest
import torch
from torch import nn

from amago.nets.activations import activation_switch
from amago.nets.ff import MLP, FFBlock, Normalization
from amago.nets.goal_embedders import FFGoalEmb, TokenGoalEmb
from amago.nets.utils import symexp, symlog

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]
NORMS = ["none", "layer", "rmsnorm", "unitball", "unitball-detach", "hypersphere", "simnorm"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(f64, draw, same_as_formula, name, seed):
    d = draw(seed)
    x = d.normal(d.size(1, 5), d.size(1, 40), scale=3.0)
    module = activation_switch(name)
    same_as_formula(module, module, lambda w, x: f64.activation(name, x), x)


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", NORMS)
def test_norms(f64, draw, same_as_formula, method, seed):
    d = draw(seed)
    width = 8 * d.size(1, 4) if method == "simnorm" else d.size(2, 40)
    x = d.normal(d.size(1, 4), d.size(1, 6), width, scale=d.choice([0.3, 1.0, 4.0])) + 0.5
    module = d.disturb(Normalization(method, width))
    same_as_formula(module, module, lambda w, x: f64.norm(method, f64.named(w, "m"), "m", x), x)


@pytest.mark.parametrize("seed", range(8))
def test_mlps(f64, draw, same_as_formula, seed):
    d = draw(seed)
    activation, norm = d.choice(ACTIVATIONS), d.choice(NORMS)
    hidden = 8 * d.size(1, 3) if norm == "simnorm" else d.size(2, 30)
    d_inp, layers, d_out = d.size(1, 20), d.size(1, 4), d.size(1, 20)
    module = d.disturb(MLP(d_inp, hidden, layers, d_out, activation=activation, normalization=norm))
    x = d.normal(d.size(1, 3), d.size(1, 6), d_inp)
    same_as_formula(module, module, lambda w, x: f64.mlp(f64.named(w, "m"), "m", x, activation, norm), x)


@pytest.mark.parametrize("seed", range(8))
def test_residual_blocks(f64, draw, same_as_formula, seed):
    d = draw(seed)
    activation, norm = d.choice(ACTIVATIONS), d.choice(NORMS)
    step = 8 if norm == "simnorm" else 1
    width, hidden = step * d.size(2, 4), step * d.size(2, 5)
    module = d.disturb(FFBlock(width, hidden, activation=activation, norm=norm))
    x = d.normal(d.size(1, 3), d.size(1, 6), width)
    same_as_formula(module, module, lambda w, x: f64.ff_block(f64.named(w, "m"), "m", x, activation, norm), x)


@pytest.mark.parametrize("seed", range(4))
def test_the_feed_forward_goal_embedding(f64, draw, same_as_formula, seed):
    d = draw(seed)
    length, width, emb = d.size(1, 4), d.size(1, 4), d.size(2, 20)
    module = d.disturb(FFGoalEmb(length, width, goal_emb_dim=emb))
    goals = d.normal(d.size(1, 3), d.size(1, 5), length, width)

    def formula(w, goals):
        hidden = f64.linear(
            w, "ff1", torch.stack([goals[..., i, j] for i in range(length) for j in range(width)], -1)
        )
        y = f64.linear(w, "ff2", f64.activation("leaky_relu", hidden))
        return layer_norm(f64, w, "goal_norm", y)

    same_as_formula(module, module, formula, goals)


@pytest.mark.parametrize("seed", range(4))
def test_the_token_goal_embedding(f64, draw, same_as_formula, seed):
    d = draw(seed)
    length, width, low, high = d.size(1, 4), d.size(1, 3), -d.size(0, 9), d.size(0, 9)
    module = d.disturb(
        TokenGoalEmb(
            length,
            width,
            min_token=low,
            max_token=high,
            goal_emb_dim=d.size(2, 9),
            embedding_dim=d.size(1, 9),
            hidden_size=d.size(1, 9),
        ),
        0.1,
    )
    goals = d.indices(high - low + 1, d.size(1, 3), d.size(1, 5), length, width) + low

    def formula(w, goals):
        hidden = torch.zeros(*goals.shape[:2], w["goal_rnn.weight_hh_l0"].shape[1], dtype=torch.float64)
        for i in range(length):
            for j in range(width):
                token = w["goal_emb.weight"][goals[:, :, i, j] - low]
                hidden = torch.tanh(
                    token @ w["goal_rnn.weight_ih_l0"].T
                    + w["goal_rnn.bias_ih_l0"]
                    + hidden @ w["goal_rnn.weight_hh_l0"].T
                    + w["goal_rnn.bias_hh_l0"]
                )
        return layer_norm(f64, w, "goal_norm", f64.linear(w, "goal_ff", hidden))

    same_as_formula(module, module, formula, goals)


def layer_norm(f64, w, name, x):
    return f64.norm("layer", {f"x.norm.{part}": w[f"{name}.{part}"] for part in ("weight", "bias")}, "x", x)


def test_the_start_of_the_adaptive_activation_is_near_a_leaky_relu():
    x = torch.linspace(-2.0, 2.0, 101)
    assert (activation_switch("adaptive")(x) - nn.LeakyReLU()(x)).abs().max() < 0.1
    start = activation_switch("adaptive")(torch.zeros(1)).item()
    assert math.isclose(start, 0.029792778657264946, rel_tol=1e-6)
