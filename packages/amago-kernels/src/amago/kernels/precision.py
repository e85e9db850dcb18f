"""The precision that kernels compute in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def accumulation_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype of sums and of states carried over time: float64 if any tensor is, else float32."""
    wide = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Context without autocast: products keep the precision of their operands."""
    available = torch.amp.is_autocast_available(device.type)  # not on the meta device, for example
    if not (
        available and torch.is_autocast_enabled(device.type)
    ):  # asking costs less than entering the context
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
