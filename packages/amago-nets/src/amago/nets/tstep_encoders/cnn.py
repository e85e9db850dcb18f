"""Timestep encoder for a single image.

Shapes: B batch, L timesteps, A action width; images (H, W, C) or (C, H, W).
"""

import warnings
from typing import Any

import gin
import torch
from torch import Tensor

from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.cnn import CNN, NatureishCNN
from amago.nets.cnn.augment import ShiftShareOfBatch
from amago.nets.linear import Linear
from amago.nets.normalization import Norm, Normalization
from amago.nets.registry import did_you_mean
from amago.nets.specs import ArraySpec, as_obs_spec
from amago.nets.tstep_encoders.base import TstepEncoder, register_tstep_encoder, rl2_dim
from amago.nets.utils import add_activation_log, symlog


@register_tstep_encoder("cnn")
@gin.configurable(module="amago.nets.tstep_encoders")
class CNNTstepEncoder(TstepEncoder):
    """A convolutional network on the image, a linear layer on symlog(rl2s), and one that merges them.

    Args:
        obs_space: the space of dict observations, or a mapping of key to shape.
        rl2_space: the space of `rl2s`, or its shape (1 + A,).
        cnn_type: convolutional network, see `amago.nets.cnn`.
        channels_first: whether images are (C, H, W) instead of (H, W, C).
        img_features: width of the image's features.
        rl2_features: width of the features of previous reward and action.
        d_output: width of the output.
        out_norm: normalisation of the output, see `Normalization`.
        activation: see `activation_switch`.
        hide_rl2s: replace previous reward and action by zeros.
        drqv2_aug: shift images at random by up to 4 pixels in training (Yarats et al. 2021, "DrQ-v2").
        aug_pct_of_batch: share of the batch's sequences to augment, in [0, 1], rounded down.
        obs_key: key of the image.
        from_float: whether images are already scaled around zero. If False, they are pixels in [0, 255], which are
            scaled to [-1, 1).

    Raises:
        ValueError: if `obs_key` is missing or not an image, a share is out of range, or an image to augment is not
            square.
    """

    @check_arguments
    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        cnn_type: type[CNN] = NatureishCNN,
        channels_first: bool = False,
        img_features: Size = 256,
        rl2_features: Size = 12,
        d_output: Size = 256,
        out_norm: Norm | None = "layer",
        activation: Activation = "leaky_relu",
        hide_rl2s: bool = False,
        drqv2_aug: bool = False,
        aug_pct_of_batch: Probability = 0.75,
        obs_key: str = "observation",
        from_float: bool = False,
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space, hide_rl2s=hide_rl2s)
        img_spec = _image_spec(obs_space, obs_key)
        img_shape = img_spec.shape
        if not from_float:
            _warn_of_small_floats(img_spec, obs_key)
        self.obs_key = obs_key
        self.from_float = from_float
        self.d_output = d_output
        self.augment = ShiftShareOfBatch(img_shape, channels_first, aug_pct_of_batch) if drqv2_aug else None
        self.cnn = cnn_type(img_shape=img_shape, channels_first=channels_first, activation=activation)
        with torch.no_grad():
            d_cnn = self.cnn(self.cnn.blank_img).shape[-1]
        self.img_features = Linear(d_cnn, img_features)
        self.rl2_features = Linear(rl2_dim(rl2_space), rl2_features)
        self.merge = Linear(img_features + rl2_features, d_output)
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
        if self.augment is not None:
            img = self.augment(img)
        img_features = self.activation(self.img_features(self.cnn(img, from_float=self.from_float)))
        rl2_features = self.activation(self.rl2_features(symlog(rl2s)))
        merged = self.merge(torch.cat([img_features, rl2_features], dim=-1))
        out: Tensor = self.out_norm(merged)
        add_activation_log("cnn", img_features, log_dict)
        add_activation_log("tstep_encoder", out, log_dict)
        return out


def _image_spec(obs_space: Any, obs_key: str) -> ArraySpec:
    """The spec of the image at `obs_key`; ValueError if it is missing or not an image."""
    spec = as_obs_spec(obs_space)
    if obs_key not in spec:
        hint = did_you_mean(obs_key, spec)
        raise ValueError(
            f"obs_key={obs_key!r} is not an observation key. Keys are {', '.join(sorted(spec))}.{hint}"
        )
    if len(spec[obs_key].shape) != 3:
        raise ValueError(
            f"observation {obs_key!r} must be an image with three axes, got shape {spec[obs_key].shape}"
        )
    return spec[obs_key]


def _warn_of_small_floats(img: ArraySpec, obs_key: str) -> None:
    """Warns if an image that will be scaled as pixels in [0, 255] cannot exceed 1."""
    if not img.is_integer and img.high is not None and img.high <= 1.0:
        warnings.warn(
            f"observation {obs_key!r} lies in [{img.low}, {img.high}]; scaling it as pixels in [0, 255] makes "
            "images nearly constant. Set CNNTstepEncoder.from_float=True for images that are scaled already",
            stacklevel=3,
        )
