"""Layers of the Transformer: `SigmaReparam`, `AttentionLayer` and `TransformerLayer`.

Shapes: B batch, L sequence, H heads, D head dimension.
"""

from __future__ import annotations

import gin
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago import kernels
from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.checkpointing import is_recomputing, run_checkpointed
from amago.nets.dropout import Dropout
from amago.nets.linear import Linear, activated
from amago.nets.normalization import Norm, Normalization
from amago.nets.transformer.attention import SelfAttention
from amago.nets.transformer.positions import RotaryPosEmb


@gin.configurable(module="amago.nets.transformer")
class SigmaReparam(Linear):
    """A linear layer whose weight has a learned spectral norm: W * gamma / sigma(W) (Zhai et al. 2023, eq. 3).

    sigma(W) = u^T W v is tracked by one power iteration per forward pass in training; its gradient flows through W
    only. Prevents entropy collapse of attention.

    Args:
        d_in: input width.
        d_out: output width.
        bias: whether the layer has a bias.
        fast_init: initialise as nn.Linear with random u and v, without a singular value decomposition.
    """

    u: Tensor
    v: Tensor

    @check_arguments
    def __init__(self, d_in: Size, d_out: Size, bias: bool = True, fast_init: bool = False) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.gamma = nn.Parameter(torch.ones(1))
        if fast_init:
            u, v = F.normalize(torch.randn(d_out), dim=0), F.normalize(torch.randn(d_in), dim=0)
        else:
            nn.init.trunc_normal_(self.weight, std=0.02)
            left, _, right = torch.linalg.svd(self.weight.detach(), full_matrices=False)
            u, v = left[:, 0].clone(), right[0].clone()
        self.register_buffer("u", u)
        self.register_buffer("v", v)

    def _power_iteration(self) -> None:
        """One power iteration of u and v towards the leading singular vectors."""
        with torch.no_grad():
            self.u.copy_(F.normalize(self.weight @ self.v, dim=0))
            self.v.copy_(F.normalize(self.weight.T @ self.u, dim=0))

    def effective_weight(self) -> Tensor:
        """W * gamma / sigma(W), (d_out, d_in); in training after a power iteration."""
        if self.training and not is_recomputing():
            self._power_iteration()
        sigma = torch.einsum("i,ij,j->", self.u.clone(), self.weight, self.v.clone())
        return self.weight * (self.gamma / sigma)


@gin.configurable(module="amago.nets.transformer")
class AttentionLayer(nn.Module):
    """Multi-head self-attention with a packed projection of queries, keys and values.

    Args:
        self_attention: the attention over packed (B, L, 3, H, D).
        d_model: width of the residual stream.
        d_qkv: width D of one head.
        n_heads: number of heads H.
        dropout_qkv: dropout of the packed queries, keys and values.
        head_scaling: learn a factor per head (NormFormer, Shleifer et al. 2021, sec. 2.2).
        sigma_reparam: SigmaReparam instead of plain linear projections.
        use_rope: rotary positions on queries and keys.
    """

    @check_arguments
    def __init__(
        self,
        self_attention: SelfAttention,
        d_model: Size,
        d_qkv: Size,
        n_heads: Size,
        dropout_qkv: Probability = 0.0,
        head_scaling: bool = True,
        sigma_reparam: bool = True,
        use_rope: bool = False,
    ) -> None:
        super().__init__()
        linear = SigmaReparam if sigma_reparam else Linear
        self.self_attention = self_attention
        self.qkv_projection = linear(d_model, 3 * d_qkv * n_heads, bias=False)
        self.dropout_qkv = Dropout(dropout_qkv)
        self.out_projection = linear(d_qkv * n_heads, d_model)
        # Without head scaling it is frozen at 1, so that the state dict has the same layout.
        self.head_scaler = nn.Parameter(torch.ones(1, 1, n_heads, 1), requires_grad=head_scaling)
        self.rope = RotaryPosEmb(d_qkv) if use_rope else None
        self.n_heads = n_heads

    def forward(
        self,
        sequence: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        pos_idxs: Tensor | None = None,
    ) -> Tensor:
        """(B, L, d_model) -> (B, L, d_model); with caches L is 1 and they are written in place."""
        qkv = self.dropout_qkv(self._project(sequence))  # (B, L, 3, H, D)
        if self.rope is not None:
            if pos_idxs is None:
                raise ValueError("pos_idxs must be given (B, L) where the layer uses rotary positions")
            qkv = self.rope(qkv, pos_idxs)
        attended = self.self_attention(
            qkv, key_cache=key_cache, val_cache=val_cache, cache_seqlens=cache_seqlens
        )
        out: Tensor = self.out_projection((self.head_scaler * attended).flatten(2))
        return out

    def _project(self, sequence: Tensor) -> Tensor:
        """Queries, keys and values, (B, L, 3, H, D).

        Saved weights have heads as the last axis of the projection; attention needs features there. For a sequence
        it is cheaper to transpose the weight than the output, for a single timestep it is not.
        """
        out: Tensor
        if sequence.shape[1] == 1:
            out = self.qkv_projection(sequence).unflatten(-1, (3, -1, self.n_heads)).transpose(-1, -2)
            return out
        weight = self.qkv_projection.effective_weight().unflatten(0, (3, -1, self.n_heads)).transpose(1, 2)
        out = kernels.linear(sequence, weight.flatten(0, 2)).unflatten(-1, (3, self.n_heads, -1))
        return out


