"""The Transformer equals its formula, head by head and position by position in float64, at random sizes."""

import math

import gin
import numpy as np
import pytest
import torch

from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.transformer import FlashAttention, SigmaReparam, VanillaAttention

ACTIVATIONS = ["leaky_relu", "relu", "gelu", "mish"]
NORMS = ["layer", "rmsnorm", "unitball", "hypersphere"]


def sinusoids(positions, width):
    """(B, L) -> (B, L, width)."""
    parts = []
    for i in range(width):
        angle = positions.double() * math.exp(-math.log(10000.0) * (i - i % 2) / width)
        parts.append(torch.cos(angle) if i % 2 else torch.sin(angle))
    return torch.stack(parts, -1)


def rotated(x, positions):
    """(B, L, D): feature i and feature i + D/2 turn by position / 10000^(2i/D)."""
    half = x.shape[-1] // 2
    out = [None] * (2 * half)
    for i in range(half):
        angle = positions.double() * 10000.0 ** (-2 * i / (2 * half))
        a, b = x[..., i], x[..., i + half]
        out[i] = a * torch.cos(angle) - b * torch.sin(angle)
        out[i + half] = a * torch.sin(angle) + b * torch.cos(angle)
    return torch.stack(out, -1)


def attended(q, k, v, window):
    """One head, (B, L, D) each: position i sees the `window` positions up to i."""
    rows = []
    for i in range(q.shape[1]):
        first = max(0, i + 1 - window)
        scores = (k[:, first : i + 1] * q[:, i : i + 1]).sum(-1) / math.sqrt(q.shape[-1])
        powers = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = powers / powers.sum(-1, keepdim=True)
        rows.append((weights[..., None] * v[:, first : i + 1]).sum(1))
    return torch.stack(rows, 1)


class Written:
    """A Transformer as a function of its weights; `window` is how many steps a position sees."""

    def __init__(self, f64, *, heads, layers, positions, norm, activation, normformer):
        self.f64, self.heads, self.layers, self.positions = f64, heads, layers, positions
        self.norm, self.activation, self.normformer = norm, activation, normformer

    def layer(self, w, name, x, places, window):
        f64, heads = self.f64, self.heads
        y = f64.linear(
            w, f"{name}.attention_layer.qkv_projection", f64.norm(self.norm, w, f"{name}.norm1", x)
        )
        y = y.reshape(*y.shape[:2], 3, -1, heads)
        parts = []
        for head in range(heads):
            q, k, v = (y[:, :, i, :, head] for i in range(3))
            if self.positions == "rope":
                q, k = rotated(q, places), rotated(k, places)
            scale = w[f"{name}.attention_layer.head_scaler"][0, 0, head, 0]
            parts.append(scale * attended(q, k, v, window))
        y = f64.linear(w, f"{name}.attention_layer.out_projection", torch.cat(parts, -1))
        x = x + (f64.norm(self.norm, w, f"{name}.norm2", y) if self.normformer else y)
        hidden = f64.linear(w, f"{name}.ff1", f64.norm(self.norm, w, f"{name}.norm3", x))
        hidden = f64.activation(self.activation, hidden)
        hidden = f64.norm(self.norm, w, f"{name}.norm4", hidden) if self.normformer else hidden
        return x + f64.linear(w, f"{name}.ff2", hidden)

    def __call__(self, w, x, places, window=10**9):
        x = self.f64.linear(w, "tformer.inp", x)
        if self.positions == "fixed":
            x = x + sinusoids(places, x.shape[-1])
        elif self.positions == "learned":
            x = x + w["tformer.position_embedding.embeddings.weight"][places]
        for i in range(self.layers):
            x = self.layer(w, f"tformer.layers.{i}", x, places, window)
        return self.f64.norm(self.norm, w, "tformer.norm", x)


def drawn(d, f64, positions, sigma, window=64):
    """An encoder of random sizes in eval mode, and its formula."""
    heads, layers = d.size(1, 4), d.size(1, 3)
    norm, activation, normformer = d.choice(NORMS), d.choice(ACTIVATIONS), bool(d.size(0, 1))
    gin.bind_parameter("LearnablePosEmb.max_time_idx", 60)
    encoder = TformerTrajEncoder(
        tstep_dim=d.size(1, 9),
        max_seq_len=window,
        d_model=2 * heads * d.size(1, 4),
        n_heads=heads,
        d_ff=d.size(2, 20),
        n_layers=layers,
        norm=norm,
        activation=activation,
        pos_emb=positions,
        sigma_reparam=sigma,
        normformer_norms=normformer,
        head_scaling=bool(d.size(0, 1)),
        attention_type=d.choice([VanillaAttention, FlashAttention]),
    )
    d.disturb(encoder, 0.1)
    written = Written(
        f64,
        heads=heads,
        layers=layers,
        positions=positions,
        norm=norm,
        activation=activation,
        normformer=normformer,
    )
    return encoder.eval(), written


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sigma", [False, True], ids=["plain", "sigma"])
@pytest.mark.parametrize("positions", ["fixed", "learned", "rope"])
def test_whole_sequences(f64, draw, same_as_formula, positions, sigma, seed):
    d = draw(seed)
    encoder, written = drawn(d, f64, positions, sigma)
    rows, steps = d.size(1, 3), d.size(1, 8)
    x = d.normal(rows, steps, encoder.tstep_dim)
    places = torch.arange(steps) + d.indices(40, rows, 1)
    same_as_formula(
        encoder,
        lambda x: encoder(x, places.unsqueeze(-1))[0],
        lambda w, x: written(w, x, places),
        x,
        dtypes=(torch.float32,),
    )


@pytest.mark.parametrize("seed", range(3))
def test_sigma_reparam_in_training(draw, seed):
    """Each forward moves u, then v, by one power iteration; sigma's gradient takes u and v as constants."""
    d = draw(seed)
    d_in, d_out, bias = d.size(1, 12), d.size(1, 12), bool(d.size(0, 1))
    torch.manual_seed(seed)
    layer = SigmaReparam(d_in, d_out, bias=bias, fast_init=bool(d.size(0, 1)))
    d.disturb(layer)
    w = layer.weight.detach().double().requires_grad_()
    gamma = layer.gamma.detach().double().requires_grad_()
    b = layer.bias.detach().double() if bias else 0.0
    u, v = layer.u.double(), layer.v.double()
    for _ in range(3):
        x = d.normal(4, d_in)
        u = (w.detach() * v).sum(1)
        u = u / (u * u).sum() ** 0.5
        v = (w.detach() * u[:, None]).sum(0)
        v = v / (v * v).sum() ** 0.5
        sigma = (u[:, None] * w * v).sum()
        expected = x.double() @ (w * gamma / sigma).T + b
        layer.zero_grad()
        w.grad = gamma.grad = None
        y = layer(x)
        upstream = d.normal(*y.shape)
        (y * upstream).sum().backward()
        (expected * upstream.double()).sum().backward()
        torch.testing.assert_close(y.double(), expected.detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(layer.u.double(), u, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(layer.v.double(), v, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(layer.weight.grad.double(), w.grad, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(layer.gamma.grad.double(), gamma.grad, atol=1e-4, rtol=1e-3)
    layer.eval()
    expected = x.double() @ (w * gamma / sigma).T + b
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-4)
    assert np.isclose(float(u @ layer.u.double()), 1.0, atol=1e-5)  # eval moves nothing
