"""The training batch: padded sequences as tensors, with masks derived from their lengths.

Shapes: B sequences, T transitions, T+1 timesteps, A width of the action representation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from amago.nets.masking import mask_from_filler


@dataclass
class Batch:
    """Sequences of T transitions between T+1 timesteps, the shorter ones padded at the end.

    Args:
        obs: arrays of the observation by key, (B, T+1, ...).
        rl2s: previous reward and action, (B, T+1, 1 + A) float32.
        rews: (B, T, 1) float32.
        dones: (B, T, 1) bool, True where the environment terminated (and in padding).
        actions: (B, T, A) float32, the representation of the action that was executed.
        time_idxs: (B, T+1, 1) int64, index of the timestep in its episode.
        lengths: (B,) int64, real timesteps of each sequence. Without them they are told from the filler in
            `rl2s`.
        flat_idxs: (n,) int64, places of the real transitions in the flattened (B * T), so that the heads can
            skip padding without waiting for the device. May be left out.
    """

    obs: dict[str, Tensor]
    rl2s: Tensor
    rews: Tensor
    dones: Tensor
    actions: Tensor
    time_idxs: Tensor
    lengths: Tensor | None = None
    flat_idxs: Tensor | None = None

    @property
    def batch_size(self) -> int:
        """B, the number of sequences."""
        return self.rl2s.shape[0]

    @property
    def length(self) -> int:
        """T, the number of transitions of the longest sequence."""
        return self.rews.shape[1]

    @property
    def timestep_mask(self) -> Tensor:
        """True for real timesteps, (B, T+1, 1)."""
        if self.lengths is None:
            return mask_from_filler(self.rl2s)
        steps = torch.arange(self.rl2s.shape[1], device=self.rl2s.device)
        return (steps < self.lengths.to(self.rl2s.device).unsqueeze(1)).unsqueeze(-1)  # (B, T+1, 1)

    @property
    def transition_mask(self) -> Tensor:
        """True for real transitions, those whose next timestep is real, (B, T, 1)."""
        return self.timestep_mask[:, 1:]

    def real_transitions(self) -> Tensor:
        """Places of the real transitions in the flattened (B * T), int64 (n,).

        Comes with a collated batch; otherwise found here, at the price of a device synchronisation.
        """
        if self.flat_idxs is not None:
            return self.flat_idxs
        return self.transition_mask.flatten().nonzero().squeeze(-1)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """A batch of `fn` applied to every tensor."""
        return replace(
            self,
            obs={key: fn(value) for key, value in self.obs.items()},
            rl2s=fn(self.rl2s),
            rews=fn(self.rews),
            dones=fn(self.dones),
            actions=fn(self.actions),
            time_idxs=fn(self.time_idxs),
            lengths=None if self.lengths is None else fn(self.lengths),
            flat_idxs=None if self.flat_idxs is None else fn(self.flat_idxs),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The batch on `device`; from pinned memory the copies do not block."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory; DataLoader calls this when asked to pin."""
        return self.map(lambda tensor: tensor.pin_memory())
