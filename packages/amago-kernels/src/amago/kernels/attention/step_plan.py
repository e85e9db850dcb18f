"""What the GPU kernels of `attention_step` are told, and how they share out the work.

Shapes: H heads, W slots of a ring.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

_BLOCKS_PER_PROCESSOR = 4  # enough to hide the waiting for memory; more shares of a row cost more joining
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The options of `amago.kernels.attention_step`, with `scale` given; `rotary_base` counts with positions."""

    window: int | None
    sink: int
    sink_bias: float
    logit_clip: float | None
    scale: float
    rotary_base: float

    @property
    def biased(self) -> bool:
        """Whether the scores of sinks differ from others."""
        return self.sink > 0 and self.sink_bias != 0.0

    def most_seen(self, size: int) -> int:
        """How many of the W slots a step sees at most."""
        return size if self.window is None else min(size, self.window + 1 + self.sink)


def begins_at_sixteen(x: torch.Tensor) -> bool:
    """Whether 16 bytes can be read at once where x begins: the address is a multiple of 16."""
    return x.data_ptr() % 16 == 0


def groups_of_heads(heads: int, most: int) -> int:
    """How many neighbouring heads one block takes: a power of two that divides H, at most `most` (one as well)."""
    return math.gcd(heads, most)


@functools.cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few where an interpreter stands in for one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def splits_of_slots(blocks: int, seen: int, least: int, device: torch.device) -> int:
    """Into how many shares the slots of a row are divided, of `least` slots or more, so that the GPU is busy.

    Args:
        blocks: programs or blocks without any division.
        seen: how many slots a row sees at most.
        least: a share of fewer is not worth the joining.
        device: where it runs.
    """
    wanted = -(-_BLOCKS_PER_PROCESSOR * _processors(device) // blocks)
    return max(1, min(wanted, seen // least, _MOST_SPLITS))
