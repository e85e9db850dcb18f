"""Ensembles of MLPs on the same input.

On CPU the networks run sequentially on blocks of rows whose activations fit the processor's cache,
forward and backward; on other devices all networks run as batched matrix products.

Shapes: C networks, H hidden width; other leading axes are free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago import kernels
from amago.nets.activations import Activation, activation_switch
from amago.nets.arguments import Probability, Size, check_arguments
from amago.nets.dropout import Dropout
from amago.nets.linear import leaky_slope

# 2048 rows of 256 float32 features are 2 MB, about the size of one core's cache.
_ROWS_PER_BLOCK = 2048


class EnsembleLinear(nn.Module):
    """C linear layers with stacked weights.

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
        """Applies layer c to x[c]: (C, rows, d_in) -> (C, rows, d_out)."""
        return torch.baddbmm(self.bias.view(-1, 1, self.bias.shape[-1]), x, self.weight)

    def single_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight (d_out, d_in) and bias (d_out,) of each layer.

        Converted to the autocast dtype once; autocast itself would convert them at every use.
        """
        weights: Tensor = self.weight  # (C, d_in, d_out)
        biases: Tensor = self.bias
        if torch.is_autocast_enabled(weights.device.type):
            dtype = torch.get_autocast_dtype(weights.device.type)
            weights, biases = weights.to(dtype), biases.to(dtype)
        transposed = weights.transpose(1, 2).contiguous()  # once instead of in every product
        return list(zip(transposed.unbind(0), biases.view(biases.shape[-2:]).unbind(0), strict=True))


class EnsembleMLP(nn.Module):
    """C multi-layer perceptrons on the same input.

    The input may be passed as several tensors that broadcast against each other, such as states (n, 1, S) and
    actions (n, G, A), instead of their concatenation. As the first layer is linear, each is projected before it is
    broadcast, so that a state is projected once and not once per action. Tensors with fewer rows come first.

    Args:
        n: number of networks C.
        d_in: total input width.
        d_hidden: hidden width H.
        n_layers: number of hidden layers, at least 1.
        d_out: output width.
        dropout_p: dropout after each hidden activation.
        activation: activation of the hidden layers.
    """

    @check_arguments
    def __init__(
        self,
        n: Size,
        d_in: Size,
        d_hidden: Size,
        n_layers: Size,
        d_out: Size,
        dropout_p: Probability = 0.0,
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__()
        self.inp_layer = EnsembleLinear(n, d_in, d_hidden)
        self.core_layers = nn.ModuleList(EnsembleLinear(n, d_hidden, d_hidden) for _ in range(n_layers - 1))
        self.output_layer = EnsembleLinear(n, d_hidden, d_out)
        self.dropout = Dropout(dropout_p)
        self.activation = activation_switch(activation)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs (..., d_1), (..., d_2), ... of total width d_in -> (C, ..., d_out)."""
        width = self.inp_layer.weight.shape[1]
        if sum(x.shape[-1] for x in inputs) != width:
            widths = [x.shape[-1] for x in inputs]
            raise ValueError(f"inputs must have a total width of {width}, got {widths}")
        if inputs[0].device.type == "cpu" and not torch.compiler.is_compiling():
            return self._one_by_one(inputs)
        return self._all_at_once(inputs)

    def _one_by_one(self, inputs: Sequence[Tensor]) -> Tensor:
        """Runs the networks sequentially on blocks of rows."""
        lead = torch.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        blocks = list(_row_blocks(inputs, lead))
        layers = (self.inp_layer, *self.core_layers, self.output_layer)
        outs = []
        for first, *others in zip(*(layer.single_layers() for layer in layers), strict=True):
            weight, bias = first
            first_weights = weight.split([x.shape[-1] for x in inputs], dim=1)
            outs += [self._network(block, first_weights, bias, others).flatten(0, -2) for block in blocks]
        return torch.cat(outs).view(self.inp_layer.weight.shape[0], *lead, self.output_layer.weight.shape[2])

    def _network(
        self,
        inputs: Sequence[Tensor],
        first_weights: Sequence[Tensor],
        bias: Tensor,
        layers: Sequence[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Runs one network on one block of rows, (..., d_out).

        Args:
            inputs: (..., d_i).
            first_weights: columns of the first layer's weight for each input, (H, d_i).
            bias: bias of the first layer, (H,).
            layers: weights and biases of the other layers.
        """
        # The bias is added to the input with the fewest rows.
        hidden = kernels.linear(inputs[0], first_weights[0], bias)
        for x, weight in zip(inputs[1:], first_weights[1:], strict=True):
            hidden = hidden + kernels.linear(x, weight)
        slope = leaky_slope(self.activation)
        if slope is not None and len(inputs) > 1:  # the sum is not needed for the backward pass
            hidden = F.leaky_relu(hidden, slope, inplace=True)
        else:
            hidden = self.activation(hidden)
        *core, last = layers
        for weight, bias in core:
            hidden = kernels.linear(self.dropout(hidden), weight, bias, leaky=slope)
            hidden = hidden if slope is not None else self.activation(hidden)
        return kernels.linear(self.dropout(hidden), *last)

    def _all_at_once(self, inputs: Sequence[Tensor]) -> Tensor:
        """Runs all networks as batched matrix products."""
        n_networks, _, width = self.inp_layer.weight.shape
        lead = torch.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        weights = self.inp_layer.weight.split([x.shape[-1] for x in inputs], dim=1)
        hidden = self.inp_layer.bias.view(n_networks, *(1 for _ in lead), width)
        for x, weight in zip(inputs, weights, strict=True):
            projected = torch.matmul(x.flatten(0, -2), weight)  # (C, input rows, H)
            missing = (1,) * (len(lead) + 1 - x.dim())
            hidden = hidden + projected.view(n_networks, *missing, *x.shape[:-1], width)
        hidden = hidden.flatten(1, -2)  # (C, rows, H)
        for layer in (*self.core_layers, self.output_layer):
            hidden = layer(self.dropout(self.activation(hidden)))
        return hidden.view(n_networks, *lead, -1)


def _row_blocks(inputs: Sequence[Tensor], lead: Sequence[int]) -> Iterator[Sequence[Tensor]]:
    """Splits inputs (..., d_i), which broadcast to (*lead, ·), into blocks of rows, in order."""
    rows = math.prod(lead)
    if rows <= _ROWS_PER_BLOCK:
        yield inputs
        return
    axis = next(i for i, size in enumerate(lead) if size > 1)
    length = max(1, _ROWS_PER_BLOCK * lead[axis] // rows)
    if length > 128:
        length -= length % 128  # oneDNN pads other numbers of rows
    starts = range(0, lead[axis], length)
    # The backward of split, unlike that of slicing, concatenates the gradients of all blocks in one pass.
    columns = []
    for x in inputs:
        dim = axis - len(lead) - 1 + x.dim()  # the axis of x that is broadcast to `axis`
        shared = dim < 0 or x.shape[dim] == 1
        columns.append([x] * len(starts) if shared else x.split(length, dim=dim))
    for start, *block in zip(starts, *columns, strict=True):
        size = min(length, lead[axis] - start)
        yield from _row_blocks(block, (*lead[:axis], size, *lead[axis + 1 :]))
