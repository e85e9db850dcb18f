"""`SelfAttention`, the base class, with `VanillaAttention` and `FlashAttention`; all compute through
`amago.kernels`.

The input is packed queries, keys and values (B, L, 3, H, D). In a rollout L is 1 and the layer's ring cache is
passed as well: `key_cache` and `val_cache` (B, W, H, D), written in place, and `cache_seqlens` (B,), the number of
steps of each row. A step is written to slot `cache_seqlens % W`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

import gin
from annotated_types import Ge
from torch import Tensor, nn

from amago import kernels
from amago.nets.arguments import Probability, check_arguments


class SelfAttention(nn.Module, ABC):
    """Base class of attention over packed (B, L, 3, H, D). Subclasses override `forward`.

    Args:
        causal: whether future positions are masked.
        dropout: dropout probability of the attention weights in training.
    """

    @check_arguments
    def __init__(self, causal: bool = True, dropout: Probability = 0.0) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout

    @property
    def dropout_now(self) -> float:
        """The dropout probability: `dropout` in training, else 0."""
        return self.dropout if self.training else 0.0

    @abstractmethod
    def forward(
        self,
        qkv: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, L, 3, H, D) -> (B, L, H, D)."""


def ring_cache(
    key_cache: Tensor | None, val_cache: Tensor | None, cache_seqlens: Tensor | None
) -> kernels.RingCache | None:
    """The layer's cache in a rollout, None for a whole sequence.

    Raises:
        ValueError: if only some of the arguments are given.
    """
    if key_cache is None and val_cache is None and cache_seqlens is None:
        return None
    if key_cache is None or val_cache is None or cache_seqlens is None:
        raise ValueError("key_cache, val_cache and cache_seqlens must be given together, or none of them")
    return kernels.RingCache(key_cache, val_cache, cache_seqlens)


@gin.configurable(module="amago.nets.transformer")
class VanillaAttention(SelfAttention):
    """Attention in plain torch, which materialises the (L, L) matrix.

    Args:
        causal: whether future positions are masked.
        dropout: dropout probability of the attention weights in training.
    """

    def forward(
        self,
        qkv: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, L, 3, H, D) -> (B, L, H, D)."""
        q, k, v = qkv.unbind(2)  # each (B, L, H, D)
        cache = ring_cache(key_cache, val_cache, cache_seqlens)
        if cache is not None:
            return kernels.attention_step(q, k, v, cache, backend="eager")
        return kernels.attention(q, k, v, causal=self.causal, dropout_p=self.dropout_now, backend="eager")


@gin.configurable(module="amago.nets.transformer")
class FlashAttention(SelfAttention):
    """Exact fused attention, by the fastest kernel available on CPU or GPU.

    Args:
        causal: whether future positions are masked.
        dropout: dropout probability of the attention weights in training.
        window_size: (left, right) number of positions attended to before and after a position; -1 for no limit.
            Right is ignored with causal attention and in rollouts.

    Raises:
        ValueError: unless window_size is two integers of at least -1, equal if attention is not causal.
    """

    @check_arguments
    def __init__(
        self,
        causal: bool = True,
        dropout: Probability = 0.0,
        window_size: tuple[Annotated[int, Ge(-1)], Annotated[int, Ge(-1)]] = (-1, -1),
    ) -> None:
        super().__init__(causal=causal or window_size[1] == 0, dropout=dropout)
        left, right = window_size
        if not self.causal and left != right:
            raise ValueError(f"window_size must have equal sides without causal, got {window_size}")
        self.window = None if left < 0 else left

    def forward(
        self,
        qkv: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, L, 3, H, D) -> (B, L, H, D)."""
        q, k, v = qkv.unbind(2)  # each (B, L, H, D)
        cache = ring_cache(key_cache, val_cache, cache_seqlens)
        if cache is not None:
            return kernels.attention_step(q, k, v, cache, window=self.window)
        return kernels.attention(q, k, v, causal=self.causal, window=self.window, dropout_p=self.dropout_now)
