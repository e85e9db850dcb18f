"""Identity trajectory encoder: the state is the timestep vector."""

from typing import Any

import gin
from torch import Tensor

from amago.nets.traj_encoders.base import TrajEncoder, register_traj_encoder


@register_traj_encoder("identity")
@gin.configurable(module="amago.nets.traj_encoders")
class IdentityTrajEncoder(TrajEncoder):
    """Returns timestep vectors unchanged; no parameters, no memory.

    Args:
        tstep_dim: width of the timestep vectors.
        max_seq_len: longest sequence in training.
    """

    @property
    def emb_dim(self) -> int:
        """Width of the input."""
        return self.tstep_dim

    def forward(
        self,
        seq: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Any]:
        """Returns `seq` and `hidden_state` unchanged."""
        return seq, hidden_state
