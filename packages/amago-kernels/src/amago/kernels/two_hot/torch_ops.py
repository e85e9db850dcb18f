"""The two-hot operations in torch without dense labels: log-sum-exp, and the few bins around each target.

Labels of either kind are zero, in float32, outside a short window of neighbouring bins. The loss gathers that
window from the logits, the gradient subtracts it from the softmax in place, and the labels of a target that
several critics share are computed once. On a CPU the passes over the logits go block by block, so that a block
stays in the cache from one pass to the next, and only the gradient is allocated at the size of the logits.

Shapes: n bins, w bins of a window, other leading axes are free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from amago.kernels.precision import accumulation_dtype
from amago.kernels.two_hot.bins import Bins

_BLOCK = 128 * 1024  # numbers of a block; half a megabyte in float32 stays in the cache of a core
_REACH = 6.0  # standard deviations beyond which a normal distribution is 0 in float32


def label_window(target: Tensor, bins: Bins, sigma: float | None) -> tuple[Tensor, Tensor]:
    """Labels of returns (...) and the bins that they belong to: index (..., w) and label (..., w)."""
    return _two_hot_window(target, bins) if sigma is None else _hl_gauss_window(target, bins, sigma)


def _two_hot_window(target: Tensor, bins: Bins) -> tuple[Tensor, Tensor]:
    """The two bins around each return and their labels: index (..., 2) and label (..., 2)."""
    position = bins.position(target)
    # NaN has no position on the support; its label is NaN, at any bin.
    first = position.nan_to_num(0.0).floor().clamp(max=bins.n - 2)
    upper = position - first
    label = torch.stack((1.0 - upper, upper), dim=-1)
    return _indices(first, 2), label


def _hl_gauss_window(target: Tensor, bins: Bins, sigma: float) -> tuple[Tensor, Tensor]:
    """The bins within reach of each return and their labels: index (..., w) and label (..., w)."""
    position = bins.position(target).unsqueeze(-1)
    # In float64 the tails beyond six standard deviations are not 0: there the window is the whole support.
    reach = bins.n if target.dtype == torch.float64 else math.ceil(_REACH * sigma + 0.5)
    size = min(bins.n, 2 * reach + 1)
    first = (position.nan_to_num(0.0).round() - reach).clamp(0, bins.n - size)  # (..., 1)
    edges = first + torch.arange(size + 1, dtype=position.dtype, device=position.device) - 0.5
    outer = torch.tensor((-0.5, bins.n - 0.5), dtype=position.dtype, device=position.device)
    scale = sigma * math.sqrt(2.0)
    total = torch.erf((outer - position) / scale).diff(dim=-1)
    label = torch.erf((edges - position) / scale).diff(dim=-1) / total
    return _indices(first.squeeze(-1), size), label


def _indices(first: Tensor, size: int) -> Tensor:
    """size neighbouring bins from `first` (...) on: int64 (..., size)."""
    return first.long().unsqueeze(-1) + torch.arange(size, device=first.device)


def _in_blocks(x: Tensor) -> bool:
    """Whether passes over x go block by block: on a CPU, unless torch.compile fuses them."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _memory_order(x: Tensor) -> tuple[int, ...]:
    """The axes of x by decreasing stride, the last axis always last."""
    strides = x.stride()
    return (*sorted(range(x.dim() - 1), key=strides.__getitem__, reverse=True), x.dim() - 1)


