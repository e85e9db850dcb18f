"""Attention whose scores and visibility are changed by functions of the caller.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from amago.kernels.attention import flex_dense, flex_torch
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.checks import check_cache, check_same, check_scale, check_sequence
from amago.kernels.attention.mods import MaskMod, ScoreMod, as_options
from amago.kernels.attention.plain import attention, attention_step
from amago.kernels.backends import Backend, Implementation, choose, register
from amago.kernels.precision import full_precision

register(
    "flex_attention",
    [
        Implementation(
            Backend.FLEX, flex_torch.flex_attention, flex_torch.unsupported, flex_torch.CudaAndTriton()
        ),
        Implementation(Backend.SDPA, flex_dense.sdpa_attention, flex_dense.sdpa_unsupported),
        Implementation(Backend.EAGER, flex_dense.attention),
    ],
)
register(
    "flex_attention_step",
    [
        Implementation(Backend.SDPA, flex_dense.sdpa_step, flex_dense.sdpa_unsupported),
        Implementation(Backend.EAGER, flex_dense.step),
    ],
)


def _check_functions(**functions: Any) -> None:
    """Raises TypeError for what is neither None nor callable."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be None or a function, got {function!r}")


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
    """softmax(score_mod(scale * q k^T)) v over the positions that `mask_mod` lets each query see.

    The functions have the signatures of `torch.nn.attention.flex_attention`. They are written for one query and
    one key, take tensors of one element, and are evaluated for all pairs at once: tensor operations alone,
    `torch.where` in place of `if`. They may read other tensors, parameters too, by `table[h]`. What a mask
    function answers must not change from call to call: on a GPU its blocks are worked out once per shape.

    Args:
        q: queries (B, L, H, D).
        k: keys, same shape.
        v: values, same shape.
        score_mod: `(score, b, h, q_idx, kv_idx)` -> the score to use instead; the scaled one by default.
        mask_mod: `(b, h, q_idx, kv_idx)` -> bool, whether the query sees the key; all by default.
        causal: position i sees only j <= i, whatever `mask_mod` says.
        lengths: (B,) integers; keys at and beyond them are not seen, and outputs there are 0.
        dropout_p: probability in [0, 1) of dropping an attention weight.
        scale: of the scores before `score_mod`; 1 / sqrt(D) by default.
        backend: "flex" (CUDA), "sdpa" (without a score_mod), "eager", or None / "auto" for the fastest that can
            run the call. Functions that say what an option of `attention` says (`SlidingWindow`,
            `ClippedSinks`) run as that, by any of its backends.

    Returns:
        (B, L, H, D), dtype of q. A query that sees nothing gets 0.

    Raises:
        ValueError: for shapes, dtypes or options that do not fit, and functions that cannot be evaluated.
        TypeError: for functions and tensors that are none.
        RuntimeError: if the backend that was asked for cannot run the call.
    """
    check_same(q, k, v)
    check_scale(scale)
    check_sequence(q, lengths, dropout_p)
    _check_functions(score_mod=score_mod, mask_mod=mask_mod)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    shared: dict[str, Any] = {"causal": causal, "lengths": lengths, "dropout_p": dropout_p, "scale": scale}
    plain = as_options(score_mod, mask_mod)
    if plain is not None:
        return attention(q, k, v, backend=backend, **plain, **shared)
    if q.numel() == 0:  # there is no position at which the functions could be evaluated
        return v.clone()
    shared |= {"score_mod": score_mod, "mask_mod": mask_mod}
    run = choose("flex_attention", backend, q, k, v, **shared).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, **shared)
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

    Positions are counted within what a row's cache remembers: its oldest step has position 0 and the new one
    min(steps taken, W - 1), W being the cache's size. So the result equals the last position of
    `flex_attention` over those steps, whichever slots they lie in and however far the other rows are.

    Args:
        q: queries (B, 1, H, D).
        k: keys, same shape.
        v: values, same shape.
        cache: changed in place; its lengths do not move (see `RingCache.advance`).
        score_mod, mask_mod, scale: as in `flex_attention`.
        backend: "sdpa" (without a score_mod), "eager", or None / "auto" for the fastest that can run it.

    Returns:
        (B, 1, H, D), dtype of q.

    Raises:
        ValueError: for shapes that do not fit, and functions that cannot be evaluated.
        TypeError: for functions and tensors that are none.
        RuntimeError: if the backend that was asked for cannot run the call.
    """
    check_same(q, k, v)
    check_scale(scale)
    check_cache(q, cache)
    _check_functions(score_mod=score_mod, mask_mod=mask_mod)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    plain = as_options(score_mod, mask_mod)
    if plain is not None:
        return attention_step(q, k, v, cache, scale=scale, backend=backend, **plain)
    options = {"score_mod": score_mod, "mask_mod": mask_mod, "scale": scale}
    run = choose("flex_attention_step", backend, q, k, v, cache, **options).run
    with full_precision(q.device):
        out: Tensor = run(q, k, v, cache, **options)
    return out
