"""Feed-forward blocks: `MLP` and `FFBlock`; re-exports `Normalization` and `SimNorm`.

Shapes: all modules act on the last axis of (..., D).
"""

from collections.abc import Callable

from torch import Tensor, nn

from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.dropout import Dropout
from amago.nets.linear import Linear, activated
from amago.nets.normalization import Norm, Normalization, SimNorm

__all__ = ["MLP", "FFBlock", "Normalization", "SimNorm"]

LayerType = Callable[[int, int], nn.Module]


class FFBlock(nn.Module):
    """A residual block: x + activation(norm2(ff2(dropout(activation(norm1(ff1(x))))))).

    Dropout follows both activations.

    Args:
        d_model: width of input and output.
        d_ff: width of the hidden layer.
        dropout: probability of dropping a hidden activation.
        activation: see `activation_switch`.
        norm: see `Normalization`.
        layer_type: constructor of both layers, called with (inputs, outputs).
    """

    @check_arguments
    def __init__(
        self,
        d_model: Size,
        d_ff: Size,
        dropout: Probability = 0.0,
        activation: Activation = "leaky_relu",
        norm: Norm | None = None,
        layer_type: LayerType = Linear,
    ) -> None:
        super().__init__()
        self.ff1 = layer_type(d_model, d_ff)
        self.norm1 = Normalization(norm, d_ff)
        self.ff2 = layer_type(d_ff, d_model)
        self.norm2 = Normalization(norm, d_model)
        self.dropout = Dropout(dropout)
        self.activation = activation_switch(activation)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to the same shape."""
        hidden = self.dropout(activated(self.ff1, self.norm1, self.activation, x))
        out: Tensor = x + self.dropout(activated(self.ff2, self.norm2, self.activation, hidden))
        return out


class MLP(nn.Module):
    """A multi-layer perceptron: `n_layers` times linear, norm, activation and dropout, then a linear output layer.

    Args:
        d_inp: width of the input.
        d_hidden: width of each hidden layer.
        n_layers: number of hidden layers, at least 1.
        d_output: width of the output.
        activation: see `activation_switch`.
        normalization: see `Normalization`.
        dropout_p: probability of dropping a hidden activation.
        layer_type: constructor of each layer, called with (inputs, outputs).

    Raises:
        ValueError: if `n_layers` is below 1.
    """

    @check_arguments
    def __init__(
        self,
        d_inp: Size,
        d_hidden: Size,
        n_layers: Size,
        d_output: Size,
        activation: Activation = "leaky_relu",
        normalization: Norm | None = None,
        dropout_p: Probability = 0.0,
        layer_type: LayerType = Linear,
    ) -> None:
        super().__init__()
        self.in_layer = layer_type(d_inp, d_hidden)
        self.in_norm = Normalization(normalization, d_hidden)
        self.layers = nn.ModuleList(layer_type(d_hidden, d_hidden) for _ in range(n_layers - 1))
        self.norms = nn.ModuleList(Normalization(normalization, d_hidden) for _ in range(n_layers - 1))
        self.out_layer = layer_type(d_hidden, d_output)
        self.dropout = Dropout(dropout_p)
        self.activation = activation_switch(activation)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_inp) to (..., d_output)."""
        x = self.dropout(activated(self.in_layer, self.in_norm, self.activation, x))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.dropout(activated(layer, norm, self.activation, x))
        out: Tensor = self.out_layer(x)
        return out
