"""Which registered timestep encoder suits observations, for programs that are not told."""

from typing import Any

from amago.nets.specs import ArraySpec, ObsSpec, as_obs_spec
from amago.nets.tstep_encoders.features import PIXEL_RANGE, SMALLEST_FOR_NATUREISH, channels_come_first
from amago.nets.tstep_encoders.multimodal import kind_of


def tstep_encoder_for(obs_space: Any) -> str:
    """The name of the encoder whose defaults suit the space of observations, or a mapping of key to shape.

    "ff" where there is no image (tokens, too, are numbers to it). "cnn" for a single image called "observation" of
    pixels in [0, 255], (H, W, C), large enough for `NatureishCNN`. "multimodal" for every other image, and for
    images next to something else.
    """
    spec = as_obs_spec(obs_space)
    if all(kind_of(array) != "image" for array in spec.values()):
        return "ff"
    return "cnn" if _is_one_image_of_pixels(spec) else "multimodal"


def _is_one_image_of_pixels(spec: ObsSpec) -> bool:
    image = spec.get("observation", ArraySpec(()))
    return (
        len(spec) == 1
        and len(image.shape) == 3
        and not channels_come_first(image.shape)
        and min(image.shape[:2]) >= SMALLEST_FOR_NATUREISH
        and (image.low, image.high) in (PIXEL_RANGE, (None, None))
    )
