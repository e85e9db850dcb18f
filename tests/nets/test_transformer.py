"""The Transformer: golden numbers, cached inference, and what its parts promise."""

import gin
import numpy as np
import pytest
import torch

from amago.nets import transformer
from amago.nets.traj_encoders import TformerTrajEncoder

CLOSE = {"atol": 1e-5, "rtol": 1e-4}
GOLDEN = [f"tformer_{pos}_{kind}" for pos in ("fixed", "learnable", "rope") for kind in ("plain", "sigma")]
SMALL = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2, "dropout_ff": 0.0, "dropout_emb": 0.0}


@pytest.fixture(autouse=True)
def learned_positions(clean_gin):
    gin.bind_parameter("LearnablePosEmb.max_time_idx", 64)


def golden_encoder(golden, name):
    case = golden(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in case.arrays.items()}
    encoder = TformerTrajEncoder(**case.case["kwargs"]).eval()
    state = {key.removeprefix("state."): value for key, value in t.items() if key.startswith("state.")}
    encoder.load_state_dict(state, strict=True)
    return encoder, t


def step_by_step(encoder, xs, times, reset_after=None, reset_rows=None):
    hidden, outs = encoder.init_hidden_state(len(xs), "cpu"), []
    with torch.no_grad():
        for i in range(xs.shape[1]):
            out, hidden = encoder(xs[:, i : i + 1], time_idxs=times[:, i : i + 1], hidden_state=hidden)
            outs.append(out)
            if i == reset_after:
                hidden = encoder.reset_hidden_state(hidden, reset_rows)
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize("name", GOLDEN)
def test_sequences_equal_the_golden_numbers(golden, name):
    encoder, t = golden_encoder(golden, name)
    torch.testing.assert_close(encoder(t["x"], t["t"])[0], t["y"], **CLOSE)


@pytest.mark.parametrize("name", GOLDEN)
def test_cached_steps_past_the_window_equal_the_golden_numbers(golden, name):
    encoder, t = golden_encoder(golden, name)
    rows = torch.tensor([True, False, False])
    ys = step_by_step(encoder, t["xs"], t["ts"], reset_after=encoder.max_seq_len - 2, reset_rows=rows)
    torch.testing.assert_close(ys, t["ys"], **CLOSE)


@pytest.mark.parametrize("as_type", [torch.tensor, np.array, list])
@pytest.mark.parametrize("dtype", [bool, int])
def test_a_reset_forgets_the_rows_that_ended_and_no_others(as_type, dtype):
    encoder = TformerTrajEncoder(5, 4, **SMALL).eval()
    hidden = encoder.init_hidden_state(3, "cpu")
    hidden.seq_lens += 2
    hidden = encoder.reset_hidden_state(hidden, as_type([dtype(done) for done in (True, False, True)]))
    assert hidden.seq_lens.tolist() == [0, 2, 0]


def test_a_reset_for_another_number_of_rows_is_refused():
    encoder = TformerTrajEncoder(5, 4, **SMALL)
    with pytest.raises(ValueError, match="one bool for each of 3 rows, got 2"):
        encoder.reset_hidden_state(encoder.init_hidden_state(3, "cpu"), [True, False])


def test_a_causal_encoder_does_not_see_the_future_and_another_does():
    torch.manual_seed(0)
    xs, times = torch.randn(1, 6, 5), torch.arange(6).view(1, -1, 1)
    changed = xs.clone()
    changed[:, -1] += 1.0
    for causal in (True, False):
        encoder = TformerTrajEncoder(5, 6, causal=causal, **SMALL).eval()
        same = torch.equal(encoder(xs, times)[0][:, :5], encoder(changed, times)[0][:, :5])
        assert same == causal


def test_sigma_reparam_equals_the_golden_numbers(golden):
    t = {key: torch.from_numpy(value.copy()) for key, value in golden("sigma_reparam").arrays.items()}
    layer = transformer.SigmaReparam(10, 6)
    state = {key.removeprefix("state."): value for key, value in t.items() if key.startswith("state.")}
    layer.load_state_dict(state, strict=True)
    torch.testing.assert_close(layer(t["x"]), t["y_train"], **CLOSE)
    torch.testing.assert_close(layer.u, t["u_after"])
    torch.testing.assert_close(layer.v, t["v_after"])
    layer.eval()
    torch.testing.assert_close(layer(t["x"]), t["y_eval_after"], **CLOSE)


@pytest.mark.parametrize("fast_init", [False, True])
def test_training_brings_sigma_reparam_to_spectral_norm_gamma(fast_init):
    torch.manual_seed(0)
    layer = transformer.SigmaReparam(9, 7, bias=False, fast_init=fast_init)
    layer.gamma.data.fill_(1.7)
    for _ in range(200):
        layer(torch.randn(2, 9))
    effective = layer(torch.eye(9)).T
    assert torch.linalg.matrix_norm(effective, 2).item() == pytest.approx(1.7, rel=1e-3)


def test_time_index_beyond_learned_positions_raises():
    encoder = TformerTrajEncoder(5, 4, pos_emb="learnable", **SMALL)
    with pytest.raises(
        ValueError, match=r"step 64 .* LearnablePosEmb.max_time_idx \(now 64\) to at least 65"
    ):
        encoder(torch.randn(1, 1, 5), torch.tensor([[[64]]]))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"pos_emb": "rotary"}, "pos_emb must be 'fixed', 'learned' .* got 'rotary'"),
        ({"n_heads": 3}, r"d_model must be a multiple of n_heads \(3\), got 16"),
    ],
)
def test_bad_settings_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TformerTrajEncoder(5, 4, **(SMALL | kwargs))
