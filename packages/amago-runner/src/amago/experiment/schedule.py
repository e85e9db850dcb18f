"""Schedules: which epochs an interval selects, and the learning-rate warm-up."""

from __future__ import annotations

import math

from torch.optim import Optimizer


def is_due(epoch: int, interval: int | float | None) -> bool:
    """Whether `epoch` is a multiple of `interval`; False if `interval` is None or infinite."""
    if interval is None or math.isinf(interval):
        return False
    return epoch % int(interval) == 0


class WarmupSchedule:
    """Linear warm-up to a constant learning rate: the factor of update t (from 0) is min(1, t / warmup_steps).

    The rate depends only on the number of updates, so it needs no checkpoint and does not advance once per
    data-parallel process.

    Args:
        optimizer: Its current learning rates are the rates after the warm-up.
        warmup_steps: Updates until the full rate is reached; 0 for a constant rate.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int) -> None:
        self._optimizer = optimizer
        self._warmup_steps = warmup_steps
        self._full_rates = [float(group["lr"]) for group in optimizer.param_groups]

    def apply(self, step: int) -> None:
        """Sets the learning rates for update number `step`."""
        factor = min(1.0, step / self._warmup_steps) if self._warmup_steps > 0 else 1.0
        for group, rate in zip(self._optimizer.param_groups, self._full_rates, strict=True):
            group["lr"] = rate * factor

    def get_last_lr(self) -> list[float]:
        """The current learning rate of each parameter group, as torch's schedulers return it."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]
