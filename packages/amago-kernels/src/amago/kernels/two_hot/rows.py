"""How a GPU kernel walks over the rows of tensors that share their leading axes and have strides of their own.

Neighbouring axes that all tensors lay out alike are one axis to the kernel; a stride of 0 repeats a value, so that
what is broadcast is never copied. Three axes are enough for critics' logits beside targets that the critics share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

MAX_AXES = 3
Operands = Sequence[Tensor | None]  # of a kernel, None for one not given


@dataclass(frozen=True, slots=True)
class RowAxes:
    """The merged leading axes of several tensors, outermost first, padded in front by axes of size 1.

    Args:
        sizes: of the MAX_AXES axes.
        strides: for each tensor one stride per axis, in numbers; zeros for a tensor that is not given.
        count: how many of the axes, the innermost, are needed.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    count: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        product = 1
        for size in self.sizes:
            product *= size
        return product

    def evenly_spaced(self, tensor: int) -> bool:
        """Whether the rows of a tensor, given by its number, lie one after the other in equal distances."""
        distance = self.strides[tensor][-1]
        for size, stride in zip(reversed(self.sizes), reversed(self.strides[tensor]), strict=True):
            if size != 1 and stride != distance:
                return False
            distance *= size
        return True


def row_axes(shape: Sequence[int], tensors: Operands) -> RowAxes | None:
    """The merged axes of tensors that broadcast to `shape`; None if there are more than MAX_AXES.

    Args:
        shape: the leading axes of all.
        tensors: of that shape after broadcasting, or with further axes behind it; None for one not given. Rows
            go in the order in which the first one lies in memory.
    """
    strides = [_strides(x, shape) for x in tensors]
    order = sorted((i for i, size in enumerate(shape) if size != 1), key=lambda i: -strides[0][i])
    merged: list[tuple[int, list[int]]] = []
    for axis in order:
        size, inner = shape[axis], [s[axis] for s in strides]
        if merged and all(a == b * size for a, b in zip(merged[-1][1], inner, strict=True)):
            merged[-1] = (merged[-1][0] * size, inner)
        else:
            merged.append((size, inner))
    if len(merged) > MAX_AXES:
        return None
    padded = [(1, [0] * len(tensors))] * (MAX_AXES - len(merged)) + merged
    return RowAxes(
        sizes=tuple(size for size, _ in padded),
        strides=tuple(tuple(s[i] for _, s in padded) for i in range(len(tensors))),
        count=max(1, len(merged)),
    )


def _strides(x: Tensor | None, shape: Sequence[int]) -> Sequence[int]:
    """The strides of x along the leading axes."""
    if x is None:
        return [0] * len(shape)
    return x.stride()[: len(shape)]
