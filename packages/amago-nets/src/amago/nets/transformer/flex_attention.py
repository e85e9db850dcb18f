"""Self-attention with user-defined score and mask functions, and subclasses for sliding windows and sinks.

`score_mod(score, b, h, q_idx, kv_idx)` and `mask_mod(b, h, q_idx, kv_idx)` have the signatures and rules of
`torch.nn.attention.flex_attention` (see `amago.kernels.flex_attention`). In training, `q_idx` and `kv_idx`
count from the beginning of the sequence. In a rollout they count from the beginning of the context: the first
step of the episode, or, once the episode is longer than `max_seq_len`, the step max_seq_len - 1 steps ago.
"""

from __future__ import annotations

from typing import Any

import gin
from torch import Tensor

from amago import kernels
from amago.kernels.attention.mods import MaskMod, ScoreMod
from amago.nets.arguments import Count, NonNegative, Probability, check_arguments
from amago.nets.transformer.attention import SelfAttention, ring_cache


@gin.configurable(module="amago.nets.transformer")
class FlexAttention(SelfAttention):
    """Attention with a score function and a mask function, in training, evaluation and rollouts.

    The functions are passed by a subclass, or set by gin: `FlexAttention.score_mod = @my_score_mod`.

    Args:
        score_mod: modifies the scaled product of a query and a key; None for no change.
        mask_mod: whether a query sees a key; None for always. It must be a pure function.
        causal: whether future positions are masked, in addition to `mask_mod`.
        dropout: dropout probability of the attention weights in training. torch's fused kernel does not
            support dropout, so that on GPU it requires the eager form, which materialises the (L, L) matrix.
    """

    @check_arguments
    def __init__(
        self,
        score_mod: ScoreMod | None = None,
        mask_mod: MaskMod | None = None,
        causal: bool = True,
        dropout: Probability = 0.0,
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


@gin.configurable(module="amago.nets.transformer")
class VanillaFlexAttention(FlexAttention):
    """FlexAttention without score and mask functions: ordinary attention.

    Args:
        causal: whether future positions are masked.
        dropout: dropout probability of the attention weights in training.
    """

    @check_arguments
    def __init__(self, causal: bool = True, dropout: Probability = 0.0) -> None:
        super().__init__(score_mod=None, mask_mod=None, causal=causal, dropout=dropout)


def _at_least_0(name: str, value: Any) -> int:
    """`value`; ValueError unless it is a non-negative integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be an integer of at least 0 steps, got {value!r}")
    return value


@gin.configurable(module="amago.nets.transformer")
class SlidingWindowFlexAttention(FlexAttention):
    """Sliding-window attention: position i attends to j if i - j <= window_size.

    Args:
        causal: whether future positions are masked; otherwise the window extends both ways.
        dropout: dropout probability of the attention weights in training.
        window_size: number of previous positions attended to; required.

    Raises:
        RuntimeError: if window_size is neither passed nor bound in gin.
        ValueError: if window_size is not a non-negative integer.
    """

    @check_arguments
    def __init__(
        self, causal: bool = True, dropout: Probability = 0.0, window_size: Count = gin.REQUIRED
    ) -> None:
        mask_mod = kernels.SlidingWindow(_at_least_0("window_size", window_size))
        super().__init__(score_mod=None, mask_mod=mask_mod, causal=causal, dropout=dropout)


@gin.configurable(module="amago.nets.transformer")
class ClippedSlidingSinkAttention(FlexAttention):
    """Sliding-window attention with attention sinks (Xiao et al. 2024) and clipped scores.

    Args:
        causal: whether future positions are masked.
        dropout: dropout probability of the attention weights in training.
        window_size: number of previous positions attended to; required.
        logit_clip: scores, after scaling and `sink_bias`, are clamped to [-logit_clip, logit_clip]; 0 for
            no limit.
        sink_size: number of first positions that every position attends to; in a rollout, the first positions of
            the context.
        sink_bias: added to the scores of the sinks.

    Raises:
        RuntimeError: if window_size is neither passed nor bound in gin.
        ValueError: if a number is out of range.
    """

    @check_arguments
    def __init__(
        self,
        causal: bool = True,
        dropout: Probability = 0.0,
        window_size: Count = gin.REQUIRED,
        logit_clip: NonNegative = 0.0,
        sink_size: Count = 0,
        sink_bias: float = 0.0,
    ) -> None:
        sink_size = _at_least_0("sink_size", sink_size)
        super().__init__(
            score_mod=kernels.ClippedSinks(sink_size, sink_bias, logit_clip or None),
            mask_mod=kernels.SlidingWindow(_at_least_0("window_size", window_size), sink_size),
            causal=causal,
            dropout=dropout,
        )
