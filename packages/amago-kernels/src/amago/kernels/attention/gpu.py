"""Attention on a GPU: Triton's kernels as an operation that torch knows, and calls of it.

Shapes: B rows, L positions, H heads, D head dimension.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.precision import traced

MAX_HEAD_DIM = 128
_MAX_SPAN = (1 << 31) - 1


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`triton_kernels.forward`, imported by the first call."""
    found: tuple[Tensor, Tensor] = importlib.import_module("amago.kernels.attention.triton_kernels").forward(
        *arguments
    )
    return found


def unsupported(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> list[str]:
    """Why Triton's kernels cannot take these tensors; none if they can."""
    reasons = triton_runtime.unsupported("q", q)
    if q.shape[-1] > MAX_HEAD_DIM:
        reasons.append(f"it takes heads up to {MAX_HEAD_DIM} wide, q's are {q.shape[-1]}")
    if q[:1].numel() > _MAX_SPAN or any(_span(x) > _MAX_SPAN for x in (q, k, v)):
        reasons.append(f"one row, or a head of it, reaches over more than {_MAX_SPAN} numbers")
    return reasons


def _span(x: Tensor) -> int:
    """How far the last number of a row's head lies behind its first."""
    return (x.shape[1] - 1) * x.stride(1) + (x.shape[3] - 1) * x.stride(3)


@torch.library.custom_op("amago_kernels::gpu_attention", mutates_args=())
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    window: int | None,
    sink: int,
    sink_bias: float,
    logit_clip: float | None,
    dropout_p: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, L, H, D) and the logarithms of the sums of exponentials (B, H, L), which the gradient needs."""
    return _forward(q, k, v, lengths, seed, causal, window, sink, sink_bias, logit_clip, dropout_p, scale)


@attention_op.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows, length, heads = q.shape[:3]
    return q.new_empty(q.shape), q.new_empty((rows, heads, length), dtype=torch.float32)


@torch.library.custom_op("amago_kernels::gpu_attention_backward", mutates_args=())
def attention_backward_op(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    window: int | None,
    sink: int,
    sink_bias: float,
    logit_clip: float | None,
    dropout_p: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    if _span(grad) > _MAX_SPAN:
        grad = grad.contiguous()
    options = (causal, window, sink, sink_bias, logit_clip, dropout_p, scale)
    kernels = importlib.import_module("amago.kernels.attention.triton_backward")
    result: tuple[Tensor, Tensor, Tensor] = kernels.backward(grad, q, k, v, lengths, seed, out, lse, *options)
    return result


@attention_backward_op.register_fake
def _(grad: Tensor, q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.options = inputs[5:]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    grads = attention_backward_op(grad, *ctx.saved_tensors, *ctx.options)
    return *grads, *(None,) * 9


attention_op.register_autograd(_backward, setup_context=_setup_context)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    sink: int,
    sink_bias: float,
    logit_clip: float | None,
    lengths: Tensor | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """The whole-sequence form; see `amago.kernels.attention`."""
    seed = None
    if dropout_p > 0.0:  # drawn where it is used: the host does not wait for it
        seed = torch.randint(_MAX_SPAN, (1,), device=q.device)
    if lengths is not None:
        lengths = lengths.to(device=q.device, dtype=torch.int32).contiguous()
    if scale < 0.0:  # the kernels find the largest score before they scale it
        q, scale = -q, -scale
    options = (lengths, seed, causal, window, sink, sink_bias, logit_clip, dropout_p, scale)
    out: Tensor
    out, _ = attention_op(q, k, v, *options) if traced(q, k, v) else _forward(q, k, v, *options)
    return out
