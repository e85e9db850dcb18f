"""Stacks of convolutions, for pixels and for gridworlds.

Shapes: N images, C channels, H height, W width.
"""

from collections.abc import Sequence

import gin
from torch import Tensor, nn

from amago.nets.cnn.base import CNN, weight_init


class _ConvStack(CNN):
    """Convolutions without padding, each followed by the activation, as `conv1`, `conv2`, ..."""

    def __init__(
        self,
        img_shape: Sequence[int],
        channels_first: bool,
        activation: str,
        channels: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        super().__init__(img_shape, channels_first=channels_first, activation=activation)
        self.num_layers = len(channels)
        d_inp = self.in_channels
        for i, (d_out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True), start=1):
            self.add_module(f"conv{i}", nn.Conv2d(d_inp, d_out, kernel_size=kernel, stride=stride))
            d_inp = d_out

    def conv_forward(self, imgs: Tensor) -> Tensor:
        """Scaled images (N, C, H, W) to feature maps (N, C', H', W')."""
        for i in range(1, self.num_layers + 1):
            imgs = self.activation(self.get_submodule(f"conv{i}")(imgs))
        return imgs


class DrQCNN(_ConvStack):
    """The encoder of DrQ-v2 (Yarats et al. 2021): four 3 x 3 convolutions of 32 channels, the first of stride 2.

    Args:
        img_shape: (H, W, C), or (C, H, W) if `channels_first`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        activation: see `activation_switch`.
    """

    def __init__(
        self, img_shape: Sequence[int], channels_first: bool = False, activation: str = "leaky_relu"
    ) -> None:
        super().__init__(
            img_shape, channels_first, activation, channels=[32] * 4, kernels=[3] * 4, strides=[2, 1, 1, 1]
        )
        self.apply(weight_init)


@gin.configurable(module="amago.nets.cnn")
class GridworldCNN(_ConvStack):
    """Small kernels, for images in which each pixel is a cell of a grid.

    Args:
        img_shape: (H, W, C), or (C, H, W) if `channels_first`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        activation: see `activation_switch`.
        channels: output channels of each convolution.
        kernels: kernel sizes.
        strides: strides.
    """

    def __init__(
        self,
        img_shape: Sequence[int],
        channels_first: bool = False,
        activation: str = "leaky_relu",
        channels: Sequence[int] = [16, 32, 48],
        kernels: Sequence[int] = [2, 2, 2],
        strides: Sequence[int] = [1, 1, 1],
    ) -> None:
        super().__init__(img_shape, channels_first, activation, channels, kernels, strides)


@gin.configurable(module="amago.nets.cnn")
class NatureishCNN(_ConvStack):
    """The network of DQN (Mnih et al. 2015) up to its last linear layer.

    Args:
        img_shape: (H, W, C), or (C, H, W) if `channels_first`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        activation: see `activation_switch`.
        channels: output channels of each convolution.
        kernels: kernel sizes.
        strides: strides.
    """

    def __init__(
        self,
        img_shape: Sequence[int],
        channels_first: bool = False,
        activation: str = "leaky_relu",
        channels: Sequence[int] = [32, 64, 64],
        kernels: Sequence[int] = [8, 4, 3],
        strides: Sequence[int] = [4, 2, 1],
    ) -> None:
        super().__init__(img_shape, channels_first, activation, channels, kernels, strides)
        self.apply(weight_init)
