"""Which timesteps of a padded batch are real, and means that only count those.

Encoders are called with observations alone (`tstep_encoder(obs=, rl2s=)`), yet a layer that keeps running
statistics must not see padding. `timestep_mask` makes the batch's mask known to such layers for the length
of a forward pass, so that user-defined encoders need no extra argument to be correct.

Shapes: B batch, L timesteps, D features.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MAGIC_PAD_VAL = 4.0
"""The filler of padded positions; also how a batch without lengths is told from its padding."""

# A plain global: torch.compile follows those, and ends a graph at context variables.
_current: Tensor | None = None


@contextmanager
def timestep_mask(mask: Tensor | None) -> Iterator[None]:
    """Within the context, `current_timestep_mask()` returns `mask`, a bool tensor (B, L, 1): True is real.

    It holds for the whole process, so two threads must not encode different batches at once.
    """
    global _current
    before, _current = _current, mask
    try:
        yield
    finally:
        _current = before


def current_timestep_mask() -> Tensor | None:
    """The mask (B, L, 1) of the batch that is being encoded, or None where nothing is known about padding."""
    return _current


def mask_from_filler(x: Tensor, pad_value: float = MAGIC_PAD_VAL) -> Tensor:
    """True where a timestep is real, as padding holds `pad_value` everywhere. (B, L, D) -> bool (B, L, 1)."""
    return ~(x == pad_value).all(dim=-1, keepdim=True)


def masked_avg(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of `x` over the positions where `mask` (broadcastable to `x`) is True; 0 if there are none.

    The count is increased by 1e-5 so that an empty mask gives 0 and not NaN. Masked positions may hold
    anything, NaN included.
    """
    mask = mask.broadcast_to(x.shape)
    total = torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum()
    return total / (mask.sum() + 1e-5)
