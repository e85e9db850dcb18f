"""Self-attention whose scores and visibility are functions of positions, and the kinds that are made of it.

A score function `score_mod(score, b, h, q_idx, kv_idx)` and a mask function `mask_mod(b, h, q_idx, kv_idx)` have
torch's signatures and rules (see `amago.kernels.flex_attention`). `q_idx` and `kv_idx` count from the beginning
of the sequence in training. In a rollout they count from the beginning of what is remembered: the first step of
the episode, or, once the episode is longer than `max_seq_len`, the one max_seq_len - 1 steps ago.
"""

from __future__ import annotations

from typing import Any

import gin
from torch import Tensor

from amago import kernels
from amago.kernels.attention.mods import MaskMod, ScoreMod
from amago.nets.transformer.attention import SelfAttention, ring_cache


@gin.configurable(module="amago.nets.transformer")
class FlexAttention(SelfAttention):
    """Attention with a score function and a mask function, in training, evaluation and rollouts.

    Either a subclass passes its functions on, or gin sets them: `FlexAttention.score_mod = @my_score_mod`.

    Args:
        score_mod: changes the scaled product of a query and a key; None to leave it.
        mask_mod: whether a query sees a key; None for always. Once given it must go on giving the same answers.
        causal: whether a position sees only itself and those before it, whatever `mask_mod` says.
        dropout: of the attention weights, in training. torch's fused kernel has none, so on a GPU any dropout
            means the written-out form, which keeps the whole (L, L) matrix.
    """

    def __init__(
        self,
        score_mod: ScoreMod | None,
        mask_mod: MaskMod | None,
        causal: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(causal=causal, dropout=dropout)
        self.score_mod = score_mod
        self.mask_mod = mask_mod

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
            return kernels.flex_attention_step(
                q, k, v, cache, score_mod=self.score_mod, mask_mod=self.mask_mod
            )
        return kernels.flex_attention(
            q,
            k,
            v,
            score_mod=self.score_mod,
            mask_mod=self.mask_mod,
            causal=self.causal,
            dropout_p=self.dropout_now,
        )


class VanillaFlexAttention(FlexAttention):
    """FlexAttention with neither function: ordinary attention.

    Args:
        causal: whether a position sees only itself and those before it.
        dropout: of the attention weights, in training.
    """

    def __init__(self, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__(score_mod=None, mask_mod=None, causal=causal, dropout=dropout)


def _at_least_0(name: str, value: Any) -> int:
    """A number of steps.

    Raises:
        ValueError: if it is no integer of at least 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be an integer of at least 0 steps, got {value!r}")
    return value


@gin.configurable(module="amago.nets.transformer")
class SlidingWindowFlexAttention(FlexAttention):
    """Attention to the steps nearby: position i sees j with i - j <= window_size.

    Args:
        causal: whether a position sees only itself and those before it; else the window extends both ways.
        dropout: of the attention weights, in training.
        window_size: steps back that a position sees, besides itself. There is no good default.

    Raises:
        RuntimeError: if window_size is neither passed nor bound in gin.
        ValueError: if it is no integer of at least 0.
    """

    def __init__(self, causal: bool = True, dropout: float = 0.0, window_size: int = gin.REQUIRED) -> None:
        mask_mod = kernels.SlidingWindow(_at_least_0("window_size", window_size))
        super().__init__(score_mod=None, mask_mod=mask_mod, causal=causal, dropout=dropout)


@gin.configurable(module="amago.nets.transformer")
class ClippedSlidingSinkAttention(FlexAttention):
    """Attention to the steps nearby and to the first ones, with bounded scores (Xiao et al. 2024 for the sinks).

    Args:
        causal: whether a position sees only itself and those before it.
        dropout: of the attention weights, in training.
        window_size: steps back that a position sees, besides itself. There is no good default.
        logit_clip: scores, after scaling and `sink_bias`, are clamped to plus and minus this; 0 for no limit.
        sink_size: so many first positions of the sequence are seen from everywhere; in a rollout those of what
            is remembered.
        sink_bias: added to the scores of those first positions.

    Raises:
        RuntimeError: if window_size is neither passed nor bound in gin.
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        causal: bool = True,
        dropout: float = 0.0,
        window_size: int = gin.REQUIRED,
        logit_clip: float = 0.0,
        sink_size: int = 0,
        sink_bias: float = 0.0,
    ) -> None:
        if logit_clip < 0:
            raise ValueError(f"logit_clip must be 0 (no limit) or positive, got {logit_clip!r}")
        sink_size = _at_least_0("sink_size", sink_size)
        super().__init__(
            score_mod=kernels.ClippedSinks(sink_size, sink_bias, logit_clip or None),
            mask_mod=kernels.SlidingWindow(_at_least_0("window_size", window_size), sink_size),
            causal=causal,
            dropout=dropout,
        )
