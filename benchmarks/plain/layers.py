"""Building blocks: a perceptron, an ensemble of perceptrons, input normalisation.

Shapes: (..., D) features on the last axis; C networks of an ensemble.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    """Layer norm; the module within gives the parameters their names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to the same shape."""
        out: Tensor = self.norm(x)
        return out


class MLP(nn.Module):
    """`n_layers` hidden layers with leaky ReLU, then a linear one."""

    def __init__(self, d_in: int, d_hidden: int, n_layers: int, d_out: int) -> None:
        super().__init__()
        self.in_layer = nn.Linear(d_in, d_hidden)
        self.layers = nn.ModuleList(nn.Linear(d_hidden, d_hidden) for _ in range(n_layers - 1))
        self.out_layer = nn.Linear(d_hidden, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out)."""
        x = F.leaky_relu(self.in_layer(x))
        for layer in self.layers:
            x = F.leaky_relu(layer(x))
        out: Tensor = self.out_layer(x)
        return out


class EnsembleLinear(nn.Module):
    """C linear layers side by side."""

    def __init__(self, n: int, d_in: int, d_out: int) -> None:
        super().__init__()
        weight, bias = math.sqrt(3.0 / d_in), math.sqrt(1.0 / d_in)
        self.weight = nn.Parameter(torch.empty(n, d_in, d_out).uniform_(-weight, weight))
        self.bias = nn.Parameter(torch.empty(1, 1, n, d_out).uniform_(-bias, bias))

    def forward(self, x: Tensor, shared: bool = False) -> Tensor:
        """(..., C, d_in) to (..., C, d_out); with `shared` all networks get the same (..., d_in)."""
        return (
            torch.einsum("...i,cio->...co" if shared else "...ci,cio->...co", x, self.weight)
            + self.bias[0, 0]
        )


class EnsembleMLP(nn.Module):
    """C perceptrons of the same input."""

    def __init__(self, n: int, d_in: int, d_hidden: int, n_layers: int, d_out: int) -> None:
        super().__init__()
        self.inp_layer = EnsembleLinear(n, d_in, d_hidden)
        self.core_layers = nn.ModuleList(EnsembleLinear(n, d_hidden, d_hidden) for _ in range(n_layers - 1))
        self.output_layer = EnsembleLinear(n, d_hidden, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., C, d_out)."""
        x = F.leaky_relu(self.inp_layer(x, shared=True))
        for layer in self.core_layers:
            x = F.leaky_relu(layer(x))
        out: Tensor = self.output_layer(x)
        return out


class InputNorm(nn.Module):
    """Standardises features by running statistics of the real timesteps."""

    mu: Tensor
    nu: Tensor
    _t: Tensor

    def __init__(self, dim: int, beta: float = 1e-4) -> None:
        super().__init__()
        self.beta = beta
        self.register_buffer("mu", torch.zeros(dim))
        self.register_buffer("nu", torch.ones(dim))
        self.register_buffer("_t", torch.ones(1))

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor) -> None:
        """Moves the statistics towards those of `x` (B, L, D) where `mask` (B, L, 1) is true."""
        count = mask.sum()
        self._t += 1.0
        step = self.beta / (1.0 - (1.0 - self.beta) ** self._t)
        self.mu.copy_((1.0 - step) * self.mu + step * (x * mask).sum((0, 1)) / count)
        self.nu.copy_((1.0 - step) * self.nu + step * (x.square() * mask).sum((0, 1)) / count)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D) to the same shape; in train mode the statistics move first."""
        if self.training:
            self.update(x, mask)
        sigma = ((self.nu - self.mu.square()).clamp(min=0.0) + 1e-5).sqrt()
        sigma = torch.where(sigma > 0.01, sigma, torch.ones_like(sigma))
        return ((x - self.mu) / sigma).clamp(-1e4, 1e4)
