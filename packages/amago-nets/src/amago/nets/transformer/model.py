"""`Transformer`: input embedding, positions, layers and final norm, for sequences and rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import gin
import torch
from torch import Tensor, nn

from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.dropout import Dropout
from amago.nets.linear import Linear
from amago.nets.normalization import Norm, Normalization
from amago.nets.transformer.cache import TformerHiddenState
from amago.nets.transformer.layers import TransformerLayer
from amago.nets.transformer.positions import FixedPosEmb, LearnablePosEmb


def _position_embedding(pos_emb: str, d_model: int, num_learned: int | None) -> nn.Module | None:
    """The embedding to add to the input; None for rotary positions, which the attention layers apply."""
    if pos_emb == "fixed":
        return FixedPosEmb(d_model)
    if pos_emb in ("learned", "learnable"):
        if num_learned is None or "max_time_idx" in gin.get_bindings(LearnablePosEmb):
            return LearnablePosEmb(d_model)
        return LearnablePosEmb(d_model, max_time_idx=num_learned)
    if pos_emb == "rope":
        return None
    raise ValueError(f"pos_emb must be 'fixed', 'learned' (or 'learnable') or 'rope', got {pos_emb!r}")


@gin.configurable(module="amago.nets.transformer", denylist=["num_learned_positions"])
class Transformer(nn.Module):
    """A pre-norm decoder-only Transformer.

    Args:
        inp_dim: width of the input.
        d_model: width of the residual stream and the output.
        layers: the layers, in order.
        dropout_emb: dropout of the embedded input plus its position.
        norm: kind of the final normalisation.
        pos_emb: "fixed" sinusoids, "learned" vectors (also "learnable") or "rope" (rotary).
        num_learned_positions: number of learned vectors, unless gin binds `LearnablePosEmb.max_time_idx`; None
            requires that binding.
    """

    @check_arguments
    def __init__(
        self,
        inp_dim: Size,
        d_model: Size,
        layers: Sequence[TransformerLayer],
        dropout_emb: Probability = 0.05,
        norm: Norm | None = "layer",
        pos_emb: str = "fixed",
        num_learned_positions: Size | None = None,
    ) -> None:
        super().__init__()
        self.position_embedding = _position_embedding(pos_emb, d_model, num_learned_positions)
        self.inp = Linear(inp_dim, d_model)
        self.dropout = Dropout(dropout_emb)
        self.layers = nn.ModuleList(layers)
        self.norm = Normalization(norm, d_model)
        self.d_model = d_model

    @property
    def emb_dim(self) -> int:
        """Width of the output."""
        return self.d_model

    def forward(
        self, seq: Tensor, pos_idxs: Tensor, hidden_state: TformerHiddenState | None = None
    ) -> tuple[Tensor, TformerHiddenState | None]:
        """Maps (B, L, inp_dim) at positions (B, L) to (B, L, d_model).

        With a hidden state, timesteps are processed one by one and appended to it.
        """
        if hidden_state is None:
            return self._run(seq, pos_idxs, None), None
        outs = []
        for step in range(seq.shape[1]):
            outs.append(self._run(seq[:, step : step + 1], pos_idxs[:, step : step + 1], hidden_state))
            hidden_state.update()
        return (outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)), hidden_state

    def _run(self, seq: Tensor, pos_idxs: Tensor, hidden_state: TformerHiddenState | None) -> Tensor:
        """Runs all layers on a sequence, or on one timestep with caches."""
        x = self.inp(seq)
        if self.position_embedding is not None:
            x = x + self.position_embedding(pos_idxs)
        x = self.dropout(x)
        for i, layer in enumerate(self.layers):
            keys, values, lengths = (None, None, None) if hidden_state is None else hidden_state[i]
            x = layer(x, key_cache=keys, val_cache=values, cache_seqlens=lengths, pos_idxs=pos_idxs)
        out: Tensor = self.norm(x)
        return out
