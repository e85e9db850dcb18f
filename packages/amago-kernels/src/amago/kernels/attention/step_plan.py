"""How the GPU kernels of `attention_step` share out the work.

Shapes: H heads.
"""

from __future__ import annotations

import functools
import math

import torch

_BLOCKS_PER_PROCESSOR = 4  # enough to hide the waiting for memory; more shares of a row cost more joining
_MOST_SPLITS = 64


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
