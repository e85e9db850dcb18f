"""Timestep encoders: the observation, previous reward and previous action of one timestep to a vector.

Everything behind them is the same for all environments. Chosen by name from a registry that user code can
add to: "ff" for arrays, "cnn" for images.
"""

from amago.nets.tstep_encoders.base import (
    TstepEncoder,
    get_tstep_encoder_cls,
    list_registered_tstep_encoders,
    register_tstep_encoder,
    rl2_dim,
)
from amago.nets.tstep_encoders.cnn import CNNTstepEncoder
from amago.nets.tstep_encoders.ff import FFTstepEncoder

__all__ = [
    "CNNTstepEncoder",
    "FFTstepEncoder",
    "TstepEncoder",
    "get_tstep_encoder_cls",
    "list_registered_tstep_encoders",
    "register_tstep_encoder",
    "rl2_dim",
]
