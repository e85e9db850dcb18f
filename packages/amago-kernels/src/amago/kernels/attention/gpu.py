"""Attention and its step on a GPU: the kernels in Triton and in CUDA C++ as torch operators.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from typing import Any

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.attention.cache import RingCache
from amago.kernels.attention.native import STEP_ARGUMENTS, fake_step
from amago.kernels.attention.options import AttentionOptions, StepOptions
from amago.kernels.operators import Operator, needs_gradient

MAX_HEAD_DIM = 128

# Whole sequences


def unsupported(q: Tensor, k: Tensor, v: Tensor, *_: object) -> list[str]:
    """Reasons why the Triton kernels cannot run a call on whole sequences."""
    reasons = triton_runtime.unsupported("q", q)
    if q.shape[-1] > MAX_HEAD_DIM:
        reasons.append(f"it takes heads up to {MAX_HEAD_DIM} wide, q's are {q.shape[-1]}")
    return reasons


def _forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, seed: Tensor | None, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Outputs (B, L, H, D), and log-sum-exps (B, H, L) for the backward pass."""
    kernels = importlib.import_module("amago.kernels.attention.triton_kernels")
    result: tuple[Tensor, Tensor] = kernels.forward(q, k, v, lengths, seed, options)
    return result


def _fake_forward(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows, length, heads = q.shape[:3]
    return q.new_empty(q.shape), q.new_empty((rows, heads, length), dtype=torch.float32)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    kernels = importlib.import_module("amago.kernels.attention.triton_backward")
    result: tuple[Tensor, Tensor, Tensor] = kernels.backward(grad, q, k, v, lengths, seed, out, lse, options)
    return result


def _fake_backward(grad: Tensor, q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? lengths, Tensor? seed"
attention_op = Operator(
    "gpu_attention", _forward, _INPUTS, "(Tensor, Tensor)", options=AttentionOptions, fake=_fake_forward
)
attention_backward_op = Operator(
    "gpu_attention_backward",
    _backward,
    f"Tensor grad, {_INPUTS}, Tensor out, Tensor lse",
    "(Tensor, Tensor, Tensor)",
    options=AttentionOptions,
    fake=_fake_backward,
)
attention_op.differentiate(attention_backward_op, keep=(0, 1), auxiliary=(1,))


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, options: AttentionOptions) -> Tensor:
    """See `amago.kernels.attention`."""
    seed = None
    if options.dropout_p > 0.0:  # drawn on the device: the host does not synchronise
        seed = torch.randint((1 << 31) - 1, (1,), device=q.device)
    if lengths is not None:
        lengths = lengths.to(device=q.device, dtype=torch.int32).contiguous()
    if options.scale < 0.0:  # the kernels find the largest score before they scale it
        q, options = -q, dataclasses.replace(options, scale=-options.scale)
    out: Tensor
    out, _ = attention_op(q, k, v, lengths, seed, options)
    return out


# Steps


def begins_at_sixteen(x: Tensor) -> bool:
    """Whether the address of x is a multiple of 16, so that 16 bytes can be read at once."""
    return x.data_ptr() % 16 == 0


def groups_of_heads(heads: int, most: int) -> int:
    """Neighbouring heads that one block computes: a power of two that divides H, at most `most` (one as well)."""
    return math.gcd(heads, most)


_BLOCKS_PER_PROCESSOR = 4  # enough to hide memory latency; more splits of a row cost more joining
_MOST_SPLITS = 64


@functools.cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 2 for Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def splits_of_slots(blocks: int, seen: int, least: int, device: torch.device) -> int:
    """The number of blocks that share the slots of a row, so that the GPU is busy.

    Args:
        blocks: programs or blocks without any split.
        seen: slots that a row attends to at most.
        least: slots of a split at least; fewer are not worth the joining.
        device: where it runs.
    """
    wanted = -(-_BLOCKS_PER_PROCESSOR * _processors(device) // blocks)
    return max(1, min(wanted, seen // least, _MOST_SPLITS))


def _not_in_sixteens(cache: RingCache) -> list[str]:
    """Reasons why the CUDA kernels, which read 16 bytes at a time, cannot read the cache."""
    numbers = 16 // cache.keys.element_size()
    for x in (cache.keys, cache.values):
        fits = x.stride(-1) == 1 and x.shape[-1] % numbers == 0
        if not fits or any(stride % numbers for stride in x.stride()[:3]):
            return [
                f"the cache's heads are not aligned to {numbers} numbers: {tuple(x.shape)}, strides {x.stride()}"
            ]
        if not torch.compiler.is_compiling() and not begins_at_sixteen(x):  # a compiler knows no addresses
            return [f"the cache begins at an address that 16 does not divide, {x.data_ptr():#x}"]
    return []


class GpuStep:
    """`attention_step` by one set of kernels.

    Args:
        kernels: "triton" or "cuda".
    """

    def __init__(self, kernels: str) -> None:
        self._kernels = kernels
        self.op = Operator(
            f"{kernels}_ring_attention",
            self._step,
            STEP_ARGUMENTS,
            "Tensor",
            options=StepOptions,
            fake=fake_step,
        )

    def unsupported(self, q: Tensor, k: Tensor, v: Tensor, cache: RingCache, *_: object) -> list[str]:
        """Reasons why the kernels cannot run a call."""
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

    def _step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        positions: Tensor | None,
        options: StepOptions,
    ) -> Tensor:
        """Writes k and v (B, H, D) into the cache and attends: (B, H, D)."""
        if positions is not None:
            positions = positions.contiguous()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if out.numel():
            cache = RingCache(keys, values, lengths.contiguous())
            name = "triton_step" if self._kernels == "triton" else "cuda_kernels"
            kernels = importlib.import_module(f"amago.kernels.attention.{name}")
            kernels.step(q, k, v, cache, out, positions, options)
        return out

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: RingCache,
        positions: Tensor | None,
        options: StepOptions,
    ) -> Tensor:
        """See `amago.kernels.attention_step`."""
        new = (x.select(1, 0) for x in (q, k, v))
        out: Tensor = self.op(*new, cache.keys, cache.values, cache.lengths, positions, options)
        return out.unsqueeze(1)
