"""Image augmentation by random shifts (Yarats et al. 2021, "Mastering Visual Continuous Control: Improved
Data-Augmented RL").

Shapes: B batch, L timesteps, N images of any leading axes; H height, W width, C channels.
"""

import math
from collections.abc import Sequence

import gin
import torch
from torch import Tensor, nn

from amago.nets.arguments import Count, Probability, Size, check_arguments


@gin.configurable(module="amago.nets.cnn")
class DrQv2Aug(nn.Module):
    """Shifts each image by its own random number of pixels; uncovered pixels repeat the border.

    Args:
        pad: largest shift in each direction, in pixels.
        channels_first: whether images are (C, H, W) and not (H, W, C).

    Raises:
        ValueError: if `pad` is negative.
    """

    @check_arguments
    def __init__(self, pad: Count, channels_first: bool) -> None:
        super().__init__()
        self.pad = pad
        self.channels_first = channels_first

    def forward(self, x: Tensor) -> Tensor:
        """Images (..., C, H, W) or (..., H, W, C) of any dtype, shifted; same shape and dtype."""
        imgs = x.reshape(-1, *x.shape[-3:])  # (N, ...)
        if self.channels_first:
            imgs = imgs.permute(0, 2, 3, 1)
        num, height, width, _ = imgs.shape
        rows = self._shifted_indices(num, height, x.device)  # (N, H)
        columns = self._shifted_indices(num, width, x.device)  # (N, W)
        which = torch.arange(num, device=x.device)
        shifted = imgs[which[:, None, None], rows[:, :, None], columns[:, None, :]]  # (N, H, W, C)
        if self.channels_first:
            shifted = shifted.permute(0, 3, 1, 2)
        return shifted.reshape(x.shape)

    def _shifted_indices(self, num: int, size: int, device: torch.device) -> Tensor:
        """The source index of each pixel along an axis after a random shift, int64 (num, size)."""
        shift = torch.randint(-self.pad, self.pad + 1, (num, 1), device=device)
        return (torch.arange(size, device=device) + shift).clamp(0, size - 1)


_MAX_SHIFT = 4


def num_clean_sequences(batch_size: int, share: float) -> int:
    """The number of sequences that are not augmented if `share` of a batch is: rounded up, but never all."""
    return min(math.ceil(batch_size * (1.0 - share)), batch_size - 1)


class ShiftShareOfBatch(nn.Module):
    """In training, shifts each image of the last sequences of a batch by up to 4 pixels.

    Args:
        img_shape: shape of a square image.
        channels_first: whether images are (C, H, W) and not (H, W, C).
        share: share of the batch's sequences to augment, in [0, 1], see `num_clean_sequences`.

    Raises:
        ValueError: if images are not square or the share is out of range.
    """

    @check_arguments
    def __init__(self, img_shape: Sequence[Size], channels_first: bool, share: Probability) -> None:
        super().__init__()
        height, width = img_shape[1:] if channels_first else img_shape[:2]
        if height != width:
            raise ValueError(
                f"drqv2_aug needs square images, got {height} x {width} (channels_first={channels_first}); "
                "resize them or set drqv2_aug=False"
            )
        self.share = share
        self.shift = DrQv2Aug(_MAX_SHIFT, channels_first=channels_first)

    def forward(self, imgs: Tensor) -> Tensor:
        """Images (B, L, *img_shape) to images of the same shape and dtype."""
        if not self.training or imgs.shape[0] == 0:
            return imgs
        clean = num_clean_sequences(imgs.shape[0], self.share)
        return torch.cat([imgs[:clean], self.shift(imgs[clean:])])
