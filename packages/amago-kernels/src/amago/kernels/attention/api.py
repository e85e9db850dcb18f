"""The public functions `attention`, `attention_step`, `flex_attention` and `flex_attention_step`.

Shapes: B rows, L positions, H heads, D head dimension, W slots of a ring cache.
"""

from __future__ import annotations

from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.attention import flex, gpu, native, reference, sdpa, step
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.mods import MaskMod, ScoreMod, as_options
from amago.kernels.attention.options import (
    AttentionOptions,
    FlexOptions,
    StepOptions,
    check_cache,
    check_per_row,
    check_rotary,
    check_same,
    scale_of,
)
from amago.kernels.backends import Backend, Implementation, choose, register
from amago.kernels.native import ATTENTION_STEP, ATTENTION_STEP_CUDA
from amago.kernels.precision import full_precision

_triton_step, _cuda_step = gpu.GpuStep("triton"), gpu.GpuStep("cuda")
register(
    "attention",
    [
        Implementation(Backend.SDPA, sdpa.attention, sdpa.unsupported),
        Implementation(Backend.TRITON, gpu.attention, gpu.unsupported, triton_runtime.missing),
        Implementation(Backend.EAGER, reference.attention),
    ],
)
register(
    "attention_step",
    [
        Implementation(Backend.CPP, native.attention_step, native.unsupported, ATTENTION_STEP.missing),
        Implementation(Backend.SDPA, step.sdpa_step, sdpa.unsupported),
        Implementation(Backend.TRITON, _triton_step, _triton_step.unsupported, triton_runtime.missing),
        Implementation(Backend.CUDA, _cuda_step, _cuda_step.unsupported, ATTENTION_STEP_CUDA.missing),
        Implementation(Backend.EAGER, step.eager_step),
    ],
)
register(
    "flex_attention",
    [
        Implementation(Backend.FLEX, flex.flex_attention, flex.unsupported, flex.missing),
        Implementation(Backend.SDPA, sdpa.flex_attention, sdpa.unsupported),
        Implementation(Backend.EAGER, reference.flex_attention),
    ],
)
register(
    "flex_attention_step",
    [
        Implementation(Backend.SDPA, step.flex_sdpa_step, sdpa.unsupported),
        Implementation(Backend.EAGER, step.flex_eager_step),
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
    """softmax(scale * q k^T) v over the visible positions of each query (Vaswani et al. 2017, eq. 1).

    It computes in the precision of its inputs, under autocast too. Masked positions must be finite, padding
    included: some backends multiply them by a weight of 0.

    Args:
        q: queries (B, L, H, D).
        k: keys, same shape.
        v: values, same shape.
        causal: position i attends only to j <= i.
        window: position i attends only to j with |i - j| <= window, and to the sinks. None for no limit.
        sink: number of first positions that stay visible outside the window (Xiao et al. 2024).
        sink_bias: added to the scores of the sinks, before clipping.
        logit_clip: scores are clamped to [-logit_clip, logit_clip].
        lengths: (B,) integers; keys at and beyond them are masked, and outputs there are 0.
        dropout_p: probability in [0, 1) of dropping an attention weight.
        scale: factor of the scores; defaults to 1 / sqrt(D).
        backend: "sdpa", "triton" (CUDA), "eager", or None / "auto" for the first that can run the
            call: on CUDA "triton" with a window, biased sinks, a clip or lengths, else "sdpa".

    Returns:
        (B, L, H, D), dtype of q.

    Raises:
        ValueError: for shapes, dtypes, devices or options that do not fit.
        TypeError: for arguments that are not tensors, and a window or sink that is not an integer.
        RuntimeError: if the requested backend cannot run the call.
    """
    check_same(q, k, v)
    options = AttentionOptions(
        causal=causal,
        window=window,
        sink=sink,
        sink_bias=sink_bias,
        logit_clip=logit_clip,
        dropout_p=dropout_p,
        scale=scale_of(scale, q),
    )
    check_per_row("lengths", lengths, q)
    order = "attention" if options.plain and lengths is None else "masked_attention"
    run = choose("attention", backend, q.device, q, k, v, lengths, options, order_of=order).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, lengths, options)
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
    """Writes one timestep's key and value of every row into the cache and attends to the cached steps.

    Equal to the last position of `attention` over each row's last W steps (the new one included), W being the
    cache's size. So a cache of window + 1 slots suffices for a window without sinks. With `sink`, the result
    equals that over the whole history only while the history fits into the cache: a full ring overwrites the
    first positions, and the sinks are then the oldest positions that it still holds.

    The cache's lengths do not change: layers that share them call `RingCache.advance` once, after the last layer.
    Step under `torch.no_grad()` and train on whole sequences: gradients cannot pass through several steps, for
    each changes the cache in place.

    Args:
        q: queries (B, 1, H, D).
        k: keys, same shape.
        v: values, same shape.
        cache: changed in place; its rows are the rows of q. Its dtype may be another than that of q: new keys and
            values are rounded to it.
        window, sink, sink_bias, logit_clip, scale: as in `attention`, over the cached positions.
        rotary_base: if given, q and k are rotated first (Su et al. 2021, eq. 34): features i and i + D/2 by
            the angle position * rotary_base ** (-2 i / D). The cache holds rotated keys.
        positions: (B,) integers, the positions of the rotation; the cache's lengths by default.
        backend: "cpp" (CPU), "sdpa", "triton" and "cuda" (CUDA), "eager", or None / "auto" for the first that
            can run the call: "cpp" on a CPU, "triton" on CUDA.

    Returns:
        (B, 1, H, D), dtype of q.

    Raises:
        ValueError: for shapes, dtypes, devices or options that do not fit.
        TypeError: for arguments that are not tensors or no cache, and a window or sink that is not an integer.
        RuntimeError: if the requested backend cannot run the call.
    """
    check_same(q, k, v)
    options = StepOptions(
        window=window,
        sink=sink,
        sink_bias=sink_bias,
        logit_clip=logit_clip,
        scale=scale_of(scale, q),
        rotary_base=rotary_base,
    )
    check_cache(q, cache)
    check_rotary(q, rotary_base, positions)
    if rotary_base is not None and positions is None:
        positions = cache.lengths
    run = choose("attention_step", backend, q.device, q, k, v, cache, positions, options).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, cache, positions, options)
    return out


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    causal: bool = True,
    lengths: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """softmax(score_mod(scale * q k^T)) v over the positions that `mask_mod` makes visible.

    The functions have the signatures of `torch.nn.attention.flex_attention`. They are written for one query and
    one key, take tensors of one element, and are evaluated for all pairs at once, so they may use tensor
    operations only: `torch.where` instead of `if`. They may read other tensors, parameters too, by `table[h]`. A
    mask function must be pure: on a GPU its block mask is computed once per shape.

    Args:
        q: queries (B, L, H, D).
        k: keys, same shape.
        v: values, same shape.
        score_mod: `(score, b, h, q_idx, kv_idx)` -> the score to use instead; the scaled one by default.
        mask_mod: `(b, h, q_idx, kv_idx)` -> bool, whether the query attends to the key; all by default.
        causal: position i attends only to j <= i, whatever `mask_mod` returns.
        lengths: (B,) integers; keys at and beyond them are masked, and outputs there are 0.
        dropout_p: probability in [0, 1) of dropping an attention weight.
        scale: factor of the scores before `score_mod`; defaults to 1 / sqrt(D).
        backend: "flex" (CUDA), "sdpa" (without a score_mod), "eager", or None / "auto" for the first that can
            run the call. `SlidingWindow` and `ClippedSinks` run as the options of `attention` that they equal,
            by any of its backends.

    Returns:
        (B, L, H, D), dtype of q; 0 for a query without any visible key.

    Raises:
        ValueError: for shapes, dtypes or options that do not fit, and functions that cannot be evaluated.
        TypeError: for arguments that are not functions or tensors.
        RuntimeError: if the requested backend cannot run the call.
    """
    check_same(q, k, v)
    scale = scale_of(scale, q)
    check_per_row("lengths", lengths, q)
    options = FlexOptions(
        score_mod=score_mod, mask_mod=mask_mod, scale=scale, causal=causal, dropout_p=dropout_p
    )
    plain = as_options(score_mod, mask_mod)
    if plain is not None:
        return attention(
            q,
            k,
            v,
            causal=causal,
            lengths=lengths,
            dropout_p=dropout_p,
            scale=scale,
            backend=backend,
            **plain,
        )
    if q.numel() == 0:  # there is no position at which the functions could be evaluated
        return v.clone()
    run = choose("flex_attention", backend, q.device, q, k, v, lengths, options).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, lengths, options)
    return out


