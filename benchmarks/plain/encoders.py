"""The timestep encoder and three trajectory encoders.

Shapes: B batch, L timesteps, A action width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.plain.layers import MLP, InputNorm, Norm
from benchmarks.plain.sizes import Sizes
from benchmarks.plain.transformer import Transformer


class TstepEncoder(nn.Module):
    """Observations in alphabetical order and the previous reward and action, standardised, through an MLP."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.in_norm = InputNorm(sizes.inputs)
        self.base = MLP(sizes.inputs, sizes.tstep_hidden, sizes.tstep_layers, sizes.tstep_output)
        self.out_norm = Norm(sizes.tstep_output)

    def forward(self, obs: dict[str, Tensor], rl2s: Tensor, mask: Tensor) -> Tensor:
        """Observations (B, L, ...) and rl2s (B, L, 1 + A) to (B, L, D); `mask` (B, L, 1): real steps."""
        x = torch.cat([*(obs[key].flatten(2) for key in sorted(obs)), rl2s], dim=-1)
        out: Tensor = self.out_norm(self.base(self.in_norm(x, mask)))
        return out


class FFBlock(nn.Module):
    """x + leaky_relu(ff2(leaky_relu(ff1(x))))."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.ff1 = nn.Linear(d_model, d_ff)
        self.ff2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape."""
        return x + F.leaky_relu(self.ff2(F.leaky_relu(self.ff1(x))))


class FFTrajEncoder(nn.Module):
    """No memory: residual blocks on each timestep alone."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.traj_emb = nn.Linear(sizes.tstep_output, sizes.traj_width)
        self.traj_blocks = nn.ModuleList(
            FFBlock(sizes.traj_width, sizes.traj_hidden) for _ in range(sizes.traj_layers)
        )
        self.traj_last = nn.Linear(sizes.traj_width, sizes.traj_width)
        self.out_norm = Norm(sizes.traj_width)

    def forward(self, x: Tensor, time_idxs: Tensor) -> Tensor:
        """(B, L, D) to (B, L, traj_width)."""
        x = F.leaky_relu(self.traj_emb(x))
        for block in self.traj_blocks:
            x = block(x)
        out: Tensor = self.out_norm(self.traj_last(x))
        return out


class GRUTrajEncoder(nn.Module):
    """Gated recurrent units, a linear layer and a norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.rnn = nn.GRU(sizes.tstep_output, sizes.traj_hidden, sizes.traj_layers, batch_first=True)
        self.out = nn.Linear(sizes.traj_hidden, sizes.traj_width)
        self.out_norm = Norm(sizes.traj_width)

    def forward(self, x: Tensor, time_idxs: Tensor) -> Tensor:
        """(B, L, D) to (B, L, traj_width)."""
        out: Tensor = self.out_norm(self.out(self.rnn(x)[0]))
        return out


class TformerTrajEncoder(nn.Module):
    """The Transformer over timestep embeddings."""

    def __init__(self, sizes: Sizes, dropout_emb: float, dropout_ff: float) -> None:
        super().__init__()
        self.tformer = Transformer(
            sizes.tstep_output,
            sizes.traj_width,
            sizes.traj_hidden,
            sizes.traj_heads,
            sizes.traj_layers,
            dropout_emb,
            dropout_ff,
        )

    def forward(self, x: Tensor, time_idxs: Tensor) -> Tensor:
        """(B, L, D) at steps `time_idxs` (B, L, 1) to (B, L, traj_width)."""
        out: Tensor = self.tformer(x, time_idxs.squeeze(-1))
        return out


def trajectory_encoder(sizes: Sizes, dropout_emb: float, dropout_ff: float) -> nn.Module:
    """The trajectory encoder that `sizes` names; only the Transformer has dropout."""
    if sizes.traj == "transformer":
        return TformerTrajEncoder(sizes, dropout_emb, dropout_ff)
    return GRUTrajEncoder(sizes) if sizes.traj == "gru" else FFTrajEncoder(sizes)
