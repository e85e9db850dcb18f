"""Exact softmax attention over whole sequences and step by step against a ring cache.

- `plain`: `attention` and `attention_step`, with fixed options; `flex`: the same with functions of the caller.
- `reference`, `step`: both written out, the specification; `flex_dense`: with score and mask functions.
- `sdpa`, `flex_torch`: through torch's fused kernels; `gpu`: through our own, `triton_kernels` forward and
  `triton_backward`, which share `triton_blocks`.
- `step_options`: what the backends of a step are told; `step_gpu`, `step_plan`, `triton_step`, `cuda_step`: steps
  on a GPU, in Triton and in CUDA C++.
- `rotary`: rotary positions, which a step applies to what enters the cache.
- `mods`: score and mask functions and their evaluation for all positions at once; `cache`: the ring cache.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.flex import flex_attention, flex_attention_step
from amago.kernels.attention.mods import ClippedSinks, SlidingWindow
from amago.kernels.attention.plain import attention, attention_step

__all__ = [
    "ClippedSinks",
    "RingCache",
    "SlidingWindow",
    "attention",
    "attention_step",
    "flex_attention",
    "flex_attention_step",
]
