"""Timestep encoder for mixed observations: images, vectors and token sequences.

Shapes: B batch, L timesteps, A action width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gin
import torch
from torch import Tensor, nn

from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Size, check_arguments
from amago.nets.cnn import CNN
from amago.nets.ff import MLP
from amago.nets.linear import Linear
from amago.nets.normalization import Norm, Normalization
from amago.nets.registry import did_you_mean
from amago.nets.specs import ArraySpec, ObsSpec, as_obs_spec
from amago.nets.tstep_encoders.base import TstepEncoder, register_tstep_encoder, rl2_dim
from amago.nets.tstep_encoders.features import (
    MAX_TOKENS,
    MIN_IMAGE_SIZE,
    MIN_NATUREISH_SIZE,
    PIXEL_RANGE,
    ImageFeatures,
    TokenFeatures,
    VectorFeatures,
    channels_come_first,
    shorter_side,
)
from amago.nets.utils import add_activation_log, symlog

EncoderChoice = str | Callable[[Any], nn.Module]

_KINDS: dict[str, Callable[[Any], nn.Module]] = {
    "image": ImageFeatures,
    "vector": VectorFeatures,
    "tokens": TokenFeatures,
}
_IGNORE = "ignore"


@register_tstep_encoder("multimodal")
@gin.configurable(module="amago.nets.tstep_encoders")
class MultiModalTstepEncoder(TstepEncoder):
    """An encoder per observation, a linear layer on symlog(rl2s), and an MLP on their concatenation.

    The encoder of an observation is chosen by its space, see `kind_of`, unless `encoders` names another:

        encoders={
            "camera": IMPALAishCNN,                             # "image" with this network
            "map": partial(ImageFeatures, channels_first=True), # a built-in encoder with other settings
            "bytes": "vector",                                  # instead of "tokens"
            "debug": "ignore",
            "points": MyPointNet,                               # any callable that returns a module
        }

    Callables receive the observation's entry of `obs_space` and return a module that maps (B, L, *shape) to
    (B, L, features). In gin files, scopes configure one of several encoders of a kind:

        MultiModalTstepEncoder.encoders = {"map": @map/ImageFeatures}
        map/ImageFeatures.channels_first = True
        ImageFeatures.drqv2_aug = True

    Args:
        obs_space: the space of dict observations, or a mapping of key to shape, `ArraySpec` or space.
        rl2_space: the space of `rl2s`, or its shape (1 + A,).
        encoders: encoder by observation key: "image", "vector", "tokens", "ignore", a `CNN`, or a callable.
        rl2_features: width of the features of previous reward and action.
        n_layers: number of hidden layers of the merging MLP.
        d_hidden: width of a hidden layer.
        d_output: width of the output.
        out_norm: normalisation of the output, see `Normalization`.
        activation: see `activation_switch`.
        hide_rl2s: replace previous reward and action by zeros.

    Raises:
        ValueError: if `encoders` holds an unknown key or encoder name, no encoder accepts the shape of an
            observation, or all observations are ignored.
    """

    @check_arguments
    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        encoders: Mapping[str, EncoderChoice] | None = None,
        rl2_features: Size = 32,
        n_layers: Size = 1,
        d_hidden: Size = 256,
        d_output: Size = 256,
        out_norm: Norm | None = "layer",
        activation: Activation = "leaky_relu",
        hide_rl2s: bool = False,
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space, hide_rl2s=hide_rl2s)
        spec = as_obs_spec(obs_space)
        choices = _choices(spec, encoders or {})
        self.obs_shapes = {key: spec[key].shape for key in choices}
        self.obs_encoders = nn.ModuleDict()
        width = rl2_features
        for key, choice in choices.items():
            encoder = _make_encoder(key, choice, _space_of(obs_space, key))
            width += _output_width(encoder, spec[key])
            self.obs_encoders[_module_name(key)] = encoder
        self.rl2_features = Linear(rl2_dim(rl2_space), rl2_features)
        self.merge = MLP(
            d_inp=width, d_hidden=d_hidden, n_layers=n_layers, d_output=d_output, activation=activation
        )
        self.d_output = d_output
        self.out_norm = Normalization(out_norm, d_output)
        self.activation = activation_switch(activation)

    @property
    def emb_dim(self) -> int:
        """Width of the output, `d_output`."""
        return self.d_output

    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """Observations (B, L, ...) and rl2s (B, L, 1 + A) to (B, L, d_output)."""
        rows = rl2s.shape[:-1]
        features = []
        for key, shape in self.obs_shapes.items():
            encoder = self.obs_encoders[_module_name(key)]
            features.append(encoder(obs[key].reshape(*rows, *shape)))  # (B, L, features)
            add_activation_log(key, features[-1], log_dict)
        features.append(self.activation(self.rl2_features(symlog(rl2s))))
        out: Tensor = self.out_norm(self.merge(torch.cat(features, dim=-1)))
        add_activation_log("tstep_encoder", out, log_dict)
        return out


def kind_of(spec: ArraySpec) -> str | None:
    """The kind of encoder for an observation; None if it has two or more than three axes.

    Arrays with three axes are an "image", or a "vector" if a side is shorter than `MIN_IMAGE_SIZE`. Arrays with
    one axis, and scalars, are a "vector"; but "tokens" if they have an integer dtype, at least two elements, and
    bounds between which lie 3 to `MAX_TOKENS` values.
    """
    if len(spec.shape) == 3:
        side = shorter_side(spec.shape, channels_come_first(spec.shape))
        return "image" if side >= MIN_IMAGE_SIZE else "vector"
    if len(spec.shape) > 1:
        return None
    if not spec.is_integer or spec.dim < 2 or spec.low is None or spec.high is None:
        return "vector"
    return "tokens" if 2 < spec.high - spec.low + 1 <= MAX_TOKENS else "vector"


def tstep_encoder_for(obs_space: Any) -> str:
    """The registered name of the encoder that suits an observation space, or a mapping of key to shape.

    "ff" without images (tokens are treated as numbers). "cnn" for a single image with the key "observation", of
    pixels in [0, 255], (H, W, C), large enough for `NatureishCNN`. "multimodal" for all other images, and for
    images among other observations.
    """
    spec = as_obs_spec(obs_space)
    if all(kind_of(array) != "image" for array in spec.values()):
        return "ff"
    return "cnn" if _is_single_pixel_image(spec) else "multimodal"


def _is_single_pixel_image(spec: ObsSpec) -> bool:
    image = spec.get("observation", ArraySpec(()))
    return (
        len(spec) == 1
        and len(image.shape) == 3
        and not channels_come_first(image.shape)
        and min(image.shape[:2]) >= MIN_NATUREISH_SIZE
        and (image.low, image.high) in (PIXEL_RANGE, (None, None))
    )


def _choices(spec: ObsSpec, wanted: Mapping[str, EncoderChoice]) -> dict[str, EncoderChoice]:
    """The chosen encoder of each observation that is not ignored, in alphabetical order of the keys."""
    for key in wanted:
        if key not in spec:
            hint = did_you_mean(key, spec)
            raise ValueError(
                f"encoders holds {key!r}, which is not an observation key. "
                f"Keys are {', '.join(sorted(spec))}.{hint}"
            )
    choices = {
        key: wanted[key] if key in wanted else _choice_by_space(key, spec[key]) for key in sorted(spec)
    }
    used = {key: choice for key, choice in choices.items() if choice != _IGNORE}
    if not used:
        raise ValueError(f"encoders must leave at least one of {', '.join(choices)}; all are ignored")
    return used


def _choice_by_space(key: str, spec: ArraySpec) -> str:
    kind = kind_of(spec)
    if kind is None:
        raise ValueError(
            f"observation {key!r} has shape {spec.shape}, which no default encoder accepts: images have three "
            f"axes, vectors and tokens at most one. Pass encoders={{{key!r}: ...}} with 'vector' to flatten it, "
            "'tokens', 'ignore', or a module of your own"
        )
    return kind


def _make_encoder(key: str, choice: Any, space: Any) -> nn.Module:
    """The encoder of the observation `key`, which errors name."""
    try:
        if isinstance(choice, type) and issubclass(choice, CNN):
            return ImageFeatures(space, cnn_type=choice)
        if not isinstance(choice, str):
            encoder: nn.Module = choice(space)
            return encoder
        if choice not in _KINDS:
            known = [*_KINDS, _IGNORE]
            hint = did_you_mean(choice, known)
            raise ValueError(f"unknown encoder {choice!r}. Choose from {', '.join(known)}.{hint}")
        return _KINDS[choice](space)
    except ValueError as error:
        raise ValueError(f"encoders, observation {key!r}: {error}") from error


def _output_width(encoder: nn.Module, spec: ArraySpec) -> int:
    """The width of the encoder's output, from a forward pass on one blank timestep."""
    nearest_to_zero = min(max(0.0, spec.low or 0.0), 0.0 if spec.high is None else spec.high)
    blank = torch.full((1, 1, *spec.shape), nearest_to_zero, dtype=getattr(torch, spec.dtype))
    with torch.no_grad():
        width: int = encoder.eval()(blank).shape[-1]
    encoder.train()
    return width


def _space_of(obs_space: Any, key: str) -> Any:
    """The entry of `obs_space` for one observation; a space that is not a mapping is the only observation."""
    entries = getattr(obs_space, "spaces", obs_space)
    return entries[key] if isinstance(entries, Mapping) else obs_space


def _module_name(key: str) -> str:
    """The submodule name of an observation's encoder; the suffix keeps it from clashing with a method."""
    return f"{key.replace('.', '/')}_encoder"
