"""Actors and critics equal their formulas: one discount and one critic at a time, in float64."""

import math

import pytest
import torch

from amago.nets.actor_critic import Actor, NCritics, ResidualActor
from amago.nets.policy_dists import GMM, Beta, Multibinary, TanhGaussian

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]
PARAMETERS = {
    None: lambda n: n,
    TanhGaussian: lambda n: 2 * n,
    Beta: lambda n: 2 * n,
    Multibinary: lambda n: n,
}
PARAMETERS[GMM] = lambda n: 5 * (2 * n + 1)


def sizes(d, discrete):
    return {
        "state_dim": d.size(1, 12),
        "action_dim": d.choice([1, 2, 5, 300]),
        "discrete": discrete,
        "gammas": d.uniform(d.choice([1, 2, 7])),
    }


@pytest.mark.parametrize(
    "kind", list(PARAMETERS), ids=lambda kind: "Discrete" if kind is None else kind.__name__
)
@pytest.mark.parametrize("seed", range(3))
def test_actors(f64, draw, same_as_formula, seed, kind):
    d = draw(seed)
    arguments, activation = sizes(d, kind is None), d.choice(ACTIVATIONS)
    if kind is not None:
        arguments["continuous_dist_type"] = kind
    actor = Actor(**arguments, n_layers=d.size(1, 3), d_hidden=d.size(2, 20), activation=activation)
    d.disturb(actor)
    count = len(arguments["gammas"])
    state = d.normal(d.size(1, 3), d.size(1, 4), arguments["state_dim"])

    def formula(w, state):
        flat = f64.mlp(w, "base", state, activation, None)
        width = PARAMETERS[kind](arguments["action_dim"])
        return torch.stack([flat[..., g * width : (g + 1) * width] for g in range(count)], -2)

    same_as_formula(actor, actor.actor_network_forward, formula, state)


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_residual_actors(f64, draw, same_as_formula, seed, discrete):
    d = draw(seed)
    arguments, activation = sizes(d, discrete), d.choice(ACTIVATIONS)
    norm, blocks = d.choice(["layer", None, "rmsnorm"]), d.size(0, 3)
    actor = ResidualActor(
        **arguments,
        feature_dim=d.size(2, 16),
        residual_ff_dim=d.size(2, 20),
        residual_blocks=blocks,
        activation=activation,
        normalization=norm,
    )
    d.disturb(actor)
    state = d.normal(d.size(1, 3), d.size(1, 4), arguments["state_dim"])

    def formula(w, state):
        x = f64.mlp(w, "inp", state, activation, None)
        for i in range(blocks):
            name = f"residual_blocks.{i}"
            hidden = f64.norm(norm, w, f"{name}.1", f64.linear(w, f"{name}.0", x))
            hidden = f64.linear(w, f"{name}.3", f64.activation(activation, hidden))
            x = x + f64.norm(norm, w, f"{name}.4", hidden)
        width = arguments["action_dim"] * (1 if discrete else 2)
        return f64.linear(w, "out", x).reshape(*state.shape[:2], len(arguments["gammas"]), width)

    same_as_formula(actor, actor.actor_network_forward, formula, state)


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_critics(f64, draw, same_as_formula, seed, discrete):
    d = draw(seed)
    arguments, activation = sizes(d, discrete), d.choice(ACTIVATIONS)
    critics, layers, gammas = d.choice([1, 2, 4]), d.size(1, 3), arguments["gammas"]
    width = arguments["action_dim"]
    module = NCritics(
        **arguments, num_critics=critics, d_hidden=d.size(2, 20), n_layers=layers, activation=activation
    )
    samples, rows, steps = 1 if discrete else d.size(1, 3), d.size(1, 3), d.size(1, 4)
    state = d.normal(rows, steps, arguments["state_dim"])
    action = d.normal(samples, rows, steps, len(gammas), width)
    # Exactly at the border of the clamp the gradient is a matter of convention; random numbers are not there.
    action = torch.softmax(action, -1) if discrete else 0.7 * action

    def network(w, c, x):
        names = ["inp_layer", *(f"core_layers.{i}" for i in range(layers - 1)), "output_layer"]
        for i, name in enumerate(names):
            x = (x[..., None] * w[f"net.{name}.weight"][c]).sum(-2) + w[f"net.{name}.bias"][0, 0, c]
            x = f64.activation(activation, x) if i < layers else x
        return x

    def formula(w, state, action):
        by_critic = []
        for c in range(critics):
            by_gamma = []
            for g, gamma in enumerate(gammas.double().tolist()):
                taken = action[..., g, :]
                if discrete:
                    values = network(w, c, state)[..., g * width : (g + 1) * width]
                    by_gamma.append((values * taken).sum(-1, keepdim=True))
                else:
                    horizon = torch.full((samples, rows, steps, 1), math.log(1 + 1 / max(1 - gamma, 1e-6)))
                    wide = state.unsqueeze(0).expand(samples, -1, -1, -1)
                    clamped = taken.clamp(-0.999, 0.999)
                    by_gamma.append(network(w, c, torch.cat((wide, horizon.double(), clamped), -1)))
            by_critic.append(torch.stack(by_gamma, -2))
        return torch.stack(by_critic, -3)

    same_as_formula(module, module, formula, state, action, dtypes=(torch.float32,))
    exact = module.double()(state.double(), action.double())
    assert exact.dtype == torch.float64
    w = {name: p.detach() for name, p in module.named_parameters()}
    torch.testing.assert_close(exact, formula(w, state.double(), action.double()), atol=1e-6, rtol=1e-5)
