"""`RingCache`: the keys and values that step-by-step attention reads and writes.

Shapes: B rows, W slots, H heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor


@dataclass(slots=True)
class RingCache:
    """The last W keys and values of every row, each in slot `position % W`, so nothing is ever shifted.

    Args:
        keys: (B, W, H, D).
        values: (B, W, H, D).
        lengths: (B,) int64 of at least 0, steps taken by each row since it was reset. The layers of a model may
            share this tensor: `attention_step` does not change it, `advance` does.
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
        """An empty cache of `batch_size` rows and `window` slots.

        Raises:
            TypeError: for a size that is not an integer.
            ValueError: for a size below 1, or a batch size below 0.
        """
        sizes = {"batch_size": batch_size, "window": window, "n_heads": n_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, Integral | torch.SymInt):
                raise TypeError(f"{name} must be an integer, got {size!r}")
            if size < (least := 0 if name == "batch_size" else 1):
                raise ValueError(f"{name} must be at least {least}, got {size}")
        shape = (batch_size, window, n_heads, head_dim)
        return cls(
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(batch_size, dtype=torch.int64, device=device),
        )

    @property
    def window(self) -> int:
        """W, the number of cached steps."""
        return self.keys.shape[1]

    def advance(self) -> None:
        """Adds the step just written by `attention_step` to the lengths."""
        self.lengths += 1

    def reset(self, rows: Tensor) -> None:
        """Empties the given rows (indices or a bool mask (B,)).

        The backends "eager" and "sdpa" multiply stale slots by 0, so these must be finite. The other backends do
        not read them.

        Raises:
            TypeError: unless the rows are integers or bools.
        """
        if isinstance(rows, Tensor) and rows.is_floating_point():
            raise TypeError(f"rows must be integers, or a bool for each row, got {rows.dtype}")
        self.lengths[rows] = 0
