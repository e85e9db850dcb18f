"""The ring cache of keys and values that step-by-step attention reads and writes.

Shapes: B rows, W slots, H heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class RingCache:
    """The last W keys and values of every row, each at slot `position % W`: nothing is ever shifted.

    Args:
        keys: (B, W, H, D).
        values: (B, W, H, D).
        lengths: (B,) int64 of at least 0, steps taken by each row since it was reset. The layers of a model may
            share this tensor: `attention_step` does not move it, `advance` does. Negative ones are an error,
            which the backend "cpp" raises; the others write inside the ring all the same.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor

    @classmethod
    def empty(
        cls,
        batch_size: int,
        window: int,
        n_heads: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> RingCache:
        """A cache of `batch_size` rows and `window` slots with nothing in it."""
        shape = (batch_size, window, n_heads, head_dim)
        return cls(
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(batch_size, dtype=torch.int64, device=device),
        )

    @property
    def window(self) -> int:
        """W, the number of steps that are remembered."""
        return self.keys.shape[1]

    def advance(self) -> None:
        """Counts the step that was just written by `attention_step`."""
        self.lengths += 1

    def reset(self, rows: Tensor) -> None:
        """Forgets the given rows (indices or a bool mask (B,)): what their slots hold is never seen again.

        The backends "eager" and "sdpa" multiply it by 0, so it has to be finite for them where they do not look:
        on a GPU, under torch.compile and where gradients are needed. The others do not read it.
        """
        self.lengths[rows] = 0
