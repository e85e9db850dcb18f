"""The residual network of IMPALA (Espeholt et al. 2018), with group normalisation.

Shapes: N images, C channels, H height, W width.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import gin
import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor, nn

from amago.nets.activations import Activation
from amago.nets.arguments import Size, check_arguments
from amago.nets.cnn.base import CNN

_GROUPS = 4


class _Residual(nn.Module):
    """norm(x + conv2(act(conv1(act(x)))))."""

    def __init__(self, channels: int, activation: nn.Module, group_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(_GROUPS, channels) if group_norm else nn.Identity()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv2(self.activation(self.conv1(self.activation(x))))
        out: Tensor = self.norm(x + hidden)
        return out


class _Block(nn.Module):
    """A convolution, a max pool that halves the image, and two residual blocks."""

    def __init__(self, d_inp: int, d_out: int, activation: nn.Module, group_norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(d_inp, d_out, kernel_size=3, padding=1)
        self.residual1 = _Residual(d_out, activation, group_norm)
        self.residual2 = _Residual(d_out, activation, group_norm)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(self.conv(x), kernel_size=3, stride=2)
        out: Tensor = self.residual2(self.residual1(pooled))
        return out


@gin.configurable(module="amago.nets.cnn")
class IMPALAishCNN(CNN):
    """Residual blocks, each at half the resolution of the one before: stronger and slower than `NatureishCNN`.

    Args:
        img_shape: (H, W, C), or (C, H, W) if `channels_first`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        activation: see `activation_switch`.
        cnn_block_depths: channels of each block; every block halves the image.
        post_group_norm: group normalisation (4 groups) after each residual block.

    Raises:
        ValueError: if channels cannot be split into groups.
    """

    @check_arguments
    def __init__(
        self,
        img_shape: Sequence[Size],
        channels_first: bool = False,
        activation: Activation = "leaky_relu",
        cnn_block_depths: Annotated[Sequence[Size], MinLen(1)] = [16, 32, 32],
        post_group_norm: bool = True,
    ) -> None:
        super().__init__(img_shape, channels_first=channels_first, activation=activation)
        if post_group_norm and any(depth % _GROUPS for depth in cnn_block_depths):
            raise ValueError(
                f"cnn_block_depths must be multiples of {_GROUPS} with post_group_norm=True, "
                f"got {list(cnn_block_depths)}"
            )
        depths = [self.in_channels, *cnn_block_depths]
        self.blocks = nn.ModuleList(
            _Block(d_inp, d_out, self.activation, post_group_norm) for d_inp, d_out in pairwise(depths)
        )

    def conv_forward(self, imgs: Tensor) -> Tensor:
        """Scaled images (N, C, H, W) to feature maps (N, C', H', W')."""
        for block in self.blocks:
            imgs = block(imgs)
        return imgs
