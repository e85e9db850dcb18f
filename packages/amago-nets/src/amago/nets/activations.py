"""Activation functions by name, a learnable one, and softmax."""

from typing import Literal

import gin
import torch
from torch import Tensor, nn

from amago.nets.arguments import check_arguments
from amago.nets.registry import did_you_mean

Activation = Literal["leaky_relu", "relu", "gelu", "mish", "adaptive"]

# Coefficients of a rational function of degrees 5 and 4 that approximates a leaky ReLU, from Molina et al. 2020,
# "Padé Activation Units".
_NUMERATOR = (
    0.029792778657264946,
    0.6183735264987601,
    2.323309062531321,
    3.051936237265109,
    1.4854203263828845,
    0.2510244961111299,
)
_DENOMINATOR = (-1.1419548357285474, 4.393159974992486, 0.8714712309957245, 0.34719662339598834)
# Below this length of the last axis torch's softmax does not use vector instructions on a CPU.
_FEW_ENTRIES = 16


@gin.configurable(module="amago.nets.utils")
class SlowAdaptiveRational(nn.Module):
    """A learnable activation: P(x) / (1 + Σ |q_i x^i|), initialised close to a leaky ReLU.

    Delfosse et al. 2021, "Adaptive Rational Activations to Boost Deep Reinforcement Learning". Slower than
    the fixed activations.

    Args:
        trainable: whether the ten coefficients are learned.
    """

    @check_arguments
    def __init__(self, trainable: bool = True) -> None:
        super().__init__()
        self.numerator = nn.Parameter(torch.tensor(_NUMERATOR), requires_grad=trainable)
        self.denominator = nn.Parameter(torch.tensor(_DENOMINATOR), requires_grad=trainable)

    def forward(self, x: Tensor) -> Tensor:
        """The activation of each element of `x`, any shape."""
        top = torch.zeros_like(x)
        for coefficient in self.numerator.flip(0):
            top = top * x + coefficient
        bottom = torch.ones_like(x)
        power = torch.ones_like(x)
        for coefficient in self.denominator:
            power = power * x
            bottom = bottom + (coefficient * power).abs()
        return top / bottom


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "mish": nn.Mish,
    "adaptive": SlowAdaptiveRational,
}


def activation_switch(activation: str) -> nn.Module:
    """A new activation module: "leaky_relu", "relu", "gelu", "mish" or "adaptive" (learnable).

    Raises:
        ValueError: for another name; suggests the nearest.
    """
    if activation not in _ACTIVATIONS:
        hint = did_you_mean(activation, _ACTIVATIONS)
        raise ValueError(f"unknown activation {activation!r}. Choose from {', '.join(_ACTIVATIONS)}.{hint}")
    return _ACTIVATIONS[activation]()


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis.

    On a CPU, torch takes a seventh of the time for rows of a few entries if they lie along the first axis.
    """
    if x.device.type != "cpu" or x.shape[-1] >= _FEW_ENTRIES:
        return torch.softmax(x, dim=-1)
    return torch.softmax(x.movedim(-1, 0).contiguous(), dim=0).movedim(0, -1).contiguous()
