"""The Transformer, with an explicit attention matrix.

Shapes: B batch, L sequence, H heads, D head width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.plain.layers import Norm


class SigmaReparam(nn.Linear):
    """A linear layer with a learned spectral norm (Zhai et al. 2023, eq. 3)."""

    u: Tensor
    v: Tensor

    def __init__(self, d_in: int, d_out: int, bias: bool = True) -> None:
        super().__init__(d_in, d_out, bias=bias)
        nn.init.trunc_normal_(self.weight, std=0.02)
        self.gamma = nn.Parameter(torch.ones(1))
        left, _, right = torch.linalg.svd(self.weight.detach(), full_matrices=False)
        self.register_buffer("u", left[:, 0].clone())
        self.register_buffer("v", right[0].clone())

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out)."""
        with torch.autocast(x.device.type, enabled=False):  # a norm needs its digits
            if self.training:
                with torch.no_grad():
                    self.u.copy_(F.normalize(self.weight @ self.v, dim=0))
                    self.v.copy_(F.normalize(self.weight.T @ self.u, dim=0))
            sigma = self.u.clone() @ (self.weight @ self.v.clone())
            weight = self.weight * (self.gamma / sigma)
        return F.linear(x, weight, self.bias)


class SelfAttention(nn.Module):
    """Masked multi-head attention with learned factors per head."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv_projection = SigmaReparam(d_model, 3 * d_model, bias=False)
        self.out_projection = SigmaReparam(d_model, d_model)
        self.head_scaler = nn.Parameter(torch.ones(1, 1, n_heads, 1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, d_model) to the same shape; `mask` (B, 1, L, L) is true where a position sees another."""
        qkv = self.qkv_projection(x).unflatten(-1, (3, -1, self.n_heads))  # (B, L, 3, D, H)
        q, k, v = qkv.permute(2, 0, 4, 1, 3)  # each (B, H, L, D)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, L, L)
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        attended = (weights.to(v.dtype) @ v).transpose(1, 2)  # (B, L, H, D)
        out: Tensor = self.out_projection((self.head_scaler * attended).flatten(2))
        return out


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward network with the additional norms of NormFormer."""

    def __init__(self, d_model: int, d_ff: int, n_heads: int, dropout_ff: float) -> None:
        super().__init__()
        self.attention_layer = SelfAttention(d_model, n_heads)
        self.norm1, self.norm2, self.norm3 = Norm(d_model), Norm(d_model), Norm(d_model)
        self.norm4 = Norm(d_ff)
        self.ff1 = SigmaReparam(d_model, d_ff)
        self.ff2 = SigmaReparam(d_ff, d_model)
        self.dropout = nn.Dropout(dropout_ff)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, d_model) to the same shape."""
        x = x + self.norm2(self.attention_layer(self.norm1(x), mask))
        hidden = self.norm4(F.leaky_relu(self.ff1(self.norm3(x))))
        out: Tensor = x + self.dropout(self.ff2(hidden))
        return out


class Transformer(nn.Module):
    """Embedding, sinusoidal positions (Vaswani et al. 2017, sec. 3.5), layers, final norm."""

    def __init__(
        self,
        d_in: int,
        d_model: int,
        d_ff: int,
        n_heads: int,
        n_layers: int,
        dropout_emb: float,
        dropout_ff: float,
    ) -> None:
        super().__init__()
        self.inp = nn.Linear(d_in, d_model)
        self.dropout = nn.Dropout(dropout_emb)
        self.layers = nn.ModuleList(
            TransformerLayer(d_model, d_ff, n_heads, dropout_ff) for _ in range(n_layers)
        )
        self.norm = Norm(d_model)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, L, d_in) at `positions` (B, L) to (B, L, d_model)."""
        batch, length = positions.shape
        x = self.inp(x)
        x = self.dropout(x + _sinusoids(positions, x.shape[-1]))
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        mask = mask.view(1, 1, length, length).repeat(batch, 1, 1, 1)  # (B, 1, L, L)
        for layer in self.layers:
            x = layer(x, mask)
        out: Tensor = self.norm(x)
        return out


def _sinusoids(positions: Tensor, width: int) -> Tensor:
    """(B, L) integers to (B, L, width): sine and cosine in turn."""
    even = torch.arange(0, width, 2, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(even * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
