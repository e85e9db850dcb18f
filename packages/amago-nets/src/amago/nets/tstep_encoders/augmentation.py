"""Random shifts for the images of a part of a batch: what every encoder of images does with them in training.

Shapes: B batch, L timesteps; images (H, W, C) or (C, H, W).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from amago.nets.cnn import DrQv2Aug

_LARGEST_SHIFT = 4


def num_clean_sequences(batch_size: int, share: float) -> int:
    """How many sequences stay clean when `share` of a batch is augmented: rounded up, but never all."""
    return min(math.ceil(batch_size * (1.0 - share)), batch_size - 1)


class ShiftShareOfBatch(nn.Module):
    """Shifts each image of the last sequences of a batch by up to 4 pixels, in training; the first stay clean.

    Args:
        img_shape: shape of a square image.
        channels_first: whether images are (C, H, W) and not (H, W, C).
        share: share of a batch's sequences that are augmented, in [0, 1], see `num_clean_sequences`.

    Raises:
        ValueError: if images are not square.
    """

    def __init__(self, img_shape: Sequence[int], channels_first: bool, share: float) -> None:
        super().__init__()
        height, width = img_shape[1:] if channels_first else img_shape[:2]
        if height != width:
            raise ValueError(
                f"drqv2_aug needs square images, got {height} x {width} (channels_first={channels_first}); "
                "resize them or switch it off"
            )
        self.share = share
        self.shift = DrQv2Aug(_LARGEST_SHIFT, channels_first=channels_first)

    def forward(self, imgs: Tensor) -> Tensor:
        """Images (B, L, *img_shape) to images of the same shape and dtype."""
        if not self.training or imgs.shape[0] == 0:
            return imgs
        clean = num_clean_sequences(imgs.shape[0], self.share)
        return torch.cat([imgs[:clean], self.shift(imgs[clean:])])


def check_share(aug_pct_of_batch: float) -> None:
    """Raises ValueError for what is no share of a batch."""
    if not 0.0 <= aug_pct_of_batch <= 1.0:
        raise ValueError(f"aug_pct_of_batch must be a share between 0 and 1, got {aug_pct_of_batch!r}")
