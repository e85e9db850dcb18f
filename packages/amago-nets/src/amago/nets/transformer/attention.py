"""The interface of self-attention and its common kinds; all compute through `amago.kernels`.

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

    @property
    def dropout_now(self) -> float:
        """The dropout that acts now."""
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
        ValueError: if only some of its parts are given.
    """
    if key_cache is None and val_cache is None and cache_seqlens is None:
        return None
    if key_cache is None or val_cache is None or cache_seqlens is None:
        raise ValueError("key_cache, val_cache and cache_seqlens must be given together, or none of them")
    return kernels.RingCache(key_cache, val_cache, cache_seqlens)


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
        q, k, v = qkv.unbind(2)  # each (B, L, H, D)
        cache = ring_cache(key_cache, val_cache, cache_seqlens)
        if cache is not None:
            return kernels.attention_step(q, k, v, cache, backend="eager")
        return kernels.attention(q, k, v, causal=self.causal, dropout_p=self.dropout_now, backend="eager")


@gin.configurable(module="amago.nets.transformer")
class FlashAttention(SelfAttention):
    """Exact fused attention through the quickest kernel of the machine, on CPU and GPU.

    Args:
        causal: whether a position sees only itself and those before it.
        dropout: of the attention weights, in training.
        window_size: (left, right) steps that a position sees before and after itself; -1 for no limit. With
            causal attention, and in rollouts, there is nothing to the right.

    Raises:
        ValueError: unless window_size is two integers of at least -1.
    """

    def __init__(
        self, causal: bool = True, dropout: float = 0.0, window_size: tuple[int, int] = (-1, -1)
    ) -> None:
        if len(window_size) != 2 or any(not isinstance(side, int) or side < -1 for side in window_size):
            raise ValueError(f"window_size must be (left, right), integers of at least -1, got {window_size}")
        super().__init__(causal=causal or window_size[1] == 0, dropout=dropout)
        left, right = (None if side < 0 else side for side in window_size)
        self.window = left
        self.unequal_sides = not self.causal and left != right
        self.right = right

    def _within_sides(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Mask function of a window whose sides differ: i sees j with i - left <= j <= i + right."""
        seen = kv_idx == kv_idx
        if self.window is not None:
            seen = seen & (q_idx - kv_idx <= self.window)
        return seen if self.right is None else seen & (kv_idx - q_idx <= self.right)

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
        if self.unequal_sides:
            return kernels.flex_attention(
                q, k, v, mask_mod=self._within_sides, causal=False, dropout_p=self.dropout_now
            )
        return kernels.attention(q, k, v, causal=self.causal, window=self.window, dropout_p=self.dropout_now)
