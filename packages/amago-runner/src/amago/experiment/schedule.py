"""is_due: which epochs an interval selects."""

from __future__ import annotations

import math


def is_due(epoch: int, interval: int | float | None) -> bool:
    """Whether `epoch` is a multiple of `interval`; False if `interval` is None or infinite."""
    if interval is None or math.isinf(interval):
        return False
    return epoch % int(interval) == 0
