"""Base class of convolutional networks: image layout, scaling and initialisation.

Shapes: N images, H height, W width, C channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Size, check_arguments


def weight_init(m: nn.Module) -> None:
    """Delta-orthogonal initialisation (Xiao et al. 2018), for `module.apply(weight_init)`.

    A convolution is zero except for its centre tap, which is orthogonal with the gain of a leaky ReLU;
    biases are zero. Other modules are unchanged.
    """
    if not isinstance(m, nn.Conv2d):
        return
    with torch.no_grad():
        m.weight.zero_()
        centre = m.weight[:, :, m.kernel_size[0] // 2, m.kernel_size[1] // 2]
        centre.copy_(nn.init.orthogonal_(torch.empty_like(centre), nn.init.calculate_gain("leaky_relu")))
        if m.bias is not None:
            m.bias.zero_()


class CNN(nn.Module, ABC):
    """Maps images to feature vectors. Subclasses build their layers and override `conv_forward`.

    Args:
        img_shape: (H, W, C), or (C, H, W) if `channels_first`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        activation: see `activation_switch`.

    Raises:
        ValueError: if `img_shape` does not have three axes.
    """

    @check_arguments
    def __init__(
        self, img_shape: Sequence[Size], channels_first: bool = False, activation: Activation = "leaky_relu"
    ) -> None:
        super().__init__()
        if len(img_shape) != 3:
            raise ValueError(f"img_shape must be (H, W, C) or (C, H, W), got {tuple(img_shape)}")
        self.img_shape = tuple(int(size) for size in img_shape)
        self.channels_first = channels_first
        self.activation = activation_switch(activation)

    @property
    def in_channels(self) -> int:
        """Number C of image channels."""
        return self.img_shape[0 if self.channels_first else -1]

    @property
    def blank_img(self) -> Tensor:
        """A black image (1, 1, *img_shape), for determining the width of the output."""
        device = next((p.device for p in self.parameters()), None)
        return torch.zeros((1, 1, *self.img_shape), device=device)

    @abstractmethod
    def conv_forward(self, imgs: Tensor) -> Tensor:
        """Scaled images (N, C, H, W) to feature maps (N, C', H', W')."""

    def forward(self, obs: Tensor, from_float: bool = False, flatten: bool = True) -> Tensor:
        """Images (B, L, *img_shape), or with any other leading axes, to features (B, L, F).

        Args:
            obs: pixels in [0, 255], scaled to [-1, 1) here.
            from_float: whether `obs` is scaled already.
            flatten: whether to flatten feature maps; else the result is (B, L, C', H', W').

        Raises:
            ValueError: if the images are not of shape `img_shape`.
        """
        if tuple(obs.shape[-3:]) != self.img_shape:
            raise ValueError(f"images must end in shape {self.img_shape}, got {tuple(obs.shape)}")
        leading = obs.shape[:-3]
        imgs = obs.reshape(-1, *self.img_shape)
        if not self.channels_first:
            imgs = imgs.permute(0, 3, 1, 2)
        weight = next(self.parameters(), None)
        imgs = imgs.to(torch.float32 if weight is None else weight.dtype)
        if not from_float:
            imgs = imgs / 128.0 - 1.0
        maps = self.conv_forward(imgs.contiguous())  # (N, C', H', W')
        return maps.reshape(*leading, -1) if flatten else maps.reshape(*leading, *maps.shape[1:])
