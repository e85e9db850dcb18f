"""Activations, normalisation, feed-forward blocks and symlog: golden numbers and independent formulas."""

import pytest
import torch

from amago.nets.ff import MLP, FFBlock, Normalization, SimNorm
from amago.nets.utils import activation_switch, symexp, symlog


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "gelu", "mish", "adaptive"])
def test_activations_equal_the_golden_numbers(torch_golden, assert_forward, name):
    case = torch_golden(f"act_{name}")
    assert_forward(activation_switch(name)(case.tensors["x"]).detach(), case.tensors["y"])


def test_an_unknown_activation_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"'leakyrelu'.*Did you mean 'leaky_relu'"):
        activation_switch("leakyrelu")


@pytest.mark.parametrize("method", ["none", "layer", "rmsnorm", "unitball", "hypersphere", "simnorm"])
def test_normalizations_equal_the_golden_numbers(torch_golden, assert_forward, method):
    case = torch_golden(f"norm_{method}")
    norm = Normalization(method, case.args["d_model"])
    norm.load_state_dict(case.state, strict=True)
    assert_forward(norm(case.tensors["x"]).detach(), case.tensors["y"])


def test_the_detached_unit_ball_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("unitball_detach")
    x = case.tensors["x"].clone().requires_grad_()
    y = Normalization("unitball-detach", x.shape[-1])(x)
    y.backward(case.tensors["gy"])
    assert_forward(y.detach(), case.tensors["y"])
    torch.testing.assert_close(x.grad, case.tensors["grad_x"], atol=1e-4, rtol=1e-3)


def test_an_unknown_normalization_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"'rms_norm'.*Did you mean 'rmsnorm'"):
        Normalization("rms_norm", 8)


def test_simnorm_refuses_widths_that_it_cannot_group():
    with pytest.raises(ValueError, match="d_model to be a multiple of 8, got 12"):
        Normalization("simnorm", 12)
    with pytest.raises(ValueError, match="multiple of dim=5 features, got 12"):
        SimNorm(dim=5)(torch.ones(2, 12))


def test_an_mlp_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("mlp")
    args = {key: case.args[key] for key in ("d_inp", "d_hidden", "n_layers", "d_output", "normalization")}
    mlp = MLP(**args)
    mlp.load_state_dict(case.state, strict=True)
    assert_forward(mlp(case.tensors["x"]).detach(), case.tensors["y"])


def test_a_block_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("ffblock")
    block = FFBlock(case.args["d_model"], case.args["d_ff"], norm=case.args["norm"])
    block.load_state_dict(case.state, strict=True)
    assert_forward(block(case.tensors["x"]).detach(), case.tensors["y"])


def test_an_mlp_without_hidden_layers_is_refused():
    with pytest.raises(ValueError, match="n_layers must be at least 1, got 0"):
        MLP(3, 4, 0, 2)


def test_dropout_only_acts_in_training():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    for module in (MLP(6, 32, 2, 6, dropout_p=0.5), FFBlock(6, 32, dropout=0.5)):
        assert not torch.equal(module(x), module(x))
        module.eval()
        assert torch.equal(module(x), module(x))


def test_symlog_equals_the_golden_numbers(torch_golden, assert_forward):
    t = torch_golden("symlog").tensors
    assert_forward(symlog(t["x"]), t["symlog"])
    assert_forward(symexp(symlog(t["x"])), t["roundtrip"])
