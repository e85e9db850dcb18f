"""Timestep encoders: map the observation, previous reward and previous action of a timestep to a vector.

Registered are "ff" for arrays, "cnn" for a single image, and "multimodal" for a mixture of images, vectors and
token sequences; `register_tstep_encoder` adds others.
"""

from amago.nets.tstep_encoders.base import (
    TstepEncoder,
    get_tstep_encoder_cls,
    list_registered_tstep_encoders,
    register_tstep_encoder,
    rl2_dim,
)
from amago.nets.tstep_encoders.cnn import CNNTstepEncoder
from amago.nets.tstep_encoders.features import ImageFeatures, TokenFeatures, VectorFeatures
from amago.nets.tstep_encoders.ff import FFTstepEncoder
from amago.nets.tstep_encoders.multimodal import MultiModalTstepEncoder, tstep_encoder_for

__all__ = [
    "CNNTstepEncoder",
    "FFTstepEncoder",
    "ImageFeatures",
    "MultiModalTstepEncoder",
    "TokenFeatures",
    "TstepEncoder",
    "VectorFeatures",
    "get_tstep_encoder_cls",
    "list_registered_tstep_encoders",
    "register_tstep_encoder",
    "rl2_dim",
    "tstep_encoder_for",
]
