"""`attention_step` on a GPU: kernels in Triton or in CUDA C++ as one operation that torch knows, and calls of it.

Shapes: B rows, H heads, D head dimension.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.step_options import StepOptions
from amago.kernels.attention.step_plan import begins_at_sixteen
from amago.kernels.precision import needs_gradient

MAX_HEAD_DIM = 128
_MODULES = {
    "triton": "amago.kernels.attention.triton_step",
    "cuda": "amago.kernels.attention.cuda_step",
}


def _ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    positions: Tensor | None,
    rotary_base: float,
    window: int | None,
    sink: int,
    sink_bias: float,
    logit_clip: float | None,
    scale: float,
    kernels: str,
) -> Tensor:
    """Writes k and v (B, H, D) into the cache and attends: (B, H, D). Without positions nothing is rotated."""
    if positions is not None:
        positions = positions.contiguous()
    options = StepOptions(window, sink, sink_bias, logit_clip, scale, rotary_base, positions)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel():
        cache = RingCache(keys, values, lengths.contiguous())
        importlib.import_module(_MODULES[kernels]).step(q, k, v, cache, out, options)
    return out


ring_attention = torch.library.custom_op(
    "amago_kernels::gpu_ring_attention", _ring_attention, mutates_args=("keys", "values")
)


@ring_attention.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


class GpuStep:
    """The step by one set of kernels.

    Args:
        kernels: "triton" or "cuda".
    """

    def __init__(self, kernels: str) -> None:
        self._kernels = kernels

    def unsupported(self, q: Tensor, k: Tensor, v: Tensor, cache: RingCache, *_: object) -> list[str]:
        """Why the kernels cannot run a call; none if they can."""
        named = {"q": q, "the cache's keys": cache.keys, "its values": cache.values}
        reasons = [reason for name, x in named.items() for reason in triton_runtime.unsupported(name, x)]
        if self._kernels == "cuda" and not q.is_cuda:
            reasons = [f"its kernels need a CUDA device and q is on {q.device}"]
        if cache.values.dtype != cache.keys.dtype:
            reasons.append(f"the cache's keys are {cache.keys.dtype} and its values {cache.values.dtype}")
        if q.shape[-1] > MAX_HEAD_DIM:
            reasons.append(f"it takes heads up to {MAX_HEAD_DIM} wide, q's are {q.shape[-1]}")
        if needs_gradient(q, k, v, cache.keys, cache.values):
            reasons.append("it has no gradient, and an input needs one")
        if self._kernels == "cuda":
            reasons += _not_in_sixteens(cache)
        return reasons

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: StepOptions) -> Tensor:
        """See `amago.kernels.attention_step`."""
        # Past torch's dispatcher unless a compiler looks: a small step is over before that is.
        run = ring_attention if torch.compiler.is_compiling() else _ring_attention
        out: Tensor = run(
            q.select(1, 0),
            k.select(1, 0),
            v.select(1, 0),
            cache.keys,
            cache.values,
            cache.lengths,
            None if options.rotary_base is None else options.positions,
            options.base,
            options.window,
            options.sink,
            options.sink_bias,
            options.logit_clip,
            options.scale,
            self._kernels,
        )
        return out.unsqueeze(1)


def _not_in_sixteens(cache: RingCache) -> list[str]:
    """Why CUDA's kernels, which read 16 bytes at a time, cannot read the cache."""
    numbers = 16 // cache.keys.element_size()
    for x in (cache.keys, cache.values):
        fits = x.stride(-1) == 1 and x.shape[-1] % numbers == 0
        if not fits or any(stride % numbers for stride in x.stride()[:3]):
            return [
                f"the heads of the cache do not lie in pieces of {numbers} numbers: {tuple(x.shape)}, {x.stride()}"
            ]
        if not torch.compiler.is_compiling() and not begins_at_sixteen(x):  # a compiler knows no addresses
            return [f"the cache begins at an address that 16 does not divide, {x.data_ptr():#x}"]
    return []
