"""An ensemble of small networks of the same input.

On a CPU the networks run one after the other on blocks of rows that stay in the processor's cache, forward and
backward; elsewhere all of them run as batched matrix products.

Shapes: C networks, H hidden width; other leading axes are free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago import kernels
from amago.nets.activations import activation_switch
from amago.nets.dropout import Dropout
from amago.nets.linear import leaky_slope

# Activations of so many rows and 256 features are 2 MB, about what one core's cache holds.
_ROWS_OF_A_BLOCK = 2048


class EnsembleLinear(nn.Module):
    """C linear layers side by side.

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
        """An input for each layer: (C, rows, d_in) -> (C, rows, d_out)."""
        return torch.baddbmm(self.bias.view(-1, 1, self.bias.shape[-1]), x, self.weight)

    def single_layers(self) -> list[tuple[Tensor, Tensor]]:
        """The layers one by one: weights (d_out, d_in) and biases (d_out,).

        Under autocast they come in its dtype: left to it, every use of a layer would convert them anew.
        """
        weights: Tensor = self.weight  # (C, d_in, d_out)
        biases: Tensor = self.bias
        if torch.is_autocast_enabled(weights.device.type):
            dtype = torch.get_autocast_dtype(weights.device.type)
            weights, biases = weights.to(dtype), biases.to(dtype)
        turned = weights.transpose(1, 2).contiguous()  # once, and not by every product
        return list(zip(turned.unbind(0), biases.view(biases.shape[-2:]).unbind(0), strict=True))


class EnsembleMLP(nn.Module):
    """C multi-layer perceptrons of the same input.

    The input may come in pieces that broadcast against each other, such as states (n, 1, S) and actions
    (n, G, A). The first layer is linear, so each piece is projected before it is repeated: exact, and the work
    on a state is done once and not once for every action that goes with it. Pieces with few rows come first.

    Args:
        n: number of networks C.
        d_in: input width, of all pieces together.
        d_hidden: hidden width H.
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
        self.dropout = Dropout(dropout_p)
        self.activation = activation_switch(activation)

    def forward(self, *pieces: Tensor) -> Tensor:
        """Pieces of the input (..., d_1), (..., d_2), ... that together are d_in wide -> (C, ..., d_out)."""
        width = self.inp_layer.weight.shape[1]
        if sum(piece.shape[-1] for piece in pieces) != width:
            widths = [piece.shape[-1] for piece in pieces]
            raise ValueError(f"the pieces of the input must be {width} wide together, got {widths}")
        if pieces[0].device.type == "cpu" and not torch.compiler.is_compiling():
            return self._one_by_one(pieces)
        return self._all_at_once(pieces)

    def _one_by_one(self, pieces: Sequence[Tensor]) -> Tensor:
        lead = torch.broadcast_shapes(*(piece.shape[:-1] for piece in pieces))
        blocks = list(_row_blocks(pieces, lead))
        layers = (self.inp_layer, *self.core_layers, self.output_layer)
        outs = []
        for first, *others in zip(*(layer.single_layers() for layer in layers), strict=True):
            first_parts = first[0].split([piece.shape[-1] for piece in pieces], dim=1), first[1]
            outs += [self._network(block, *first_parts, others).flatten(0, -2) for block in blocks]
        return torch.cat(outs).view(self.inp_layer.weight.shape[0], *lead, self.output_layer.weight.shape[2])

    def _network(
        self,
        pieces: Sequence[Tensor],
        shares: Sequence[Tensor],
        bias: Tensor,
        layers: Sequence[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """One network on one block of rows, (..., d_out).

        Args:
            pieces: of the input, (..., d_i).
            shares: of the first layer's weight, (H, d_i).
            bias: of the first layer, (H,).
            layers: weight and bias of the others.
        """
        hidden = kernels.linear(pieces[0], shares[0], bias)  # the bias costs least where there are few rows
        for piece, share in zip(pieces[1:], shares[1:], strict=True):
            hidden = hidden + kernels.linear(piece, share)
        slope = leaky_slope(self.activation)
        if slope is not None and len(pieces) > 1:  # a sum that nobody else needs
            hidden = F.leaky_relu(hidden, slope, inplace=True)
        else:
            hidden = self.activation(hidden)
        *core, last = layers
        for weight, bias in core:
            hidden = kernels.linear(self.dropout(hidden), weight, bias, leaky=slope)
            hidden = hidden if slope is not None else self.activation(hidden)
        return kernels.linear(self.dropout(hidden), *last)

    def _all_at_once(self, pieces: Sequence[Tensor]) -> Tensor:
        n_networks, _, width = self.inp_layer.weight.shape
        lead = torch.broadcast_shapes(*(piece.shape[:-1] for piece in pieces))
        shares = self.inp_layer.weight.split([piece.shape[-1] for piece in pieces], dim=1)
        hidden = self.inp_layer.bias.view(n_networks, *(1 for _ in lead), width)
        for piece, share in zip(pieces, shares, strict=True):
            projected = torch.matmul(piece.flatten(0, -2), share)  # (C, rows of the piece, H)
            missing = (1,) * (len(lead) + 1 - piece.dim())
            hidden = hidden + projected.view(n_networks, *missing, *piece.shape[:-1], width)
        hidden = hidden.flatten(1, -2)  # (C, rows, H)
        for layer in (*self.core_layers, self.output_layer):
            hidden = layer(self.dropout(self.activation(hidden)))
        return hidden.view(n_networks, *lead, -1)


def _row_blocks(pieces: Sequence[Tensor], lead: Sequence[int]) -> Iterator[Sequence[Tensor]]:
    """The pieces (..., d_i), which broadcast to (*lead, ·), cut into blocks of rows in order."""
    rows = math.prod(lead)
    if rows <= _ROWS_OF_A_BLOCK:
        yield pieces
        return
    axis = next(i for i, size in enumerate(lead) if size > 1)
    length = max(1, _ROWS_OF_A_BLOCK * lead[axis] // rows)
    starts = range(0, lead[axis], length)
    # Splitting, unlike slicing, puts the gradients of all blocks together in one pass.
    columns = []
    for piece in pieces:
        own = axis - len(lead) - 1 + piece.dim()
        whole = own < 0 or piece.shape[own] == 1
        columns.append([piece] * len(starts) if whole else piece.split(length, dim=own))
    for start, *block in zip(starts, *columns, strict=True):
        size = min(length, lead[axis] - start)
        yield from _row_blocks(block, (*lead[:axis], size, *lead[axis + 1 :]))
