"""Padding masks of a batch, and means that skip padding.

Encoders are called with observations alone (`tstep_encoder(obs=, rl2s=)`), yet a layer that keeps running
statistics must not see padding. `timestep_mask` provides the batch's mask to such layers during a forward pass, so
that user-defined encoders need no extra argument to be correct.

Shapes: B batch, L timesteps, D features.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MAGIC_PAD_VAL = 4.0
"""Fill value of padded timesteps, which also identifies the padding of a batch without lengths."""


class _ThreadState(threading.local):
    """The mask of the forward pass that runs in this thread."""

    # torch.compile traces thread-local attributes, but not context variables; and it fails at the second
    # compilation if the first one finds the attribute in the class and writes it to the instance.
    def __init__(self) -> None:
        self.mask: Tensor | None = None


_state = _ThreadState()


@contextmanager
def timestep_mask(mask: Tensor | None) -> Iterator[None]:
    """Sets `current_timestep_mask()` of this thread to a bool mask (B, L, 1), True for real timesteps."""
    previous = _state.mask
    _state.mask = mask
    try:
        yield
    finally:
        _state.mask = previous


def current_timestep_mask() -> Tensor | None:
    """The mask (B, L, 1) of the batch that this thread encodes, or None if no padding is known."""
    return _state.mask


def mask_from_filler(x: Tensor) -> Tensor:
    """True for timesteps that are not `MAGIC_PAD_VAL` in every feature. (B, L, D) -> bool (B, L, 1)."""
    return ~(x == MAGIC_PAD_VAL).all(dim=-1, keepdim=True)


def masked_avg(tensor: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = 0) -> Tensor:
    """The mean of `tensor` where `mask` (broadcastable to it) is True; 0 if it is True nowhere.

    A mask of numbers weighs the entries. The count, or the sum of the weights, is increased by 1e-5, so that an
    empty mask gives 0 instead of NaN. Masked positions may hold any value, NaN included.

    Args:
        tensor: values of any shape.
        mask: True, or a weight, where a value counts.
        dim: axes to average over; None for all.
    """
    mask = mask.broadcast_to(tensor.shape)
    zero = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    values = torch.where(mask.to(torch.bool), tensor, zero)
    if mask.dtype != torch.bool:
        values = values * mask
    return values.sum(dim) / (mask.sum(dim) + 1e-5)
