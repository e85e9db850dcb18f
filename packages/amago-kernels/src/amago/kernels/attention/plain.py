"""The public functions `attention` and `attention_step`: exact softmax attention with fixed options.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import math

from torch import Tensor

from amago.kernels.attention import flex_torch, gpu, native, reference, sdpa, step
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.checks import (
    check_cache,
    check_options,
    check_rotary,
    check_same,
    check_sequence,
)
from amago.kernels.attention.step_gpu import GpuStep
from amago.kernels.attention.step_options import StepOptions
from amago.kernels.backends import Backend, Implementation, choose, register
from amago.kernels.native import ATTENTION_STEP, ATTENTION_STEP_CUDA
from amago.kernels.precision import full_precision
from amago.kernels.triton_runtime import Triton


def _sdpa_step_unsupported(
    q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: StepOptions
) -> list[str]:
    """The limits of the whole-sequence form hold for the step as well."""
    return sdpa.unsupported(
        logit_clip=options.logit_clip, sink=options.sink, sink_bias=options.sink_bias, scale=options.scale
    )


_triton_step, _cuda_step = GpuStep("triton"), GpuStep("cuda")
register(
    "attention",
    [
        Implementation(Backend.SDPA, sdpa.attention, sdpa.unsupported),
        Implementation(
            Backend.FLEX, flex_torch.attention, flex_torch.unsupported, flex_torch.CudaAndTriton()
        ),
        Implementation(Backend.TRITON, gpu.attention, gpu.unsupported, Triton()),
        Implementation(Backend.EAGER, reference.attention),
    ],
)
register(
    "attention_step",
    [
        Implementation(Backend.CPP, native.attention_step, native.unsupported, needs=ATTENTION_STEP),
        Implementation(Backend.SDPA, step.sdpa_step, _sdpa_step_unsupported),
        Implementation(Backend.TRITON, _triton_step, _triton_step.unsupported, Triton()),
        Implementation(Backend.CUDA, _cuda_step, _cuda_step.unsupported, needs=ATTENTION_STEP_CUDA),
        Implementation(Backend.EAGER, step.eager_step),
    ],
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    sink: int = 0,
    sink_bias: float = 0.0,
    logit_clip: float | None = None,
    lengths: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v over the positions that each query may see (Vaswani et al. 2017, eq. 1).

    It computes in the precision of its inputs, under autocast too. What nobody sees must be finite all the same,
    padding included: some backends multiply it by a weight of 0.

    Args:
        q: queries (B, L, H, D).
        k: keys, same shape.
        v: values, same shape.
        causal: position i sees only j <= i.
        window: position i sees only j with |i - j| <= window, and the sinks. None for no limit.
        sink: so many first positions are seen from everywhere (Xiao et al. 2024) when there is a window.
        sink_bias: added to the scores of the sinks, before clipping.
        logit_clip: scores are clamped to plus and minus this.
        lengths: (B,) integers; keys at and beyond them are not seen, and outputs there are 0.
        dropout_p: probability in [0, 1) of dropping an attention weight.
        scale: of the scores; 1 / sqrt(D) by default.
        backend: "sdpa", "flex" or "triton" (CUDA), "eager", or None / "auto" for the fastest that can run it.

    Returns:
        (B, L, H, D), dtype of q.

    Raises:
        ValueError: for shapes, dtypes, devices or options that do not fit.
        TypeError: for tensors that are none, and a window or sink that is no integer.
        RuntimeError: if the backend that was asked for cannot run the call.
    """
    check_same(q, k, v)
    check_options(window, sink, sink_bias, logit_clip, scale)
    check_sequence(q, lengths, dropout_p)
    options = {
        "causal": causal,
        "window": window,
        "sink": sink,
        "sink_bias": sink_bias,
        "logit_clip": logit_clip,
        "lengths": lengths,
        "dropout_p": dropout_p,
        "scale": 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
    }
    run = choose("attention", backend, q, k, v, **options).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, **options)
    return out


def attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    *,
    window: int | None = None,
    sink: int = 0,
    sink_bias: float = 0.0,
    logit_clip: float | None = None,
    scale: float | None = None,
    rotary_base: float | None = None,
    positions: Tensor | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """Writes one timestep's key and value of every row into the cache and attends to what the cache holds.

    Equal to `attention` over each row's history in which every position sees its last W steps (itself
    included), W being the cache's size. The cache's lengths do not move: layers that share them call
    `RingCache.advance` once, after the last layer.

    Args:
        q: queries (B, 1, H, D).
        k: keys, same shape.
        v: values, same shape.
        cache: changed in place; its rows are the rows of q.
        window, sink, sink_bias, logit_clip, scale: as in `attention`; sinks are the first positions of what
            the cache remembers.
        rotary_base: if given, q and k are rotated first (Su et al. 2021, eq. 34): features i and i + D/2 by
            the angle position * rotary_base ** (-2 i / D). What enters the cache is rotated.
        positions: (B,) integers, at which they are rotated; the cache's lengths by default.
        backend: "cpp" (CPU), "sdpa", "triton" and "cuda" (CUDA), "eager", or None / "auto" for the fastest
            that can run the call.

    Returns:
        (B, 1, H, D), dtype of q.

    Raises:
        ValueError: for shapes, dtypes, devices or options that do not fit.
        TypeError: for tensors or a cache that are none, and a window or sink that is no integer.
        RuntimeError: if the backend that was asked for cannot run the call.
    """
    check_same(q, k, v)
    check_options(window, sink, sink_bias, logit_clip, scale)
    check_cache(q, cache)
    check_rotary(q, rotary_base, positions)
    if rotary_base is not None and positions is None:
        positions = cache.lengths
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    options = StepOptions(window, sink, sink_bias, logit_clip, scale, rotary_base, positions)
    run = choose("attention_step", backend, q, k, v, cache, options).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, cache, options)
    return out
