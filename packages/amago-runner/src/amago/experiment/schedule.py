"""What is due in which epoch, and how the learning rate moves."""

from __future__ import annotations

import math

from torch.optim import Optimizer


def is_due(epoch: int, interval: int | float | None) -> bool:
    """Whether something that happens every `interval` epochs, epoch 0 included, happens in `epoch`."""
    if interval is None or math.isinf(interval):
        return False
    return epoch % int(interval) == 0


def warmup_factor(step: int, warmup_steps: int) -> float:
    """min(1, step / warmup_steps): linear from 0, so that the first update has rate 0, then constant."""
    if warmup_steps <= 0:
        return 1.0
    return min(1.0, step / warmup_steps)


class WarmupSchedule:
    """Sets an optimizer's learning rates as a function of the number of updates done, and of nothing else.

    Having no state of its own it cannot drift from the counters after a resume, nor advance once per process.

    Args:
        optimizer: its learning rates at construction are those after the warm-up.
        warmup_steps: updates until the full rate is reached.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int) -> None:
        self._optimizer = optimizer
        self._warmup_steps = warmup_steps
        self._full_rates = [float(group["lr"]) for group in optimizer.param_groups]

    def apply(self, step: int) -> float:
        """Sets the rates of update number `step` (from 0); returns the first group's."""
        factor = warmup_factor(step, self._warmup_steps)
        for group, rate in zip(self._optimizer.param_groups, self._full_rates, strict=True):
            group["lr"] = rate * factor
        return self._full_rates[0] * factor
