"""Logits as rows in the order of their memory, the layout that the two-hot kernels read.

Critics' logits (..., n) are often a view whose axes lie in memory in another order. Rows in that order are not
copied; targets, masks and weights are copied to one number per row.

Shapes: R rows, n bins.
"""

from __future__ import annotations

import torch
from torch import Tensor


def memory_order(logits: Tensor) -> list[int]:
    """The leading axes of logits (..., n) by decreasing stride."""
    order: list[int] = []
    for axis in range(
        logits.dim() - 1
    ):  # torch.compile does not trace `sorted` with strides that it does not know
        outer = [other for other in order if logits.stride(other) >= logits.stride(axis)]
        order.insert(len(outer), axis)
    return order


def logits_to_rows(logits: Tensor, order: list[int]) -> Tensor:
    """Logits (..., n) as contiguous (R, n), a view if their memory is dense."""
    return logits.permute([*order, -1]).reshape(-1, logits.shape[-1]).contiguous()


def to_rows(x: Tensor, shape: torch.Size, order: list[int]) -> Tensor:
    """x, broadcastable to `shape`, as contiguous (R,) with its axes in that order."""
    return x.expand(shape).permute(order).reshape(-1).contiguous()


def from_rows(rows: Tensor, shape: torch.Size, order: list[int]) -> Tensor:
    """(R,) back to `shape`, contiguous."""
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return rows.view([shape[axis] for axis in order]).permute(inverse).contiguous()
