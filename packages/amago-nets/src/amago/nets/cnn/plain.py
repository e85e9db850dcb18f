"""Stacks of convolutions, for pixels and for gridworlds.

Shapes: N images, C channels, H height, W width.
"""

from collections.abc import Sequence
from typing import Annotated

import gin
from annotated_types import MinLen
from torch import Tensor, nn

from amago.nets.activations import Activation
from amago.nets.arguments import Size, check_arguments
from amago.nets.cnn.base import CNN, weight_init

_LARGEST_GRID = 22  # cells on a side: BabyAI's whole map


class _ConvStack(CNN):
    """Convolutions, each followed by the activation, as `conv1`, `conv2`, ...; only the first may pad."""

    def __init__(
        self,
        img_shape: Sequence[int],
        channels_first: bool,
        activation: Activation,
        channels: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        padding: int = 0,
    ) -> None:
        super().__init__(img_shape, channels_first=channels_first, activation=activation)
        if not len(channels) == len(kernels) == len(strides):
            raise ValueError(
                "channels, kernels and strides must have an entry per layer each, got "
                f"{list(channels)}, {list(kernels)} and {list(strides)}"
            )
        self._require_size(kernels, strides, padding)
        self.num_layers = len(channels)
        d_inp = self.in_channels
        for i, (d_out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True), start=1):
            conv = nn.Conv2d(
                d_inp, d_out, kernel_size=kernel, stride=stride, padding=padding if i == 1 else 0
            )
            self.add_module(f"conv{i}", conv)
            d_inp = d_out

    def _require_size(self, kernels: Sequence[int], strides: Sequence[int], padding: int) -> None:
        """Raises ValueError if the kernels do not fit into the image."""
        smallest = 1
        for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
            smallest = (smallest - 1) * stride + kernel
        smallest -= 2 * padding
        height, width = self.img_shape[1:] if self.channels_first else self.img_shape[:2]
        if min(height, width) < smallest:
            raise ValueError(
                f"{type(self).__name__} with kernels {list(kernels)} and strides {list(strides)} needs images of "
                f"at least {smallest} x {smallest} pixels, got {height} x {width} (channels_first="
                f"{self.channels_first}): set smaller kernels, or cnn_type to SmallImageCNN or GridworldCNN"
            )

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

    @check_arguments
    def __init__(
        self, img_shape: Sequence[Size], channels_first: bool = False, activation: Activation = "leaky_relu"
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

    Raises:
        ValueError: if the image is too small for the kernels.
    """

    @check_arguments
    def __init__(
        self,
        img_shape: Sequence[Size],
        channels_first: bool = False,
        activation: Activation = "leaky_relu",
        channels: Annotated[Sequence[Size], MinLen(1)] = [16, 32, 48],
        kernels: Annotated[Sequence[Size], MinLen(1)] = [2, 2, 2],
        strides: Annotated[Sequence[Size], MinLen(1)] = [1, 1, 1],
    ) -> None:
        super().__init__(img_shape, channels_first, activation, channels, kernels, strides)


@gin.configurable(module="amago.nets.cnn")
class SmallImageCNN(_ConvStack):
    """Kernels between those of `GridworldCNN` and `NatureishCNN`, for images of 12 to 35 pixels.

    The first convolution pads the image with a border of one zero, because the edge cells of a grid matter as much
    as the others.

    Args:
        img_shape: (H, W, C), or (C, H, W) if `channels_first`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        activation: see `activation_switch`.
        channels: output channels of each convolution.
        kernels: kernel sizes.
        strides: strides. None is 1, 2, 1 for images of up to 22 pixels, which may be grids, and 2, 2, 1 for larger
            ones.

    Raises:
        ValueError: if the image is too small for the kernels.
    """

    @check_arguments
    def __init__(
        self,
        img_shape: Sequence[Size],
        channels_first: bool = False,
        activation: Activation = "leaky_relu",
        channels: Annotated[Sequence[Size], MinLen(1)] = [32, 48, 48],
        kernels: Annotated[Sequence[Size], MinLen(1)] = [3, 3, 3],
        strides: Annotated[Sequence[Size], MinLen(1)] | None = None,
    ) -> None:
        if strides is None:
            sides = img_shape[1:] if channels_first else img_shape[:2]
            strides = [1, 2, 1] if min(sides) <= _LARGEST_GRID else [2, 2, 1]
        super().__init__(img_shape, channels_first, activation, channels, kernels, strides, padding=1)


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

    Raises:
        ValueError: if the image is too small for the kernels.
    """

    @check_arguments
    def __init__(
        self,
        img_shape: Sequence[Size],
        channels_first: bool = False,
        activation: Activation = "leaky_relu",
        channels: Annotated[Sequence[Size], MinLen(1)] = [32, 64, 64],
        kernels: Annotated[Sequence[Size], MinLen(1)] = [8, 4, 3],
        strides: Annotated[Sequence[Size], MinLen(1)] = [4, 2, 1],
    ) -> None:
        super().__init__(img_shape, channels_first, activation, channels, kernels, strides)
        self.apply(weight_init)
