"""Image observations: their spaces, sizes and the order of their axes."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]


def image_space(channels: int, resolution: tuple[int, int], channels_last: bool) -> gym.Space[Any]:
    """The space of uint8 images of `resolution` (H, W): (C, H, W), or (H, W, C)."""
    height, width = resolution
    shape = (height, width, channels) if channels_last else (channels, height, width)
    return gym.spaces.Box(0, 255, shape, np.uint8)


def resize(cv2: Any, image: Frame, resolution: tuple[int, int]) -> Frame:
    """An image (h, w) or (h, w, C) resized by area interpolation of OpenCV: a new array (H, W, C)."""
    resized: Frame = cv2.resize(image, resolution[::-1], interpolation=cv2.INTER_AREA)
    return resized.reshape(*resolution, -1)


def order_axes(frame: Frame, channels_last: bool) -> Frame:
    """A frame (H, W, C) in the order of `image_space`; (C, H, W) is a view of the frame."""
    return frame if channels_last else frame.transpose(2, 0, 1)
