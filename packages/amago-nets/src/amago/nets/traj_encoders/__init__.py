"""Trajectory encoders: causal sequence models from timestep vectors to state vectors.

Registered are "identity", "ff" (no memory), "rnn" (GRU), "transformer" and "mamba"; `register_traj_encoder` adds
others. Hidden states of all of them, and of yours, are moved, saved and restored by the
functions of `hidden_state`, and divided among groups of rows by those of `hidden_rows`.
"""

from amago.nets.traj_encoders.base import (
    TrajEncoder,
    get_traj_encoder_cls,
    list_registered_traj_encoders,
    register_traj_encoder,
)
from amago.nets.traj_encoders.ff import FFTrajEncoder
from amago.nets.traj_encoders.gru import GRUTrajEncoder
from amago.nets.traj_encoders.hidden_rows import (
    hidden_row_axes,
    join_hidden_states,
    split_hidden_state,
)
from amago.nets.traj_encoders.hidden_state import (
    hidden_state_dict,
    load_hidden_state,
    map_hidden_state,
    move_hidden_state,
    reset_rows,
)
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
    "hidden_row_axes",
    "hidden_state_dict",
    "join_hidden_states",
    "list_registered_traj_encoders",
    "load_hidden_state",
    "map_hidden_state",
    "move_hidden_state",
    "register_traj_encoder",
    "reset_rows",
    "split_hidden_state",
]
