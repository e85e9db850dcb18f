"""The options of `attention_step`, as the public function hands them to its backends.

Shapes: B rows, W slots of a ring.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class StepOptions(NamedTuple):
    """The options of `amago.kernels.attention_step`, checked, with `scale` and, of rotary steps, positions given.

    Args:
        window, sink, sink_bias, logit_clip, scale: as there.
        rotary_base: as there; it counts with positions alone.
        positions: (B,) integers, None where nothing is rotated.
    """

    window: int | None
    sink: int
    sink_bias: float
    logit_clip: float | None
    scale: float
    rotary_base: float | None
    positions: Tensor | None

    @property
    def base(self) -> float:
        """`rotary_base` as kernels take it, 0 for none."""
        return 0.0 if self.rotary_base is None else self.rotary_base

    @property
    def biased(self) -> bool:
        """Whether the scores of sinks differ from others."""
        return self.sink > 0 and self.sink_bias != 0.0

    def most_seen(self, size: int) -> int:
        """How many of the W slots a step sees at most."""
        return size if self.window is None else min(size, self.window + 1 + self.sink)
