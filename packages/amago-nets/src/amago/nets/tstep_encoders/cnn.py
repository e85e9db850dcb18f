"""The timestep encoder for observations that are one image.

Shapes: B batch, L timesteps, A action width; images (H, W, C) or (C, H, W).
"""

import math
from typing import Any

import gin
import torch
from torch import Tensor, nn

from amago.nets.activations import activation_switch
from amago.nets.cnn import CNN, DrQv2Aug, NatureishCNN
from amago.nets.ff import Normalization
from amago.nets.registry import did_you_mean
from amago.nets.specs import as_obs_spec
from amago.nets.tstep_encoders.base import TstepEncoder, register_tstep_encoder, rl2_dim
from amago.nets.utils import add_activation_log, symlog

_AUG_PAD = 4


@register_tstep_encoder("cnn")
@gin.configurable(module="amago.nets.tstep_encoders")
class CNNTstepEncoder(TstepEncoder):
    """A convolutional network on the image, a linear layer on symlog(rl2s), and one that merges them.

    Args:
        obs_space: the space of dict observations, or a mapping of key to shape.
        rl2_space: the space of `rl2s`, or its shape (1 + A,).
        cnn_type: the convolutional network, see `amago.nets.cnn`.
        channels_first: whether images are (C, H, W) and not (H, W, C).
        img_features: width of the image's features.
        rl2_features: width of the features of previous reward and action.
        d_output: width of the output.
        out_norm: normalisation of the output, see `Normalization`.
        activation: see `activation_switch`.
        hide_rl2s: replace previous reward and action by zeros.
        drqv2_aug: shift images at random by up to 4 pixels in training (Yarats et al. 2021, "DrQ-v2").
        aug_pct_of_batch: share of a batch's sequences that are augmented, in [0, 1], see `num_clean_sequences`.
        obs_key: key of the image.

    Raises:
        ValueError: if there is no such key, it is no image, or a share is out of range; also for augmentation
            of an image that is not square.
    """

    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        cnn_type: type[CNN] = NatureishCNN,
        channels_first: bool = False,
        img_features: int = 256,
        rl2_features: int = 12,
        d_output: int = 256,
        out_norm: str | None = "layer",
        activation: str = "leaky_relu",
        hide_rl2s: bool = False,
        drqv2_aug: bool = False,
        aug_pct_of_batch: float = 0.75,
        obs_key: str = "observation",
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space, hide_rl2s=hide_rl2s)
        if not 0.0 <= aug_pct_of_batch <= 1.0:
            raise ValueError(f"aug_pct_of_batch must be a share between 0 and 1, got {aug_pct_of_batch!r}")
        img_shape = _image_shape(obs_space, obs_key)
        self.obs_key = obs_key
        self.d_output = d_output
        self.aug_pct_of_batch = aug_pct_of_batch
        self.augment = _augmentation(img_shape, channels_first) if drqv2_aug else None
        self.cnn = cnn_type(img_shape=img_shape, channels_first=channels_first, activation=activation)
        with torch.no_grad():
            d_cnn = self.cnn(self.cnn.blank_img).shape[-1]
        self.img_features = nn.Linear(d_cnn, img_features)
        self.rl2_features = nn.Linear(rl2_dim(rl2_space), rl2_features)
        self.merge = nn.Linear(img_features + rl2_features, d_output)
        self.out_norm = Normalization(out_norm, d_output)
        self.activation = activation_switch(activation)

    @property
    def emb_dim(self) -> int:
        """Width of the output, `d_output`."""
        return self.d_output

    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """Images (B, L, *img_shape) and rl2s (B, L, 1 + A) to (B, L, d_output)."""
        img = obs[self.obs_key]
        if self.augment is not None and self.training:
            clean = num_clean_sequences(img.shape[0], self.aug_pct_of_batch)
            img = torch.cat([img[:clean], self.augment(img[clean:])])
        img_features = self.activation(self.img_features(self.cnn(img)))
        rl2_features = self.activation(self.rl2_features(symlog(rl2s)))
        merged = self.merge(torch.cat([img_features, rl2_features], dim=-1))
        out: Tensor = self.out_norm(merged)
        add_activation_log("cnn", img_features, log_dict)
        add_activation_log("tstep_encoder", out, log_dict)
        return out


def num_clean_sequences(batch_size: int, share: float) -> int:
    """How many sequences stay clean when `share` of a batch is augmented: rounded up, but never all."""
    return min(math.ceil(batch_size * (1.0 - share)), batch_size - 1)


def _image_shape(obs_space: Any, obs_key: str) -> tuple[int, int, int]:
    """The shape of the image at `obs_key`; ValueError that says what there is instead."""
    spec = as_obs_spec(obs_space)
    if obs_key not in spec:
        hint = did_you_mean(obs_key, spec)
        raise ValueError(f"obs_key={obs_key!r} is no observation: {hint}there are {', '.join(sorted(spec))}")
    shape = spec[obs_key].shape
    if len(shape) != 3:
        raise ValueError(f"observation {obs_key!r} must be an image with three axes, got shape {shape}")
    return shape[0], shape[1], shape[2]


def _augmentation(img_shape: tuple[int, int, int], channels_first: bool) -> DrQv2Aug:
    """Random shifts for square images; ValueError for others."""
    height, width = img_shape[1:] if channels_first else img_shape[:2]
    if height != width:
        raise ValueError(
            f"drqv2_aug needs square images, got {height} x {width} (channels_first={channels_first}); "
            "resize them or switch it off"
        )
    return DrQv2Aug(_AUG_PAD, channels_first=channels_first)
