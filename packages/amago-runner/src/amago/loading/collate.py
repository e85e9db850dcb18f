"""Collate function: pads training samples of unequal length and stacks them into a `Batch`.

Shapes: B sequences, T transitions of the longest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amago.agent.batch import Batch
from amago.loading.rl_data import RLData
from amago.nets.masking import MAGIC_PAD_VAL

Array = NDArray[Any]


def RLData_pad_collate(samples: Sequence[RLData]) -> Batch:
    """Pads samples at the end to the length of the longest one and stacks them.

    Padding is 4.0 everywhere, in integer arrays too, and True in `dones`. The batch also holds the number of real
    timesteps of each row (`lengths`) and the flat indices of real transitions in (B * T) (`flat_idxs`).

    Raises:
        ValueError: if there is no sample, or the samples' arrays differ in keys, shape or dtype.
    """
    if not samples:
        raise ValueError("samples must hold at least one RLData, not none")
    transitions = np.array([len(sample) for sample in samples])
    longest = int(transitions.max())
    keys = samples[0].obs.keys()
    for sample in samples:
        if sample.obs.keys() != keys:
            raise ValueError(
                f"samples must have the same observation keys; one has {sorted(keys)}, "
                f"another {sorted(sample.obs)}"
            )
    return Batch(
        obs={
            key: _pad_and_stack(f"obs[{key!r}]", [sample.obs[key] for sample in samples], longest + 1)
            for key in keys
        },
        rl2s=_pad_and_stack("rl2s", [sample.rl2s for sample in samples], longest + 1),
        time_idxs=_pad_and_stack("time_idxs", [sample.time_idxs for sample in samples], longest + 1),
        rews=_pad_and_stack("rews", [sample.rews for sample in samples], longest),
        dones=_pad_and_stack("dones", [sample.dones for sample in samples], longest, padding=True),
        actions=_pad_and_stack("actions", [sample.actions for sample in samples], longest),
        lengths=torch.from_numpy(transitions + 1),
        flat_idxs=torch.from_numpy(np.flatnonzero(np.arange(longest) < transitions[:, None])),
    )


def _pad_and_stack(name: str, arrays: Sequence[Array], rows: int, padding: float = MAGIC_PAD_VAL) -> Tensor:
    first = arrays[0]
    stacked = np.empty((len(arrays), rows, *first.shape[1:]), first.dtype)
    for target, array in zip(stacked, arrays, strict=True):
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise ValueError(
                f"{name} must have the same shape and dtype in all samples; one is {first.dtype} "
                f"{first.shape[1:]}, another {array.dtype} {array.shape[1:]}"
            )
        steps = len(array)
        target[:steps] = array
        if steps < rows:
            target[steps:] = padding
    return torch.from_numpy(stacked)
