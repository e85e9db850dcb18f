"""The Transformer and its modules.

- `model`: `Transformer`; `layers`: `TransformerLayer`, `AttentionLayer`, `SigmaReparam`.
- `attention`, `flex_attention`: self-attention; `cache`: the hidden state of a rollout.
- `positions`: fixed, learned and rotary position embeddings.
"""

from amago.nets.transformer.attention import FlashAttention, SelfAttention, VanillaAttention
from amago.nets.transformer.cache import Cache, TformerHiddenState
from amago.nets.transformer.flex_attention import (
    ClippedSlidingSinkAttention,
    FlexAttention,
    SlidingWindowFlexAttention,
    VanillaFlexAttention,
)
from amago.nets.transformer.layers import AttentionLayer, SigmaReparam, TransformerLayer
from amago.nets.transformer.model import Transformer
from amago.nets.transformer.positions import FixedPosEmb, LearnablePosEmb, RotaryPosEmb

__all__ = [
    "AttentionLayer",
    "Cache",
    "ClippedSlidingSinkAttention",
    "FixedPosEmb",
    "FlashAttention",
    "FlexAttention",
    "LearnablePosEmb",
    "RotaryPosEmb",
    "SelfAttention",
    "SigmaReparam",
    "SlidingWindowFlexAttention",
    "TformerHiddenState",
    "Transformer",
    "TransformerLayer",
    "VanillaAttention",
    "VanillaFlexAttention",
]
