"""Trajectory encoders: causal sequence models from timestep vectors to state vectors.

Registered are "identity", "ff" (no memory), "rnn" (GRU), "transformer" and "mamba"; `register_traj_encoder` adds
others. `base` describes the interface and the form of hidden states.
"""

from amago.nets.traj_encoders.base import (
    TrajEncoder,
    get_traj_encoder_cls,
    list_registered_traj_encoders,
    register_traj_encoder,
    reset_rows,
)
from amago.nets.traj_encoders.ff import FFTrajEncoder
from amago.nets.traj_encoders.gru import GRUTrajEncoder
from amago.nets.traj_encoders.identity import IdentityTrajEncoder
from amago.nets.traj_encoders.mamba import MambaHiddenState, MambaTrajEncoder
from amago.nets.traj_encoders.transformer import TformerTrajEncoder

__all__ = [
    "FFTrajEncoder",
    "GRUTrajEncoder",
    "IdentityTrajEncoder",
    "MambaHiddenState",
    "MambaTrajEncoder",
    "TformerTrajEncoder",
    "TrajEncoder",
    "get_traj_encoder_cls",
    "list_registered_traj_encoders",
    "register_traj_encoder",
    "reset_rows",
]