def _as_rows(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """x (..., n) as (rows, n) with the rows in that order of the axes; a view if possible."""
    return x.permute(order).reshape(-1, x.shape[-1])


def _per_row(x: Tensor, like: Tensor, order: tuple[int, ...]) -> Tensor:
    """x, broadcastable to like.shape[:-1], as (rows, 1) in the order of `_as_rows(like, order)`."""
    return _as_rows(x.expand(like.shape[:-1]).unsqueeze(-1), order)


def _blocks(rows: int, n: int) -> Iterator[slice]:
    """Slices of rows of n numbers each."""
    size = max(1, _BLOCK // n)
    return (slice(start, start + size) for start in range(0, rows, size))


def log_sum_exp(logits: Tensor) -> Tensor:
    """log sum_j exp(logits_j): (..., n) -> (...), in the accumulation dtype."""
    dtype = accumulation_dtype(logits)
    if not _in_blocks(logits):
        return torch.logsumexp(logits.to(dtype), dim=-1)
    order = _memory_order(logits)
    rows = _as_rows(logits, order)
    out = torch.empty(rows.shape[0], dtype=dtype, device=logits.device)
    for block in _blocks(*rows.shape):
        torch.logsumexp(rows[block].to(dtype), dim=-1, out=out[block])
    return _unflatten(out, logits, order)


def _unflatten(per_row: Tensor, like: Tensor, order: tuple[int, ...]) -> Tensor:
    """(rows,) in the order of `_as_rows(like, order)` back to like.shape[:-1]."""
    lead = order[:-1]
    back = sorted(range(len(lead)), key=lead.__getitem__)
    return per_row.view([like.shape[axis] for axis in lead]).permute(back)


def _to_fill(like: Tensor, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """An uninitialised tensor of that shape, and its memory as rows (rows, n) in that order of the axes."""
    memory = like.new_empty([like.shape[axis] for axis in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    return memory.permute(back), memory.view(-1, like.shape[-1])


def _loss_gradient(logits: Tensor, lse: Tensor, index: Tensor, label: Tensor, grad: Tensor) -> Tensor:
    """grad * (softmax(logits) - labels), (..., n), rounded once; `lse` and `grad` (...), the window (..., w)."""
    share = label * -grad.unsqueeze(-1)
    if not _in_blocks(logits):
        p = torch.exp(logits.to(lse.dtype) - lse.unsqueeze(-1)) * grad.unsqueeze(-1)
        return p.scatter_add_(-1, index, share).to(logits.dtype)
    order = _memory_order(logits)
    out, outs = _to_fill(logits, order)
    rows, indices, shares = (_as_rows(x, order) for x in (logits, index, share))
    lses, scales = _per_row(lse, logits, order), _per_row(grad, logits, order)
    for block in _blocks(*rows.shape):
        p = torch.sub(rows[block], lses[block]).exp_().mul_(scales[block])
        outs[block] = p.scatter_add_(-1, indices[block], shares[block])
    return out


def expectation(logits: Tensor, values: Tensor) -> Tensor:
    """sum_j softmax(logits)_j values_j: (..., n) and (n,) -> (...), in the accumulation dtype."""
    if not _in_blocks(logits):
        return (torch.softmax(logits.to(values.dtype), dim=-1) * values).sum(dim=-1)
    order = _memory_order(logits)
    rows = _as_rows(logits, order)
    out = torch.empty(rows.shape[0], dtype=values.dtype, device=logits.device)
    for block in _blocks(*rows.shape):
        probs = torch.softmax(rows[block].to(values.dtype), dim=-1)
        torch.sum(probs.mul_(values), dim=-1, out=out[block])
    return _unflatten(out, logits, order)


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, logits: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("two-hot operations have second derivatives with backend='eager' only")


def _differentiable_once(gradient: Tensor, logits: Tensor) -> Tensor:
    """The gradient; differentiating it (after `create_graph=True`) is an error."""
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and logits.requires_grad):
        return gradient
    once: Tensor = _Once.apply(gradient, logits)  # type: ignore[no-untyped-call]
    return once


class _WindowedCrossEntropy(torch.autograd.Function):
    """scale * (log-sum-exp of the logits - sum of label * logit over the window), row by row."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        index: Tensor,
        label: Tensor,
        mask: Tensor | None,
        weight: Tensor | None,
    ) -> Tensor:
        lse = log_sum_exp(logits)
        index = index.expand(*logits.shape[:-1], -1)
        likely = (logits.gather(-1, index).to(lse.dtype) * label).sum(dim=-1)
        loss = lse - likely
        if weight is not None:
            loss = loss * weight.to(lse.dtype)
        if mask is not None:
            loss = torch.where(mask, loss, torch.zeros_like(loss))
        ctx.save_for_backward(logits, lse, index, label, mask, weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, lse, index, label, mask, weight = ctx.saved_tensors
        with torch.no_grad():
            if weight is not None:
                grad = grad * weight.to(lse.dtype)
            if mask is not None:
                grad = torch.where(mask, grad, torch.zeros_like(grad))
            grad = grad + 0.0 * label.sum(dim=-1)  # a NaN target makes the whole row NaN
            out = _loss_gradient(logits, lse, index, label, grad)
            if mask is not None:
                # Masked rows may hold anything, and 0 * inf = NaN.
                out.masked_fill_(~mask.unsqueeze(-1), 0.0)
        return _differentiable_once(out, logits), None, None, None, None


class _Mean(torch.autograd.Function):
    """The expected support point, row by row; d mean / d logit_j = p_j (value_j - mean)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor) -> Tensor:
        mean = expectation(logits, values)
        ctx.save_for_backward(logits, values, mean)
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, values, mean = ctx.saved_tensors
        with torch.no_grad():
            out = _mean_gradient(logits, values, mean, grad)
        return _differentiable_once(out, logits), None


def _mean_gradient(logits: Tensor, values: Tensor, mean: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `expectation` with respect to the logits (..., n), given that of the means (...)."""
    if not _in_blocks(logits):
        probs = torch.softmax(logits.to(values.dtype), dim=-1)
        out = probs * (values - mean.unsqueeze(-1)) * grad.unsqueeze(-1)
        return out.to(logits.dtype)
    order = _memory_order(logits)
    result, outs = _to_fill(logits, order)
    rows = _as_rows(logits, order)
    means, grads = _per_row(mean, logits, order), _per_row(grad, logits, order)
    for block in _blocks(*rows.shape):
        probs = torch.softmax(rows[block].to(values.dtype), dim=-1)
        outs[block] = probs.mul_(values - means[block]).mul_(grads[block])
    return result


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    bins: Bins,
    mask: Tensor | None,
    weight: Tensor | None,
    sigma: float | None,
) -> Tensor:
    """See `amago.kernels.hl_gauss_cross_entropy`; `two_hot_cross_entropy` if sigma is None."""
    window = label_window(target.detach().to(accumulation_dtype(logits)), bins, sigma)
    weight = None if weight is None else weight.detach()
    loss: Tensor = _WindowedCrossEntropy.apply(logits, *window, mask, weight)  # type: ignore[no-untyped-call]
    return loss


def mean(logits: Tensor, bins: Bins) -> Tensor:
    """See `amago.kernels.two_hot_mean`."""
    values = bins.points(accumulation_dtype(logits), logits.device)
    result: Tensor = _Mean.apply(logits, values)  # type: ignore[no-untyped-call]
    return bins.returns(result)