def flex_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    scale: float | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """`attention_step` with a score and a mask function.

    Positions are counted within a row's cached steps: the oldest one has position 0 and the new one
    min(steps taken, W - 1), W being the cache's size. So the result equals the last position of
    `flex_attention` over those steps.

    Args:
        q: queries (B, 1, H, D).
        k: keys, same shape.
        v: values, same shape.
        cache: changed in place; its lengths do not change (see `RingCache.advance`).
        score_mod, mask_mod, scale: as in `flex_attention`.
        backend: "sdpa" (without a score_mod), "eager", or None / "auto" for the first that can run it.

    Returns:
        (B, 1, H, D), dtype of q.

    Raises:
        ValueError: for shapes that do not fit, and functions that cannot be evaluated.
        TypeError: for arguments that are not functions or tensors.
        RuntimeError: if the requested backend cannot run the call.
    """
    check_same(q, k, v)
    options = FlexOptions(score_mod=score_mod, mask_mod=mask_mod, scale=scale_of(scale, q))
    check_cache(q, cache)
    plain = as_options(score_mod, mask_mod)
    if plain is not None:
        return attention_step(q, k, v, cache, scale=options.scale, backend=backend, **plain)
    run = choose("flex_attention_step", backend, q.device, q, k, v, cache, options).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, cache, options)
    return out
