"""Recurrent (GRU) trajectory encoder: constant cost per step, unlimited context."""

from typing import Any, ClassVar

import gin
from torch import Tensor, nn

from amago.nets.arguments import Size, check_arguments
from amago.nets.linear import Linear
from amago.nets.normalization import Norm, Normalization
from amago.nets.traj_encoders.base import TrajEncoder, register_traj_encoder
from amago.nets.utils import add_activation_log


@register_traj_encoder("rnn")
@gin.configurable(module="amago.nets.traj_encoders")
class GRUTrajEncoder(TrajEncoder):
    """Stacked gated recurrent units (Cho et al. 2014), a linear layer and a norm.

    The hidden state is a tensor (n_layers, B, d_hidden); None stands for zeros.

    Args:
        tstep_dim: width of the timestep vectors.
        max_seq_len: longest sequence in training; rollouts may be longer.
        d_hidden: width of the recurrent layers.
        n_layers: number of recurrent layers.
        d_output: width of the output.
        norm: normalisation of the output, see `Normalization`.
    """

    hidden_batch_axis: ClassVar[int] = 1

    @check_arguments
    def __init__(
        self,
        tstep_dim: Size,
        max_seq_len: Size,
        d_hidden: Size = 256,
        n_layers: Size = 2,
        d_output: Size = 256,
        norm: Norm | None = "layer",
    ) -> None:
        super().__init__(tstep_dim, max_seq_len)
        self.d_output = d_output
        self.rnn = nn.GRU(tstep_dim, d_hidden, num_layers=n_layers, batch_first=True)
        self.out = Linear(d_hidden, d_output)
        self.out_norm = Normalization(norm, d_output)

    @property
    def emb_dim(self) -> int:
        """Width of the output, `d_output`."""
        return self.d_output

    def forward(
        self,
        seq: Tensor,
        time_idxs: Tensor | None = None,
        hidden_state: Tensor | None = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(B, L, tstep_dim) to (B, L, d_output), and the hidden state after the last timestep."""
        features, new_hidden_state = self.rnn(seq, hidden_state)
        out = self.out_norm(self.out(features))
        add_activation_log("traj_encoder", out, log_dict)
        return out, new_hidden_state
