"""The linear layer of our networks: `torch.nn.Linear`, computed through `amago.kernels`."""

from __future__ import annotations

from torch import Tensor, nn

from amago import kernels
from amago.nets.normalization import Normalization


class Linear(nn.Linear):
    """x W^T + b, with the parameters and initialisation of `nn.Linear`.

    Subclasses that compute with another weight than the parameter override `effective_weight`.
    """

    def effective_weight(self) -> Tensor:
        """The weight (out_features, in_features) that `forward` uses."""
        return self.weight

    def forward(self, x: Tensor, leaky: float | None = None) -> Tensor:
        """(..., in_features) -> (..., out_features), followed by a leaky ReLU of slope `leaky` if given."""
        return kernels.linear(x, self.effective_weight(), self.bias, leaky=leaky)


def leaky_slope(activation: nn.Module) -> float | None:
    """The slope of a leaky ReLU, which `Linear` can fuse; None for other activations."""
    return float(activation.negative_slope) if type(activation) is nn.LeakyReLU else None


def activated(layer: nn.Module, norm: nn.Module | None, activation: nn.Module, x: Tensor) -> Tensor:
    """activation(norm(layer(x))), fused into one operation if there is no norm."""
    no_norm = norm is None or (isinstance(norm, Normalization) and isinstance(norm.norm, nn.Identity))
    slope = leaky_slope(activation)
    if no_norm and slope is not None and isinstance(layer, Linear):
        out: Tensor = layer(x, leaky=slope)
    else:
        x = layer(x)
        out = activation(x if norm is None else norm(x))
    return out
