"""Transformer trajectory encoder.

Shapes: B batch, L sequence, W = max_seq_len.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gin
import torch
from torch import Tensor

from amago.nets import transformer
from amago.nets.activations import Activation
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.normalization import Norm
from amago.nets.traj_encoders.base import TrajEncoder, done_rows, register_traj_encoder
from amago.nets.utils import add_activation_log

if TYPE_CHECKING:
    import numpy as np

# Episodes may be longer than the context. The table is small next to the layers.
_MIN_LEARNED_POSITIONS = 2048


@register_traj_encoder("transformer")
@gin.configurable(module="amago.nets.traj_encoders")
class TformerTrajEncoder(TrajEncoder):
    """A pre-norm, decoder-only Transformer over timestep embeddings.

    A step attends to the last `max_seq_len` timesteps, a whole sequence to all that it has, as far as its
    `attention_type` lets it. So their outputs are equal for sequences of at most `max_seq_len` timesteps.

    Step under `torch.no_grad()`: the hidden state is changed in place, so gradients cannot pass through steps.

    Args:
        tstep_dim: width of a timestep's embedding.
        max_seq_len: W, the context length in timesteps, the current one included.
        d_model: width of the residual stream and the output.
        n_heads: attention heads, each of width d_model / n_heads.
        d_ff: hidden width of the feed-forward networks.
        n_layers: number of layers.
        dropout_ff: dropout after each feed-forward network.
        dropout_emb: dropout of the embedded input plus its position.
        dropout_attn: dropout of the attention weights.
        dropout_qkv: dropout of queries, keys and values.
        activation: activation of the feed-forward networks.
        norm: kind of normalisation (see `amago.nets.ff.Normalization`).
        pos_emb: position embedding: "fixed" sinusoids, "learned" vectors (also "learnable") or "rope" (rotary).
            "learned" has a vector for each time index below `LearnablePosEmb.max_time_idx` if gin sets it, else
            below max(max_seq_len + 1, 2048). A larger time index raises an error.
        causal: mask future timesteps; rollouts are always causal.
        sigma_reparam: SigmaReparam linear layers (Zhai et al. 2023).
        normformer_norms: the additional norms of NormFormer (Shleifer et al. 2021).
        head_scaling: NormFormer's learned factor per head.
        attention_type: class of the self-attention, constructed with `causal` and `dropout`.
        activation_checkpointing: compute the activations of each layer again in the backward pass instead of
            keeping them: less memory for long sequences, the same results, about a third more time.

    Raises:
        ValueError: if d_model is not a multiple of n_heads.
    """

    @check_arguments
    def __init__(
        self,
        tstep_dim: Size,
        max_seq_len: Size,
        d_model: Size = 256,
        n_heads: Size = 8,
        d_ff: Size = 1024,
        n_layers: Size = 3,
        dropout_ff: Probability = 0.05,
        dropout_emb: Probability = 0.05,
        dropout_attn: Probability = 0.00,
        dropout_qkv: Probability = 0.00,
        activation: Activation = "leaky_relu",
        norm: Norm | None = "layer",
        pos_emb: str = "fixed",
        sigma_reparam: bool = True,
        normformer_norms: bool = True,
        head_scaling: bool = True,
        attention_type: type[transformer.SelfAttention] = transformer.FlashAttention,
        causal: bool = True,
        *,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__(tstep_dim, max_seq_len)
        if d_model % n_heads:
            raise ValueError(f"d_model must be a multiple of n_heads ({n_heads}), got {d_model}")
        self.head_dim = d_model // n_heads
        self.n_heads = n_heads
        self.n_layers = n_layers
        self.d_model = d_model

        def make_layer() -> transformer.TransformerLayer:
            return transformer.TransformerLayer(
                attention_layer=transformer.AttentionLayer(
                    self_attention=attention_type(causal=causal, dropout=dropout_attn),
                    d_model=d_model,
                    d_qkv=self.head_dim,
                    n_heads=n_heads,
                    dropout_qkv=dropout_qkv,
                    head_scaling=head_scaling,
                    sigma_reparam=sigma_reparam,
                    use_rope=pos_emb == "rope",
                ),
                d_model=d_model,
                d_ff=d_ff,
                dropout_ff=dropout_ff,
                activation=activation,
                norm=norm,
                sigma_reparam=sigma_reparam,
                normformer_norms=normformer_norms,
                activation_checkpointing=activation_checkpointing,
            )

        self.tformer = transformer.Transformer(
            inp_dim=tstep_dim,
            d_model=d_model,
            layers=[make_layer() for _ in range(n_layers)],
            dropout_emb=dropout_emb,
            norm=norm,
            pos_emb=pos_emb,
            num_learned_positions=max(max_seq_len + 1, _MIN_LEARNED_POSITIONS),
        )

    @property
    def emb_dim(self) -> int:
        """Width of the output."""
        return self.d_model

    def init_hidden_state(
        self, batch_size: int, device: torch.device | str
    ) -> transformer.TformerHiddenState:
        """An empty cache for `batch_size` rows, in the autocast dtype if autocast is enabled."""
        device = torch.device(device)
        dtype = self.tformer.inp.weight.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)

        def make_cache() -> transformer.Cache:
            return transformer.Cache(
                device, dtype, self.n_layers, batch_size, self.max_seq_len, self.n_heads, self.head_dim
            )

        seq_lens = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return transformer.TformerHiddenState(make_cache(), make_cache(), seq_lens)

    def reset_hidden_state(
        self,
        hidden_state: transformer.TformerHiddenState | None,
        dones: Tensor | np.ndarray | Sequence[bool],
    ) -> transformer.TformerHiddenState | None:
        """Empties the caches of the rows with True in `dones` (B,), in place.

        Raises:
            ValueError: if `dones` has another length than the batch.
        """
        if hidden_state is not None:
            lengths = hidden_state.seq_lens
            hidden_state.reset(done_rows(dones, len(lengths), lengths.device))
        return hidden_state

    def forward(
        self,
        seq: Tensor,
        time_idxs: Tensor,
        hidden_state: transformer.TformerHiddenState | None = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, transformer.TformerHiddenState | None]:
        """(B, L, tstep_dim) at steps (B, L, 1) of their episodes -> (B, L, d_model) and the hidden state."""
        out, hidden_state = self.tformer(seq, time_idxs.squeeze(-1), hidden_state)
        add_activation_log("traj_encoder", out, log_dict)
        return out, hidden_state
