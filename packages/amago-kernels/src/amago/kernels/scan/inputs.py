"""Inputs of the scan and its step, as the public functions pass them to the backends.

Shapes: B rows, d channels, n states per channel, L timesteps; a step has no time axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from amago.kernels.precision import accumulation_dtype


@dataclass(frozen=True, kw_only=True)
class ScanInputs:
    """The arguments of `amago.kernels.selective_scan` or `selective_scan_step`, checked.

    Args:
        u, delta, z: (B, d, L), or (B, d) in a step.
        A: (d, n).
        B, C: (B, n, L), or (B, n) in a step.
        D, delta_bias: (d,).
        state: before the first timestep (B, d, n); None for zeros.
        delta_softplus: whether softplus makes `delta` positive.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    delta_bias: Tensor | None
    state: Tensor | None
    delta_softplus: bool

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors, None for those not given: u, delta, A, B, C, D, z, delta_bias, state."""
        return (
            self.u,
            self.delta,
            self.A,
            self.B,
            self.C,
            self.D,
            self.z,
            self.delta_bias,
            self.state,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the states."""
        return accumulation_dtype(*self.tensors)

    def over_time(self, change: Callable[[Tensor], Tensor]) -> ScanInputs:
        """The inputs with `change` applied to every tensor that has a time axis (in a step: lacks one)."""
        z = None if self.z is None else change(self.z)
        return dataclasses.replace(
            self, u=change(self.u), delta=change(self.delta), B=change(self.B), C=change(self.C), z=z
        )