@gin.configurable(module="amago.nets.transformer")
class TransformerLayer(nn.Module):
    """One pre-norm layer: attention, then a two-layer feed-forward network, each added to the residual stream.

    Args:
        attention_layer: the attention of the layer.
        d_model: width of the residual stream.
        d_ff: hidden width of the feed-forward network.
        dropout_ff: dropout after the second feed-forward layer.
        activation: activation of the feed-forward network.
        norm: kind of normalisation (see `amago.nets.ff.Normalization`).
        sigma_reparam: SigmaReparam instead of plain linear layers.
        normformer_norms: normalise also after the attention and inside the feed-forward network.
        activation_checkpointing: compute the activations again in the backward pass instead of keeping them.
    """

    @check_arguments
    def __init__(
        self,
        attention_layer: AttentionLayer,
        d_model: Size,
        d_ff: Size,
        dropout_ff: Probability = 0.1,
        activation: Activation = "leaky_relu",
        norm: Norm | None = "layer",
        sigma_reparam: bool = True,
        normformer_norms: bool = True,
        *,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        linear = SigmaReparam if sigma_reparam else Linear
        self.attention_layer = attention_layer
        self.norm1 = Normalization(norm, d_model)
        self.norm2 = Normalization(norm, d_model) if normformer_norms else nn.Identity()
        self.norm3 = Normalization(norm, d_model)
        self.norm4 = Normalization(norm, d_ff) if normformer_norms else nn.Identity()
        self.ff1 = linear(d_model, d_ff)
        self.ff2 = linear(d_ff, d_model)
        self.dropout_ff = Dropout(dropout_ff)
        self.activation = activation_switch(activation)

    def forward(
        self,
        self_seq: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        pos_idxs: Tensor | None = None,
    ) -> Tensor:
        """(B, L, d_model) -> (B, L, d_model)."""
        if self.activation_checkpointing and key_cache is None:
            return run_checkpointed(self._run, self_seq, None, None, None, pos_idxs)
        return self._run(self_seq, key_cache, val_cache, cache_seqlens, pos_idxs)

    def _run(
        self,
        self_seq: Tensor,
        key_cache: Tensor | None,
        val_cache: Tensor | None,
        cache_seqlens: Tensor | None,
        pos_idxs: Tensor | None,
    ) -> Tensor:
        attended = self.attention_layer(
            self.norm1(self_seq),
            key_cache=key_cache,
            val_cache=val_cache,
            cache_seqlens=cache_seqlens,
            pos_idxs=pos_idxs,
        )
        self_seq = self_seq + self.norm2(attended)
        hidden = self.norm4(activated(self.ff1, None, self.activation, self.norm3(self_seq)))
        out: Tensor = self_seq + self.dropout_ff(self.ff2(hidden))
        return out
