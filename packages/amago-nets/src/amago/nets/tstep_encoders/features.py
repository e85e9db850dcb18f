"""Encoders of a single observation, for `MultiModalTstepEncoder`: images, vectors and token sequences.

Each is constructed from the space of its observation (or its shape, or an `ArraySpec`). All other arguments have
defaults, to be set by gin or `functools.partial`. The width of the output is `emb_dim`.

Shapes: B batch, L timesteps; images (H, W, C) or (C, H, W); K tokens in a sequence.
"""

from typing import Any

import gin
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.cnn import CNN, GridworldCNN, NatureishCNN, SmallImageCNN
from amago.nets.cnn.augment import ShiftShareOfBatch
from amago.nets.ff import MLP
from amago.nets.input_norm import InputNorm
from amago.nets.linear import Linear
from amago.nets.normalization import Norm
from amago.nets.specs import as_array_spec
from amago.nets.utils import symlog

MAX_TOKENS = 2**18
"""Largest vocabulary; integers of a wider range are not tokens."""

MIN_NATUREISH_SIZE = 36
"""Smallest image side, in pixels, for `NatureishCNN`."""
MIN_SMALL_IMAGE_SIZE = 12
"""Smallest image side for `SmallImageCNN`."""
MIN_IMAGE_SIZE = 4
"""Smallest image side for `GridworldCNN`."""
PIXEL_RANGE = (0.0, 255.0)
# Spaces often state the largest float as a bound when there is none.
_MAX_VALUE_RANGE = 1e6


@gin.configurable(module="amago.nets.tstep_encoders")
class ImageFeatures(nn.Module):
    """A convolutional network and a linear layer.

    Values are scaled to [-1, 1] by the space's bounds; without bounds they are pixels in [0, 255].

    Args:
        space: the image's space, its shape or its `ArraySpec`.
        cnn_type: convolutional network, see `amago.nets.cnn`. None selects one by the shorter side, see
            `cnn_for`.
        channels_first: whether the image is (C, H, W) instead of (H, W, C). None infers it from the shape, see
            `channels_come_first`.
        d_output: width of the output.
        activation: see `activation_switch`.
        drqv2_aug: shift images at random by up to 4 pixels in training (Yarats et al. 2021, "DrQ-v2").
        aug_pct_of_batch: share of the batch's sequences to augment, in [0, 1], rounded down.

    Raises:
        ValueError: if the shape does not have three axes, the image is too small for the network, an image to
            augment is not square, or a share is out of range.
    """

    @check_arguments
    def __init__(
        self,
        space: Any,
        cnn_type: type[CNN] | None = None,
        channels_first: bool | None = None,
        d_output: Size = 256,
        activation: Activation = "leaky_relu",
        drqv2_aug: bool = False,
        aug_pct_of_batch: Probability = 0.75,
    ) -> None:
        super().__init__()
        spec = as_array_spec(space)
        if len(spec.shape) != 3:
            raise ValueError(f"an image must have three axes, got shape {spec.shape}")
        if channels_first is None:
            channels_first = channels_come_first(spec.shape)
        if cnn_type is None:
            cnn_type = cnn_for(spec.shape, channels_first)
        self.emb_dim = d_output
        self.value_range = _value_range(spec.low, spec.high)
        self.augment = ShiftShareOfBatch(spec.shape, channels_first, aug_pct_of_batch) if drqv2_aug else None
        self.cnn = cnn_type(img_shape=spec.shape, channels_first=channels_first, activation=activation)
        with torch.no_grad():
            d_cnn = self.cnn(self.cnn.blank_img).shape[-1]
        self.linear = Linear(d_cnn, d_output)
        self.activation = activation_switch(activation)

    def forward(self, imgs: Tensor) -> Tensor:
        """Images (B, L, *shape) to (B, L, emb_dim)."""
        if self.augment is not None:
            imgs = self.augment(imgs)
        if self.value_range is None:
            maps = self.cnn(imgs)
        else:
            low, high = self.value_range
            maps = self.cnn((imgs.float() - low) * (2.0 / (high - low)) - 1.0, from_float=True)
        out: Tensor = self.activation(self.linear(maps))
        return out


