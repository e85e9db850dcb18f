"""Samples of unequal length become one padded batch, with a single allocation for each key.

Shapes: B sequences, T transitions of the longest one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from amago.agent.batch import Batch
from amago.loading.sample import RLData
from amago.nets.masking import MAGIC_PAD_VAL

Array = NDArray[Any]


def RLData_pad_collate(samples: Sequence[RLData]) -> Batch:
    """Pads samples at their ends to the longest one and stacks them.

    Padding holds 4.0 everywhere, in integer arrays too, and True in `dones`. The batch carries the lengths
    (real timesteps of each row) and the places of the real transitions in the flattened (B * T).

    Raises:
        ValueError: if there is no sample, or if the samples' observations differ in keys, shape or dtype.
    """
    if not samples:
        raise ValueError("samples must hold at least one RLData, not none")
    keys = samples[0].obs.keys()
    for sample in samples:
        if sample.obs.keys() != keys:
            raise ValueError(
                "samples must have the same observation keys; "
                f"one has {sorted(keys)}, another {sorted(sample.obs)}"
            )
    transitions = [len(sample) for sample in samples]
    longest = max(transitions)

    def stack(name: str, read: Callable[[RLData], Array], rows: int, filler: float | bool) -> torch.Tensor:
        return torch.from_numpy(_pad(name, [read(sample) for sample in samples], rows, filler))

    real = np.array(transitions, dtype=np.int64)
    return Batch(
        obs={
            key: stack(f"obs[{key!r}]", lambda s, k=key: s.obs[k], longest + 1, MAGIC_PAD_VAL)  # type: ignore[misc]
            for key in keys
        },
        rl2s=stack("rl2s", lambda s: s.rl2s, longest + 1, MAGIC_PAD_VAL),
        rews=stack("rews", lambda s: s.rews, longest, MAGIC_PAD_VAL),
        dones=stack("dones", lambda s: s.dones, longest, True),
        actions=stack("actions", lambda s: s.actions, longest, MAGIC_PAD_VAL),
        time_idxs=stack("time_idxs", lambda s: s.time_idxs, longest + 1, MAGIC_PAD_VAL),
        lengths=torch.from_numpy(real + 1),
        flat_idxs=torch.from_numpy(np.flatnonzero(np.arange(longest) < real[:, None])),
    )


def _pad(name: str, arrays: list[Array], rows: int, filler: float | bool) -> Array:
    """Stacks (t, ...) arrays into (B, rows, ...), the missing rows holding `filler`."""
    first = arrays[0]
    out = np.empty((len(arrays), rows, *first.shape[1:]), dtype=first.dtype)
    for padded, array in zip(out, arrays, strict=True):
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise ValueError(
                f"{name} must have one shape and dtype in all samples; one is {first.dtype} {first.shape[1:]}, "
                f"another {array.dtype} {array.shape[1:]}"
            )
        real = len(array)
        padded[:real] = array
        if real < rows:
            padded[real:] = filler
    return out
