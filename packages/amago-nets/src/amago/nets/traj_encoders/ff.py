"""Feed-forward trajectory encoder: no memory, as a baseline."""

from typing import Any

import gin
from torch import Tensor, nn

from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Count, Probability, Size, check_arguments
from amago.nets.dropout import Dropout
from amago.nets.ff import FFBlock, LayerType
from amago.nets.linear import Linear, activated
from amago.nets.normalization import Norm, Normalization
from amago.nets.traj_encoders.base import TrajEncoder, register_traj_encoder
from amago.nets.utils import add_activation_log


@register_traj_encoder("ff")
@gin.configurable(module="amago.nets.traj_encoders")
class FFTrajEncoder(TrajEncoder):
    """Residual feed-forward blocks on each timestep, like a Transformer without attention.

    Args:
        tstep_dim: width of the timestep vectors.
        max_seq_len: longest sequence in training.
        d_model: width of the residual stream and of the output.
        d_ff: hidden width of a block, None for 4 times `d_model`.
        n_layers: number of blocks.
        dropout: probability of dropping a hidden activation or an output.
        activation: see `activation_switch`.
        norm: normalisation within blocks, see `Normalization`.
        out_norm: normalisation of the output.
        layer_type: constructor of the layers of a block, called with (inputs, outputs).
    """

    @check_arguments
    def __init__(
        self,
        tstep_dim: Size,
        max_seq_len: Size,
        d_model: Size = 256,
        d_ff: Size | None = None,
        n_layers: Count = 1,
        dropout: Probability = 0.0,
        activation: Activation = "leaky_relu",
        norm: Norm | None = None,
        out_norm: Norm | None = "layer",
        layer_type: LayerType = Linear,
    ) -> None:
        super().__init__(tstep_dim, max_seq_len)
        self.d_model = d_model
        self.traj_emb = Linear(tstep_dim, d_model)
        self.traj_blocks = nn.ModuleList(
            FFBlock(
                d_model,
                4 * d_model if d_ff is None else d_ff,
                dropout=dropout,
                activation=activation,
                norm=norm,
                layer_type=layer_type,
            )
            for _ in range(n_layers)
        )
        self.traj_last = Linear(d_model, d_model)
        self.out_norm = Normalization(out_norm, d_model)
        self.dropout = Dropout(dropout)
        self.activation = activation_switch(activation)

    @property
    def emb_dim(self) -> int:
        """Width of the output, `d_model`."""
        return self.d_model

    def forward(
        self,
        seq: Tensor,
        time_idxs: Tensor | None = None,
        hidden_state: Any = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Any]:
        """(B, L, tstep_dim) to (B, L, d_model); the hidden state is returned unchanged."""
        x = activated(self.traj_emb, None, self.activation, seq)
        for block in self.traj_blocks:
            x = block(x)
        out = self.dropout(self.out_norm(self.traj_last(x)))
        add_activation_log("traj_encoder", out, log_dict)
        return out, hidden_state
