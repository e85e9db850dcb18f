"""Sizes at both ends: one of everything, and batches large enough for the kernels and blocks that serve those."""

import math

import gin
import pytest
import torch
import torch.nn.functional as F

from amago.agent import Agent, Batch, MultiTaskAgent
from amago.nets.actor_critic import NCritics
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

SMALL = [
    "FFTstepEncoder.d_hidden = 8",
    "FFTstepEncoder.d_output = 8",
    "FFTrajEncoder.d_model = 8",
    "GRUTrajEncoder.d_hidden = 8",
    "GRUTrajEncoder.d_output = 8",
    "TformerTrajEncoder.d_model = 8",
    "TformerTrajEncoder.n_heads = 2",
    "TformerTrajEncoder.d_ff = 8",
    "TformerTrajEncoder.n_layers = 1",
    "Actor.d_hidden = 8",
    "NCritics.d_hidden = 8",
    "NCriticsTwoHot.d_hidden = 8",
    "NCriticsTwoHot.output_bins = 16",
]


def close(ours, exact):
    """Large sums lose digits in proportion to the largest of them."""
    atol = 2e-5 * max(1.0, exact.abs().max().item())
    torch.testing.assert_close(ours.double(), exact, atol=atol, rtol=1e-4)


def distance(ours, exact):
    """Of two tensors, as a share of the second's length."""
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("activation", ["leaky_relu", "gelu"])
def test_critics_of_more_rows_than_one_block(f64, draw, discrete, activation):
    d = draw(2)
    gammas, width, critics = torch.tensor([0.3, 0.9, 0.99]), 5, 2
    module = NCritics(7, width, discrete, gammas, critics, d_hidden=40, activation=activation)
    samples = 1 if discrete else 2
    state, action = d.normal(6, 700, 7), d.uniform(samples, 6, 700, 3, width)
    w = {name: p.detach().double().requires_grad_() for name, p in module.named_parameters()}
    exact_state, exact_action = (x.double().requires_grad_() for x in (state, action))
    horizons = torch.tensor(
        [math.log(1 + 1 / (1 - g)) for g in gammas.double().tolist()], dtype=torch.float64
    )

    def network(c, x):
        for name in ("inp_layer", "core_layers.0"):
            x = f64.activation(activation, x @ w[f"net.{name}.weight"][c] + w[f"net.{name}.bias"][0, 0, c])
        return x @ w["net.output_layer.weight"][c] + w["net.output_layer.bias"][0, 0, c]

    values = []
    for c in range(critics):
        if discrete:
            out = network(c, exact_state).view(6, 700, 3, width)
            values.append((out * exact_action).sum(-1, keepdim=True))
        else:
            horizon = horizons.view(1, 1, 1, 3, 1).expand(samples, 6, 700, 3, 1)
            wide = exact_state[None, :, :, None].expand(samples, -1, -1, 3, -1)
            values.append(network(c, torch.cat((wide, horizon, exact_action.clamp(-0.999, 0.999)), -1)))
    expected = torch.stack(values, 3)
    state.requires_grad_()
    action.requires_grad_()
    y = module(state, action)
    upstream = d.normal(*y.shape)
    y.backward(upstream)
    expected.backward(upstream.double())
    close(y.detach(), expected.detach())
    # As wholes: among a million hidden units one may lie on the other side of the activation's kink.
    assert distance(state.grad, exact_state.grad) < 5e-3
    assert distance(action.grad, exact_action.grad) < 5e-3
    for name, p in module.named_parameters():
        assert distance(p.grad, w[name].grad) < 1e-3, name


def small_agent(cls, spec, encoder, multigamma, **kwargs):
    gin.parse_config(SMALL)
    return cls(
        obs_space={"observation": (1,)},
        rl2_space=(1 + spec.dim,),
        action_space=spec,
        max_seq_len=2,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=encoder,
        use_multigamma=multigamma,
        **kwargs,
    )


def one_transition(d, spec, dtype=torch.float32):
    hots = [F.one_hot(d.indices(n, 1, 1), n).float() for n in spec.sizes]
    actions = torch.cat(hots, -1) if "discrete" in spec.kind else d.uniform(1, 1, spec.dim)
    batch = Batch(
        obs={"observation": d.normal(1, 2, 1)},
        rl2s=d.normal(1, 2, 1 + spec.dim),
        rews=d.normal(1, 1, 1),
        dones=torch.zeros(1, 1, 1, dtype=torch.bool),
        actions=actions if spec.kind != "multibinary" else (actions > 0.5).float(),
        time_idxs=torch.arange(2).view(1, 2, 1),
        lengths=torch.tensor([2]),
    )
    return batch.map(lambda x: x.to(dtype) if x.is_floating_point() else x)


@pytest.mark.parametrize(
    "spec",
    [
        ActionSpec("discrete", (1,)),
        ActionSpec("discrete", (300,)),
        ActionSpec("box", (1,)),
        ActionSpec("box", (300,)),
        ActionSpec("multidiscrete", (1, 300)),
        ActionSpec("multibinary", (1,)),
    ],
    ids=lambda spec: f"{spec.kind}{spec.dim}",
)
@pytest.mark.parametrize("cls", [Agent, MultiTaskAgent])
def test_smallest_sizes_train_and_act(draw, cls, spec):
    """The loss and all gradients are finite, and an action comes out, at A = 1 and A = 300 too."""
    d = draw(3)
    coefficients = {"online_coeff": 0.0 if spec.kind == "multibinary" else 1.0, "offline_coeff": 1.0}
    agent = small_agent(cls, spec, TformerTrajEncoder, False, num_critics=1, num_critics_td=1, **coefficients)
    loss = agent(one_transition(d, spec), log_step=True)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in agent.parameters())
    hidden = agent.init_hidden_state(1, "cpu")
    batch = one_transition(d, spec)
    now = [{key: x[:, :1] for key, x in batch.obs.items()}, batch.rl2s[:, :1], batch.time_idxs[:, :1]]
    agent.eval()
    action, _ = agent.get_actions(*now, hidden_state=hidden)
    assert action.shape[:2] == (1, 1)


@pytest.mark.parametrize("cls", [Agent, MultiTaskAgent])
def test_huge_rewards_and_observations_give_finite_losses(draw, cls):
    d = draw(5)
    spec = ActionSpec("discrete", (3,))
    agent = small_agent(cls, spec, GRUTrajEncoder, True)
    for scale in (1e3, 1e6, 1e9):
        batch = one_transition(d, spec)
        batch.obs["observation"] = batch.obs["observation"] * scale
        batch.rews = batch.rews * scale
        loss = agent(batch, log_step=True)
        agent.zero_grad()
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in agent.parameters())
