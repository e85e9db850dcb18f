"""What the scan and its step compute from, as the public functions hand it to their backends.

Shapes: B rows, d channels, n states per channel, L timesteps; a step has no axis of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from amago.kernels.precision import accumulation_dtype


class Inputs(NamedTuple):
    """The arguments of `amago.kernels.selective_scan`, checked; the state apart, and what is asked of the result.

    Args:
        u, delta, z: (B, d, L), or (B, d) in a step.
        A: (d, n).
        B, C: (B, n, L), or (B, n) in a step.
        D, delta_bias: (d,).
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
    delta_softplus: bool

    def dtype_with(self, state: Tensor | None) -> torch.dtype:
        """What is computed in, with a state of its own dtype."""
        return accumulation_dtype(state, *self[:-1])

    def over_time(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same with `change` applied to all that has, or in a step lacks, the axis of time."""
        u, delta, A, B, C, D, z, delta_bias, delta_softplus = self
        z = None if z is None else change(z)
        return Inputs(change(u), change(delta), A, change(B), change(C), D, z, delta_bias, delta_softplus)

    def at(self, t: int) -> Inputs:
        """Those of a single step, number t of the sequence."""
        return self.over_time(lambda x: x[..., t])
