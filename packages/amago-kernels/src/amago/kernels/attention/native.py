"""`attention_step` in C++ on the CPU: csrc/attention_step.cpp as a torch operator.

Shapes: B rows, W slots of the cache, H heads, D head dimension.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.options import StepOptions
from amago.kernels.native import ATTENTION_STEP, DTYPES, operand
from amago.kernels.operators import Operator, needs_gradient

STEP_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor lengths, Tensor? positions"
)


def unsupported(q: Tensor, k: Tensor, v: Tensor, cache: RingCache, *_: object) -> list[str]:
    """Reasons why it cannot run the call: the device, a dtype, the cache's layout, or gradients."""
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
        reasons.append("the features of a head are not contiguous in the cache")
    return reasons


def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    positions: Tensor | None,
    options: StepOptions,
) -> Tensor:
    """Writes k and v (B, 1, H, D) into the cache and attends: (B, 1, H, D)."""
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
        options.rotary_base or 0.0,
        out.data_ptr(),
        -1 if options.window is None else options.window,
        options.sink,
        options.sink_bias,
        math.inf if options.logit_clip is None else options.logit_clip,
        options.scale,
        torch.get_num_threads(),
    )
    return out


def fake_step(q: Tensor, *_: Any) -> Tensor:
    """A contiguous tensor like q."""
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


ring_attention = Operator(
    "ring_attention",
    _step,
    STEP_ARGUMENTS,
    "Tensor",
    options=StepOptions,
    fake=fake_step,
    device="cpu",
)


def attention_step(
    q: Tensor, k: Tensor, v: Tensor, cache: RingCache, positions: Tensor | None, options: StepOptions
) -> Tensor:
    """See `amago.kernels.attention_step`."""
    out: Tensor = ring_attention(q, k, v, cache.keys, cache.values, cache.lengths, positions, options)
    return out