@gin.configurable(module="amago.nets.tstep_encoders")
class VectorFeatures(nn.Module):
    """An MLP on an array of any shape, flattened and standardised by running statistics.

    Args:
        space: the array's space, its shape or its `ArraySpec`.
        n_layers: number of hidden layers.
        d_hidden: width of a hidden layer.
        d_output: width of the output.
        norm: normalisation of hidden layers, see `Normalization`.
        activation: see `activation_switch`.
        normalize_inputs: standardise the input; its running statistics are tracked in either case.
        symlog_inputs: apply symlog to the input before it is standardised.
    """

    @check_arguments
    def __init__(
        self,
        space: Any,
        n_layers: Size = 1,
        d_hidden: Size = 128,
        d_output: Size = 64,
        norm: Norm | None = None,
        activation: Activation = "leaky_relu",
        normalize_inputs: bool = True,
        symlog_inputs: bool = False,
    ) -> None:
        super().__init__()
        spec = as_array_spec(space)
        self.num_axes = len(spec.shape)
        self.emb_dim = d_output
        self.symlog_inputs = symlog_inputs
        self.in_norm = InputNorm(spec.dim, skip=not normalize_inputs)
        self.mlp = MLP(
            d_inp=spec.dim,
            d_hidden=d_hidden,
            n_layers=n_layers,
            d_output=d_output,
            activation=activation,
            normalization=norm,
        )
        self.activation = activation_switch(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers (B, L, *shape) of any dtype to (B, L, emb_dim)."""
        x = x.float().reshape(*x.shape[: x.dim() - self.num_axes], -1)
        if self.symlog_inputs:
            x = symlog(x)
        if self.training:
            self.in_norm.update_stats(x)
        out: Tensor = self.activation(self.mlp(self.in_norm(x)))
        return out


@gin.configurable(module="amago.nets.tstep_encoders")
class TokenFeatures(nn.Module):
    """An embedding, a GRU, and attention pooling over its outputs.

    Attention pooling replaces the last output of the GRU, which would forget a short instruction that is followed
    by much padding.

    Token t has row t - low + 1 of the embedding. Row 0 stands for every value outside the space's bounds, such as
    the fill value of padding; it starts at zero.

    Args:
        space: the sequence's space or `ArraySpec`; its bounds are the smallest and the largest token.
        d_emb: width of a token's embedding.
        d_hidden: width of the GRU.
        d_output: width of the output.
        activation: see `activation_switch`.

    Raises:
        ValueError: if the space has no bounds, or more than `MAX_TOKENS` tokens lie between them.
    """

    @check_arguments
    def __init__(
        self,
        space: Any,
        d_emb: Size = 32,
        d_hidden: Size = 64,
        d_output: Size = 64,
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__()
        spec = as_array_spec(space)
        if spec.low is None or spec.high is None:
            raise ValueError(
                "tokens need bounds (the smallest and the largest token): use a bounded space, or "
                f"ArraySpec({spec.shape}, {spec.dtype!r}, low=0, high=...)"
            )
        self.low, self.high = int(spec.low), int(spec.high)
        num_tokens = self.high - self.low + 1
        if num_tokens > MAX_TOKENS:
            raise ValueError(
                f"{num_tokens} tokens from {self.low} to {self.high} are too many to embed (limit {MAX_TOKENS}): "
                "narrow the space's bounds"
            )
        self.num_axes, self.length = len(spec.shape), spec.dim
        self.emb_dim = d_output
        self.embedding = nn.Embedding(1 + num_tokens, d_emb)
        with torch.no_grad():
            self.embedding.weight[0].zero_()
        self.gru = nn.GRU(d_emb, d_hidden, batch_first=True)
        self.score = Linear(d_hidden, 1, bias=False)  # a bias would cancel in the softmax
        self.linear = Linear(d_hidden, d_output)
        self.activation = activation_switch(activation)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, L, K), or any shape after (B, L), to (B, L, emb_dim)."""
        leading = tokens.shape[: tokens.dim() - self.num_axes]
        rows = self.rows_of(tokens).reshape(leading.numel(), self.length)  # (B L, K)
        # Consecutive timesteps often share an instruction: encode it once. Not on a GPU, which would synchronise.
        if rows.device.type == "cpu" and not torch.compiler.is_compiling():
            rows, inverse = _unique_consecutive_rows(rows)
            features = F.embedding(inverse, self._encode(rows))
        else:
            features = self._encode(rows)
        return features.reshape(*leading, self.emb_dim)

    def rows_of(self, tokens: Tensor) -> Tensor:
        """The embedding row of each token, int64; 0 for values out of bounds."""
        if not tokens.is_floating_point():
            tokens = tokens.long()  # small integer types would overflow in comparisons with the bounds
        known = (tokens >= self.low) & (tokens <= self.high)
        return torch.where(known, tokens, self.low - 1).long() - (self.low - 1)

    def _encode(self, rows: Tensor) -> Tensor:
        """Embedding rows (N, K) to (N, emb_dim)."""
        words, _ = self.gru(self.embedding(rows))  # (N, K, d_hidden)
        weights = self.score(words).softmax(dim=1)  # (N, K, 1)
        pooled = (weights * words).sum(dim=1)  # (N, d_hidden)
        out: Tensor = self.activation(self.linear(pooled))
        return out


def channels_come_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is (C, H, W): if two neighbouring axes are equal they are H and W;
    otherwise the channels are the smaller outer axis, and (H, W, C) is assumed in doubt.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    return first < last


def shorter_side(shape: tuple[int, ...], channels_first: bool) -> int:
    """The smaller of height and width of an image."""
    return min(shape[1:] if channels_first else shape[:2])


def cnn_for(shape: tuple[int, ...], channels_first: bool) -> type[CNN]:
    """The network whose kernels fit an image, by its shorter side.

    `NatureishCNN` from 36 pixels on, `SmallImageCNN` from 12 on, else `GridworldCNN`. Square images of
    up to 96 pixels have at most 4,096 features, so that the linear layer after it stays small.
    """
    side = shorter_side(shape, channels_first)
    if side >= MIN_NATUREISH_SIZE:
        return NatureishCNN
    return SmallImageCNN if side >= MIN_SMALL_IMAGE_SIZE else GridworldCNN


def _value_range(low: float | None, high: float | None) -> tuple[float, float] | None:
    """The bounds to scale to [-1, 1]; None to scale values as pixels in [0, 255]."""
    if low is None or high is None or (low, high) == PIXEL_RANGE:
        return None
    return (low, high) if 0.0 < high - low <= _MAX_VALUE_RANGE else None


def _unique_consecutive_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (N, K) without consecutive repeats, (M, K), and the index of each original row among them, (N,)."""
    first = torch.ones(min(len(rows), 1), dtype=torch.bool, device=rows.device)
    new = torch.cat([first, (rows[1:] != rows[:-1]).any(dim=-1)])  # (N,)
    return rows[new], new.cumsum(0) - 1
