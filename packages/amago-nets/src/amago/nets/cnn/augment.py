"""Random shifts of images (Yarats et al. 2021, "Mastering Visual Continuous Control: Improved Data-Augmented RL").

Shapes: N images of any leading axes; H height, W width, C channels.
"""

import gin
import torch
from torch import Tensor, nn


@gin.configurable(module="amago.nets.cnn")
class DrQv2Aug(nn.Module):
    """Shifts every image by its own whole number of pixels; the border is repeated where nothing is left.

    Args:
        pad: largest shift in each direction, in pixels.
        channels_first: whether images are (C, H, W) and not (H, W, C).

    Raises:
        ValueError: if `pad` is negative.
    """

    def __init__(self, pad: int, channels_first: bool) -> None:
        super().__init__()
        if pad < 0:
            raise ValueError(f"pad must not be negative, got {pad!r}")
        self.pad = pad
        self.channels_first = channels_first

    def forward(self, x: Tensor) -> Tensor:
        """Images (..., C, H, W) or (..., H, W, C) of any dtype to shifted ones of the same shape and dtype."""
        imgs = x.reshape(-1, *x.shape[-3:])  # (N, ...)
        if self.channels_first:
            imgs = imgs.permute(0, 2, 3, 1)
        num, height, width, _ = imgs.shape
        rows = self._shifted_positions(num, height, x.device)  # (N, H)
        columns = self._shifted_positions(num, width, x.device)  # (N, W)
        which = torch.arange(num, device=x.device)
        shifted = imgs[which[:, None, None], rows[:, :, None], columns[:, None, :]]  # (N, H, W, C)
        if self.channels_first:
            shifted = shifted.permute(0, 3, 1, 2)
        return shifted.reshape(x.shape)

    def _shifted_positions(self, num: int, size: int, device: torch.device) -> Tensor:
        """Where each position of an axis reads from after a random shift, int64 (num, size)."""
        shift = torch.randint(-self.pad, self.pad + 1, (num, 1), device=device)
        return (torch.arange(size, device=device) + shift).clamp(0, size - 1)
