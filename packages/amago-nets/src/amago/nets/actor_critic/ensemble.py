"""An ensemble of small networks evaluated as batched matrix products.

Shapes: C networks, other leading axes are free.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from amago.nets.activations import activation_switch


class EnsembleLinear(nn.Module):
    """C linear layers side by side: (..., C, d_in) -> (..., C, d_out).

    Args:
        n: number of layers C.
        d_in: input width.
        d_out: output width.
    """

    def __init__(self, n: int, d_in: int, d_out: int) -> None:
        super().__init__()
        weight_bound, bias_bound = math.sqrt(3.0 / d_in), math.sqrt(1.0 / d_in)
        self.weight = nn.Parameter(torch.empty(n, d_in, d_out).uniform_(-weight_bound, weight_bound))
        self.bias = nn.Parameter(torch.empty(1, 1, n, d_out).uniform_(-bias_bound, bias_bound))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C, d_in) -> (..., C, d_out)."""
        lead = x.shape[:-2]
        flat = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)  # (C, rows, d_in)
        out = torch.baddbmm(self.bias.view(-1, 1, self.bias.shape[-1]), flat, self.weight)
        return out.transpose(0, 1).reshape(*lead, *out.shape[::2])

    def shared_input(self, x: Tensor) -> Tensor:
        """The same input for every network: (..., d_in) -> (..., C, d_out), bias included."""
        return self.share(x, 0, x.shape[-1]) + self.bias.view(self.bias.shape[-2:])

    def share(self, x: Tensor, start: int, stop: int) -> Tensor:
        """What the input features start..stop add to the output, for an input that all networks share.

        (..., stop - start) -> (..., C, d_out), without bias.
        """
        weight = self.weight[:, start:stop]  # (C, d, d_out)
        together = weight.transpose(0, 1).flatten(1)  # (d, C * d_out)
        return (x @ together).view(*x.shape[:-1], weight.shape[0], weight.shape[2])


class EnsembleMLP(nn.Module):
    """C multi-layer perceptrons of the same input.

    Args:
        n: number of networks C.
        d_in: input width.
        d_hidden: hidden width.
        n_layers: number of hidden layers, at least 1.
        d_out: output width.
        dropout_p: dropout after each hidden activation.
        activation: of the hidden layers.
    """

    def __init__(
        self,
        n: int,
        d_in: int,
        d_hidden: int,
        n_layers: int,
        d_out: int,
        dropout_p: float = 0.0,
        activation: str = "leaky_relu",
    ) -> None:
        super().__init__()
        if n_layers < 1:
            raise ValueError(f"n_layers must be at least 1, got {n_layers}")
        self.inp_layer = EnsembleLinear(n, d_in, d_hidden)
        self.core_layers = nn.ModuleList(EnsembleLinear(n, d_hidden, d_hidden) for _ in range(n_layers - 1))
        self.output_layer = EnsembleLinear(n, d_hidden, d_out)
        self.dropout = nn.Dropout(dropout_p)
        self.activation = activation_switch(activation)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., C, d_out)."""
        return self.from_first_layer(self.inp_layer.shared_input(x))

    def from_first_layer(self, hidden: Tensor) -> Tensor:
        """The rest of the networks, given the first layer's output before its activation, (..., C, d_hidden)."""
        hidden = self.dropout(self.activation(hidden))
        for layer in self.core_layers:
            hidden = self.dropout(self.activation(layer(hidden)))
        out: Tensor = self.output_layer(hidden)
        return out
