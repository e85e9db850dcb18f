"""The kinds of self-attention that a Transformer can be built with; all compute through `amago.kernels`.

A kind takes packed queries, keys and values (B, L, 3, H, D). In a rollout L is 1 and it also takes the layer's
ring cache: `key_cache` and `val_cache` (B, W, H, D), written in place, and `cache_seqlens` (B,), the steps that
each row has taken; the step belongs in slot `cache_seqlens % W`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import gin
from torch import Tensor, nn

from amago import kernels


class SelfAttention(nn.Module, ABC):
    """Base class of attention over packed (B, L, 3, H, D). Subclasses override `forward`.

    Args:
        causal: whether a position sees only itself and those before it.
        dropout: of the attention weights, in training.
    """

    def __init__(self, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout

    @abstractmethod
    def forward(
        self,
        qkv: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, L, 3, H, D) -> (B, L, H, D)."""

    def _attend(
        self,
        qkv: Tensor,
        key_cache: Tensor | None,
        val_cache: Tensor | None,
        cache_seqlens: Tensor | None,
        *,
        window: int | None = None,
        backend: str = "auto",
    ) -> Tensor:
        """Exact attention over the sequence, or of one step against the cache."""
        q, k, v = qkv.unbind(2)  # each (B, L, H, D)
        if key_cache is None or val_cache is None or cache_seqlens is None:
            return kernels.attention(
                q,
                k,
                v,
                causal=self.causal,
                window=window,
                dropout_p=self.dropout if self.training else 0.0,
                backend=backend,
            )
        cache = kernels.RingCache(key_cache, val_cache, cache_seqlens)
        return kernels.attention_step(q, k, v, cache, window=window, backend=backend)


class VanillaAttention(SelfAttention):
    """Attention written out in plain torch: runs everywhere, keeps the whole (L, L) matrix.

    Args:
        causal: whether a position sees only itself and those before it.
        dropout: of the attention weights, in training.
    """

    def forward(
        self,
        qkv: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, L, 3, H, D) -> (B, L, H, D)."""
        return self._attend(qkv, key_cache, val_cache, cache_seqlens, backend="eager")


@gin.configurable(module="amago.nets.transformer")
class FlashAttention(SelfAttention):
    """Exact fused attention through the quickest kernel of the machine, on CPU and GPU.

    Args:
        causal: whether a position sees only itself and those before it.
        dropout: of the attention weights, in training.
        window_size: (left, right) steps that a position sees before and after itself; -1 for no limit. With
            causal attention the right one does not matter; without, both must be equal.

    Raises:
        ValueError: for unequal sides without causal attention.
    """

    def __init__(
        self, causal: bool = True, dropout: float = 0.0, window_size: tuple[int, int] = (-1, -1)
    ) -> None:
        super().__init__(causal=causal, dropout=dropout)
        left, right = window_size
        if not causal and left != right:
            raise ValueError(f"window_size must have equal sides without causal attention, got {window_size}")
        self.window = None if left < 0 else left

    def forward(
        self,
        qkv: Tensor,
        key_cache: Tensor | None = None,
        val_cache: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, L, 3, H, D) -> (B, L, H, D)."""
        return self._attend(qkv, key_cache, val_cache, cache_seqlens, window=self.window)
