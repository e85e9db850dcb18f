"""Trajectory encoders without attention equal their formulas: one gate, one step and one layer at a time."""

import pytest
import torch

from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]


@pytest.mark.parametrize("seed", range(6))
def test_the_memoryless_encoder(f64, draw, same_as_formula, seed):
    d = draw(seed)
    activation, norm, out_norm = (
        d.choice(options)
        for options in (ACTIVATIONS, [None, "layer", "rmsnorm"], ["layer", None, "hypersphere"])
    )
    width, layers = d.size(1, 12), d.size(0, 3)
    encoder = FFTrajEncoder(
        tstep_dim=width,
        max_seq_len=9,
        d_model=d.size(2, 16),
        d_ff=d.choice([None, 7]),
        n_layers=layers,
        activation=activation,
        norm=norm,
        out_norm=out_norm,
    )
    d.disturb(encoder)
    seq = d.normal(d.size(1, 3), d.size(1, 7), width)

    def formula(w, x):
        x = f64.activation(activation, f64.linear(w, "traj_emb", x))
        for i in range(layers):
            x = f64.ff_block(w, f"traj_blocks.{i}", x, activation, norm)
        return f64.norm(out_norm, w, "out_norm", f64.linear(w, "traj_last", x))

    same_as_formula(encoder, lambda x: encoder(x, None)[0], formula, seq)


def recurrent(f64, w, seq, layers, hidden, norm):
    """GRU (Cho et al. 2014) with the reset gate on the hidden share; returns outputs and the last hidden state."""
    outs, last = seq, []
    for layer in range(layers):

        def gates(x, kind, layer=layer):
            weight, bias = (w[f"rnn.{part}_{kind}_l{layer}"] for part in ("weight", "bias"))
            return ((x[..., None, :] * weight).sum(-1) + bias).chunk(3, -1)

        h, steps = hidden[layer], []
        for t in range(seq.shape[1]):
            (xr, xz, xn), (hr, hz, hn) = gates(outs[:, t], "ih"), gates(h, "hh")
            r, z = 1 / (1 + torch.exp(-(xr + hr))), 1 / (1 + torch.exp(-(xz + hz)))
            h = (1 - z) * torch.tanh(xn + r * hn) + z * h
            steps.append(h)
        outs = torch.stack(steps, 1)
        last.append(h)
    return f64.norm(norm, w, "out_norm", f64.linear(w, "out", outs)), torch.stack(last)


@pytest.mark.parametrize("seed", range(6))
def test_the_recurrent_encoder(f64, draw, same_as_formula, seed):
    d = draw(seed)
    width, units, layers, norm = (
        d.size(1, 9),
        d.size(1, 9),
        d.size(1, 3),
        d.choice(["layer", None, "rmsnorm"]),
    )
    encoder = GRUTrajEncoder(
        width, max_seq_len=9, d_hidden=units, n_layers=layers, d_output=d.size(2, 9), norm=norm
    )
    d.disturb(encoder)
    rows = d.size(1, 3)
    seq, start = d.normal(rows, d.size(1, 7), width), d.normal(layers, rows, units)
    for which in (0, 1):
        same_as_formula(
            encoder,
            lambda x, h, which=which: encoder(x, None, h)[which],
            lambda w, x, h, which=which: recurrent(f64, w, x, layers, h, norm)[which],
            seq,
            start,
        )


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_the_recurrent_encoder_with_resets_equal_one_sequence_per_episode(
    f64, draw, episodes, same_forward, f64_weights, seed
):
    d = draw(seed)
    width, units, layers, rows, steps = d.size(1, 6), d.size(1, 6), d.size(1, 2), d.size(1, 4), d.size(4, 12)
    encoder = d.disturb(GRUTrajEncoder(width, max_seq_len=3, d_hidden=units, n_layers=layers, d_output=5))
    seq, ended = d.normal(rows, steps, width), d.uniform(rows, steps) < 0.3
    hidden, outs = encoder.init_hidden_state(rows, "cpu"), []
    with torch.no_grad():
        for t in range(steps):
            out, hidden = encoder(seq[:, t : t + 1], None, hidden)
            hidden = encoder.reset_hidden_state(hidden, ended[:, t])
            outs.append(out)
    y, w = torch.cat(outs, 1), f64_weights(encoder)
    for row, steps_of_it in episodes(ended):
        zeros = torch.zeros(layers, 1, units, dtype=torch.float64)
        expected, _ = recurrent(f64, w, seq[row : row + 1, steps_of_it].double(), layers, zeros, "layer")
        same_forward(y[row : row + 1, steps_of_it], expected)
