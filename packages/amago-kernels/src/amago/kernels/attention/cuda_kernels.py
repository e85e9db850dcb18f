"""`attention_step` in CUDA C++: launches csrc/attention_step.cu with the arguments of `triton_step`."""

from __future__ import annotations

import functools
import math
from types import ModuleType

import torch
from torch import Tensor

from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.gpu import begins_at_sixteen, groups_of_heads, splits_of_slots
from amago.kernels.attention.options import StepOptions
from amago.kernels.native import ATTENTION_STEP_CUDA, DTYPES

_AHEAD = 4  # slots that a lane prefetches


@functools.cache
def _frequencies(base: float, dim: int) -> list[float]:
    """Rotation of each pair of features per position, in radians."""
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def _operand(x: Tensor) -> tuple[int, tuple[int, int, int]]:
    """Address and strides of rows, slots (0 without) and heads."""
    row, *slot, head, _ = x.stride()
    return x.data_ptr(), (row, slot[0] if slot else 0, head)


def launch(
    module: ModuleType,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    out: Tensor,
    positions: Tensor | None,
    options: StepOptions,
    stream: int,
) -> None:
    """Runs the kernels of `module` on a stream of the current device; arguments as in `step`.

    Raises:
        ValueError: for a cache that is not aligned to 16 bytes; only compiled calls reach this.
    """
    keys, values = cache.keys, cache.values
    for name, x in (("keys", keys), ("values", values)):
        if not begins_at_sixteen(x):
            raise ValueError(f"the cache's {name} begin at an address that 16 does not divide: clone them")
    rows, size, heads, dim = keys.shape
    cached = DTYPES[keys.dtype]
    most = module.most_heads(dim, cached)
    group = groups_of_heads(heads, most)
    least = 2 * _AHEAD * (most // group)  # two turns of the loop
    splits = splits_of_slots(rows * (heads // group), options.most_seen(size), least, keys.device)
    parts: tuple[Tensor, ...] = ()
    if splits > 1:
        shape = (rows, heads, splits)
        parts = tuple(out.new_empty(s, dtype=torch.float32) for s in (shape, shape, (*shape, dim)))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if positions is not None:
        positions = positions.to(torch.int64)
    addresses = [0 if x is None else x.data_ptr() for x in (cache.lengths, positions, out, *parts)]
    module.run(
        cached,
        DTYPES[q.dtype],
        (rows, size, heads, dim, group, splits),
        [_operand(x) for x in (q, k, v, keys, values)],
        [*addresses, *(0,) * (6 - len(addresses))],
        (-1 if options.window is None else min(options.window, size), min(options.sink, size)),
        (options.sink_bias, math.inf if options.logit_clip is None else options.logit_clip, options.scale),
        _frequencies(options.rotary_base or 0.0, dim) if positions is not None else [],
        stream,
    )


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: RingCache,
    out: Tensor,
    positions: Tensor | None,
    options: StepOptions,
) -> None:
    """Fills `out` (B, H, D), contiguous, and writes k and v (B, H, D) into the cache; B and H are not 0."""
    module = ATTENTION_STEP_CUDA.load()
    with torch.cuda.device(q.device):
        stream = torch.cuda.current_stream().cuda_stream
        launch(module, q, k, v, cache, out, positions, options, stream)
