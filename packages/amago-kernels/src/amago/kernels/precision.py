"""In which precision kernels compute, and whether anyone follows what they do."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def accumulation_dtype(*tensors: Tensor | None) -> torch.dtype:
    """What sums, and states that are summed over time, are kept in: float64 if any tensor is, else float32."""
    wide = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether the result of these tensors is part of a graph."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def traced(*tensors: Tensor | None) -> bool:
    """Whether autograd or a compiler follows; if not, a call may go past torch's dispatcher (some 50 us)."""
    return torch.compiler.is_compiling() or needs_gradient(*tensors)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Within it autocast is off, and products keep the precision that the operands have."""
    available = torch.amp.is_autocast_available(device.type)  # not on the meta device, for example
    if not (available and torch.is_autocast_enabled(device.type)):
        return nullcontext()
    if not torch.is_autocast_enabled(device.type):  # entering the context costs more than to ask
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
