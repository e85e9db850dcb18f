"""The Transformer's hidden state: ring caches of keys and values for all layers and rows.

Shapes: B rows, W slots (the window), H heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from amago.nets.arguments import Size, check_arguments

if TYPE_CHECKING:
    import numpy as np


class Cache:
    """Keys or values of all layers: `cache[i]` is layer i's (B, W, H, D).

    Args:
        device: device of the tensor.
        dtype: dtype of the tensor.
        layers: number of layers.
        batch_size: B.
        max_seq_len: W.
        n_heads: H.
        head_dim: D.
    """

    @check_arguments
    def __init__(
        self,
        device: torch.device | str,
        dtype: torch.dtype,
        layers: Size,
        batch_size: Size,
        max_seq_len: Size,
        n_heads: Size,
        head_dim: Size,
    ) -> None:
        self.data = torch.zeros(
            (layers, batch_size, max_seq_len, n_heads, head_dim), dtype=dtype, device=device
        )

    def __len__(self) -> int:
        return self.data.shape[0]

    def __getitem__(self, layer: int) -> Tensor:
        return self.data[layer]


class TformerHiddenState:
    """Ring caches of all layers, and how many steps each row has written to them.

    Args:
        key_cache: keys of all layers.
        val_cache: values of all layers.
        seq_lens: (B,) int64, steps that each row has taken since it was reset.
    """

    @check_arguments
    def __init__(self, key_cache: Cache, val_cache: Cache, seq_lens: Tensor) -> None:
        if len(key_cache) != len(val_cache):
            raise ValueError(
                f"key_cache and val_cache must have as many layers, got {len(key_cache)} and {len(val_cache)}"
            )
        self.n_layers = len(key_cache)
        self.key_cache = key_cache
        self.val_cache = val_cache
        self.seq_lens = seq_lens

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys (B, W, H, D), values and the steps taken (B,), as `AttentionLayer` takes them."""
        return self.key_cache[layer], self.val_cache[layer], self.seq_lens

    def reset(self, idxs: Tensor | np.ndarray | Sequence[int] | Sequence[bool]) -> None:
        """Empties the caches of the given rows: indices, or one bool per row."""
        self.seq_lens[torch.as_tensor(idxs, device=self.seq_lens.device)] = 0

    def update(self) -> None:
        """Increments the length of every row, after all layers have written a step."""
        self.seq_lens += 1
