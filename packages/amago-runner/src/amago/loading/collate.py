"""Windows of unequal length become one padded batch, written straight into a single piece of memory.

Shapes: B sequences, T transitions of the longest one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amago.agent.batch import Batch
from amago.loading.packing import Allocate, PackedBatch, Part, private_memory
from amago.loading.sample import RLData
from amago.loading.windows import MemoryWindow, Spec, Window
from amago.nets.masking import MAGIC_PAD_VAL


class UnlikeSamplesError(ValueError):
    """Samples differ in their observation keys, or in the shape or dtype of an array, and fit no common batch."""


_INT64 = np.dtype(np.int64)


def RLData_pad_collate(samples: Sequence[RLData]) -> Batch:
    """Pads samples at their ends to the longest one and stacks them.

    Padding holds 4.0 everywhere, in integer arrays too, and True in `dones`. The batch carries the lengths
    (real timesteps of each row) and the places of the real transitions in the flattened (B * T). Its tensors lie
    in one piece of memory.

    Raises:
        ValueError: if there is no sample.
        UnlikeSamplesError: a ValueError, if the samples' arrays differ in keys, shape or dtype.
    """
    return pad_into([MemoryWindow.of(sample) for sample in samples], private_memory).unpack()


def pad_into(windows: Sequence[Window], allocate: Allocate) -> PackedBatch:
    """The same from windows, into memory that `allocate` makes.

    Raises:
        ValueError, UnlikeSamplesError: as `RLData_pad_collate`.
        WindowLostError: if the file of a window is gone or damaged.
    """
    packed, arrays = _allocated(windows, allocate)
    *targets, lengths, places = arrays
    transitions = [len(window) for window in windows]
    longest = max(transitions)
    for row, (window, steps) in enumerate(zip(windows, transitions, strict=True)):
        window.write_to(targets, row)
        if steps < longest:
            for target, field in zip(targets, window.spec, strict=True):
                is_dones = field.name == "dones" and not field.is_obs
                target[row, steps + field.extra_rows :] = True if is_dones else MAGIC_PAD_VAL
    lengths[:] = transitions
    if min(transitions) == longest:
        places[:] = np.arange(places.size)
    else:
        places[:] = np.flatnonzero(np.arange(longest) < lengths[:, None])
    lengths += 1
    return packed


def _allocated(windows: Sequence[Window], allocate: Allocate) -> tuple[PackedBatch, list[NDArray[Any]]]:
    if not windows:
        raise ValueError("samples must hold at least one RLData, not none")
    spec = windows[0].spec
    for window in windows:
        if window.spec is not spec:
            _refuse_to_mix(spec, window.spec)
    rows, transitions = len(windows), [len(window) for window in windows]
    parts = [
        Part(f.name, f.is_obs, f.dtype, (rows, max(transitions) + f.extra_rows, *f.row_shape)) for f in spec
    ]
    parts.append(Part("lengths", False, _INT64, (rows,)))
    parts.append(Part("flat_idxs", False, _INT64, (sum(transitions),)))
    packed = PackedBatch.empty(parts, allocate)
    return packed, packed.arrays()


def _refuse_to_mix(first: Spec, other: Spec) -> None:
    keys, other_keys = ([field.name for field in spec if field.is_obs] for spec in (first, other))
    if keys != other_keys:
        raise UnlikeSamplesError(
            f"samples must have the same observation keys; one has {sorted(keys)}, another {sorted(other_keys)}"
        )
    for a, b in zip(first, other, strict=True):
        if a != b:
            raise UnlikeSamplesError(
                f"{a} must have one shape and dtype in all samples; one is {a.dtype} {a.row_shape}, "
                f"another {b.dtype} {b.row_shape}"
            )
