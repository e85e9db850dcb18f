"""Default choice of a timestep encoder from the observation space."""

from typing import Any

from amago.nets.specs import ArraySpec, ObsSpec, as_obs_spec
from amago.nets.tstep_encoders.features import MIN_NATUREISH_SIZE, PIXEL_RANGE, channels_come_first
from amago.nets.tstep_encoders.multimodal import kind_of


def tstep_encoder_for(obs_space: Any) -> str:
    """The registered name of the encoder that suits an observation space, or a mapping of key to shape.

    "ff" without images (tokens are treated as numbers). "cnn" for a single image with the key "observation", of
    pixels in [0, 255], (H, W, C), large enough for `NatureishCNN`. "multimodal" for all other images, and for
    images among other observations.
    """
    spec = as_obs_spec(obs_space)
    if all(kind_of(array) != "image" for array in spec.values()):
        return "ff"
    return "cnn" if _is_single_pixel_image(spec) else "multimodal"


def _is_single_pixel_image(spec: ObsSpec) -> bool:
    image = spec.get("observation", ArraySpec(()))
    return (
        len(spec) == 1
        and len(image.shape) == 3
        and not channels_come_first(image.shape)
        and min(image.shape[:2]) >= MIN_NATUREISH_SIZE
        and (image.low, image.high) in (PIXEL_RANGE, (None, None))
    )
