"""Exact softmax attention over whole sequences, and step by step against a ring cache.

- `api`: the public functions. `options`: their options and checks. `cache`: the ring cache.
- `mods`: score and mask functions.
- `reference`, `step`: plain torch, the reference of sequences and of steps. `sdpa`, `flex`: torch's fused kernels.
- `native`: the step in C++ on the CPU. `gpu`: operators for our own GPU kernels, which are in `triton_kernels`,
  `triton_backward`, `triton_step` and `cuda_kernels`.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from amago.kernels.attention.api import attention, attention_step, flex_attention, flex_attention_step
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.mods import ClippedSinks, SlidingWindow

__all__ = [
    "ClippedSinks",
    "RingCache",
    "SlidingWindow",
    "attention",
    "attention_step",
    "flex_attention",
    "flex_attention_step",
]
