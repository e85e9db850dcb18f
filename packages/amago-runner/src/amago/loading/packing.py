"""A batch in one piece of memory, so that it moves between processes and to a GPU as one thing.

Every tensor that a loader worker hands over costs a shared-memory file and a message, and every copy to a GPU a
launch; a batch has nine or more tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from amago.agent.batch import Batch

ALIGNMENT = 64
"""Bytes; every tensor begins at a multiple of it, which suits any dtype."""

_FIELDS = ("rl2s", "rews", "dones", "actions", "time_idxs", "lengths", "flat_idxs")


class Place(NamedTuple):
    """Where a tensor lies in the buffer; `key` is a field of Batch, or a key of its observations."""

    key: str
    is_obs: bool
    dtype: torch.dtype
    shape: torch.Size
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The bytes of a batch, uint8 (n,), and where its tensors lie in them."""

    buffer: Tensor
    places: tuple[Place, ...]

    @classmethod
    def pack(cls, batch: Batch) -> PackedBatch:
        """Copies the tensors of `batch` into one buffer."""
        places: list[Place] = []
        tensors: list[Tensor] = []
        end = 0
        for key, is_obs, tensor in _tensors(batch):
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            places.append(Place(key, is_obs, tensor.dtype, tensor.shape, offset))
            tensors.append(tensor)
            end = offset + places[-1].nbytes
        packed = cls(torch.empty(end, dtype=torch.uint8), tuple(places))
        for place, tensor in zip(places, tensors, strict=True):
            packed._view(place).copy_(tensor)
        return packed

    def unpack(self) -> Batch:
        """The batch, its tensors views of the buffer."""
        obs = {place.key: self._view(place) for place in self.places if place.is_obs}
        return Batch(obs=obs, **{place.key: self._view(place) for place in self.places if not place.is_obs})

    def pin_memory(self) -> PackedBatch:
        """The same in page-locked memory; DataLoader calls this when asked to pin."""
        return PackedBatch(self.buffer.pin_memory(), self.places)

    def to(self, device: torch.device) -> PackedBatch:
        """The same on `device`; from pinned memory the copy does not block."""
        return PackedBatch(self.buffer.to(device, non_blocking=True), self.places)

    def _view(self, place: Place) -> Tensor:
        return self.buffer[place.offset : place.offset + place.nbytes].view(place.dtype).view(place.shape)


def _tensors(batch: Batch) -> Iterator[tuple[str, bool, Tensor]]:
    for key, value in batch.obs.items():
        yield key, True, value
    for name in _FIELDS:
        tensor = getattr(batch, name)
        if tensor is not None:
            yield name, False, tensor
