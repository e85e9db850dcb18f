"""The Mamba trajectory encoder: golden numbers, steps that equal the sequence, initialisation, precision."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from amago.nets.traj_encoders import MambaTrajEncoder


def make_encoder(seed=0, **sizes) -> MambaTrajEncoder:
    torch.manual_seed(seed)
    return MambaTrajEncoder(
        **{"tstep_dim": 5, "max_seq_len": 8, "d_model": 12, "d_state": 4, "n_layers": 2, **sizes}
    )


def rollout(encoder, seq, hidden_state=None):
    """One timestep at a time; outputs (B, L, D) and the hidden state after them."""
    if hidden_state is None:
        hidden_state = encoder.init_hidden_state(len(seq), "cpu")
    outputs = []
    for step in seq.unbind(1):
        out, hidden_state = encoder(step.unsqueeze(1), hidden_state=hidden_state)
        outputs.append(out)
    return torch.cat(outputs, 1), hidden_state


@torch.no_grad()
@pytest.mark.parametrize("backend", ["auto", "torch", "eager", "cpp"])
def test_the_golden_numbers(torch_golden, assert_forward, backend):
    case = torch_golden("mamba_traj")
    encoder = MambaTrajEncoder(**case.args["kwargs"], backend=backend)
    encoder.load_state_dict(case.state, strict=True)
    x = case.tensors["x"]
    y, hidden_state = encoder(x)
    assert hidden_state is None
    assert_forward(y, case.tensors["y"])
    assert_forward(rollout(encoder, x)[0], case.tensors["ys"])


def test_a_layer_equals_its_equations_in_float64():
    """Gu and Dao 2023, figure 3 and algorithm 2, one timestep and channel at a time."""
    encoder = make_encoder(n_layers=1, d_model=6, d_state=3, d_conv=3, expand=2).double()
    mamba = encoder.mambas[0].mamba
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    inputs, gate = (x @ mamba.in_proj.weight.T).chunk(2, -1)
    padded = F.pad(inputs, (0, 0, 2, 0))
    filters = mamba.conv1d.weight[:, 0]  # (I, K)
    state = torch.zeros(2, 12, 3, dtype=torch.float64)
    outputs = []
    for t in range(7):
        u = F.silu((padded[:, t : t + 3] * filters.T).sum(1) + mamba.conv1d.bias)
        delta, B, C = (u @ mamba.x_proj.weight.T).split([1, 3, 3], -1)
        delta = F.softplus(mamba.dt_proj(delta))
        decay = torch.exp(delta[..., None] * -mamba.A_log.exp())
        state = decay * state + (delta * u)[..., None] * B[:, None]
        y = (state * C[:, None]).sum(-1) + mamba.D * u
        outputs.append((y * F.silu(gate[:, t])) @ mamba.out_proj.weight.T)
    torch.testing.assert_close(mamba(x)[0], torch.stack(outputs, 1))


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_steps_equal_the_whole_sequence_at_any_size(seed):
    generator = np.random.default_rng(seed)
    sizes = {
        "tstep_dim": int(generator.integers(1, 9)),
        "d_model": int(generator.integers(1, 40)),
        "d_state": int(generator.integers(1, 17)),
        "d_conv": int(generator.integers(1, 6)),
        "expand": int(generator.integers(1, 4)),
        "n_layers": int(generator.integers(1, 4)),
        "norm": ["layer", "rmsnorm", None, "unitball"][seed],
    }
    encoder = make_encoder(seed, **sizes)
    rows, length = int(generator.integers(1, 5)), int(generator.integers(1, 40))
    seq = torch.randn(rows, length, sizes["tstep_dim"])
    whole, _ = encoder(seq)
    assert whole.shape == (rows, length, encoder.emb_dim) == (rows, length, sizes["d_model"])
    steps, hidden_state = rollout(encoder, seq)
    torch.testing.assert_close(steps, whole, atol=1e-5, rtol=1e-4)
    # Several timesteps at once continue a hidden state just as well.
    cut = length // 2
    first, middle = (
        encoder(seq[:, :cut], hidden_state=encoder.init_hidden_state(rows, "cpu"))
        if cut
        else (
            whole[:, :0],
            encoder.init_hidden_state(rows, "cpu"),
        )
    )
    second, last = encoder(seq[:, cut:], hidden_state=middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last, hidden_state, atol=1e-5, rtol=1e-4)


def test_every_parameter_gets_a_gradient_and_steps_give_the_same_ones():
    encoder = make_encoder().double()
    seq = torch.randn(3, 6, 5, dtype=torch.float64)
    parameters = dict(encoder.named_parameters())
    weight = torch.randn(12, dtype=torch.float64)  # the norm of the output alone is constant
    losses = [(out * weight).mean() for out in (encoder(seq)[0], rollout(encoder, seq)[0])]
    whole, steps = (torch.autograd.grad(loss, list(parameters.values())) for loss in losses)
    for name, a, b in zip(parameters, whole, steps, strict=True):
        assert a.abs().sum() > 0, name
        torch.testing.assert_close(a, b)


def test_the_initialisation_is_the_one_of_the_paper():
    encoder = make_encoder(d_model=256, d_state=16, n_layers=1)
    mamba = encoder.mambas[0].mamba
    torch.testing.assert_close(mamba.A_log.exp(), torch.arange(1.0, 17).expand(512, 16))
    assert torch.equal(mamba.D, torch.ones(512))
    steps = F.softplus(mamba.dt_proj.bias)
    assert 0.001 * 0.999 <= steps.min() <= 0.0012
    assert 0.08 <= steps.max() <= 0.1 * 1.001
    assert steps.log().mean().item() == pytest.approx(np.log(0.01), abs=0.2)  # log-uniform
    assert mamba.dt_rank == 16  # D / 16
    bound = mamba.dt_rank**-0.5
    assert 0.95 * bound < mamba.dt_proj.weight.abs().max() <= bound
    assert mamba.in_proj.bias is None
    assert mamba.out_proj.bias is None


@torch.no_grad()
def test_the_memory_is_float32_in_a_bf16_rollout():
    encoder = make_encoder()
    seq = torch.randn(2, 12, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden_state = encoder.init_hidden_state(2, "cpu")
        steps, hidden_state = rollout(encoder, seq, hidden_state)
        whole, _ = encoder(seq)
    assert {state.dtype for state in hidden_state.ssm} == {torch.float32}
    torch.testing.assert_close(steps, whole, atol=0.05, rtol=0.05)
    torch.testing.assert_close(whole.float(), encoder(seq)[0], atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name", ["d_model", "d_state", "d_conv", "expand", "n_layers"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        make_encoder(**{name: 0})
