"""`attention_step` in C++ on the CPU: csrc/attention_step.cpp behind a torch custom operator.

Shapes: B rows, W slots of the cache, H heads, D head dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.step_options import StepOptions
from amago.kernels.native import ATTENTION_STEP, DTYPES, operand
from amago.kernels.precision import needs_gradient


def unsupported(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, *_: object) -> list[str]:
    """Why the call cannot run: tensors elsewhere than on the CPU, another dtype, or gradients."""
    reasons = []
    if q.device.type != "cpu" or cache.keys.device.type != "cpu":
        reasons.append(f"q is on {q.device} and the cache on {cache.keys.device}, not both on the CPU")
    if cache.keys.dtype not in DTYPES or cache.values.dtype != cache.keys.dtype:
        names = ", ".join(DTYPES.values())
        reasons.append(f"the cache is {cache.keys.dtype} and {cache.values.dtype}, not one of {names}")
    if q.dtype not in DTYPES:
        reasons.append(f"q is {q.dtype}, not one of {', '.join(DTYPES.values())}")
    if needs_gradient(q, k, v, cache.keys, cache.values):
        reasons.append("it has no gradient, and an input needs one")
    if cache.keys.stride(-1) != 1 or cache.values.stride(-1) != 1:
        reasons.append("the numbers of a head do not lie side by side in the cache")
    return reasons


def _attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    positions: Tensor | None,
    rotary_base: float,
    window: int,
    sink: int,
    sink_bias: float,
    logit_clip: float,
    scale: float,
) -> Tensor:
    """Writes k and v (B, 1, H, D) into the cache and attends: (B, 1, H, D).

    Without positions q and k stay as they are; a negative window is none.
    """
    lengths = lengths.contiguous()
    if positions is not None:
        positions = positions.to(torch.int64).contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype)
    ATTENTION_STEP.load().attention_step(
        DTYPES[q.dtype],
        DTYPES[keys.dtype],
        *keys.shape,
        *(operand(x) for x in (q, k, v, keys, values)),
        lengths.data_ptr(),
        0 if positions is None else positions.data_ptr(),
        rotary_base,
        out.data_ptr(),
        window,
        sink,
        sink_bias,
        logit_clip,
        scale,
        torch.get_num_threads(),
    )
    return out


ring_attention = torch.library.custom_op(
    "amago_kernels::ring_attention", _attention_step, mutates_args=("keys", "values"), device_types="cpu"
)


@ring_attention.register_fake
def _(q: Tensor, *_: Tensor | float | None) -> Tensor:
    return q.new_empty(q.shape)


def attention_step(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, options: StepOptions) -> Tensor:
    """See `amago.kernels.attention_step`."""
    # Past torch's dispatcher, which costs as much as a small step, unless a compiler looks.
    run = ring_attention if torch.compiler.is_compiling() else _attention_step
    return run(
        q,
        k,
        v,
        cache.keys,
        cache.values,
        cache.lengths,
        options.positions,
        options.base,
        -1 if options.window is None else options.window,
        options.sink,
        options.sink_bias,
        math.inf if options.logit_clip is None else options.logit_clip,
        options.scale,
    )
