"""`Batch`: padded training sequences, with masks derived from their lengths.

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
    """Sequences of T+1 timesteps and the T transitions between them, padded at the end.

    Args:
        obs: arrays of the observation by key, (B, T+1, ...).
        rl2s: previous reward and action, (B, T+1, 1 + A) float32.
        rews: (B, T, 1) float32.
        dones: (B, T, 1) bool, True where the environment terminated (and in padding).
        actions: (B, T, A) float32, the representation of the executed action.
        time_idxs: (B, T+1, 1) int64, index of the timestep in its episode.
        lengths: (B,) int64, number of real timesteps of each sequence. If None, padding is identified by its fill
            value in `rl2s`.
        flat_idxs: (n,) int64, indices of the real transitions in the flattened (B * T), so that heads skip padding
            without a device synchronisation. Optional.
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
        """True for real transitions (those with a real next timestep), (B, T, 1)."""
        return self.timestep_mask[:, 1:]

    def real_transitions(self) -> Tensor:
        """Indices of the real transitions in the flattened (B * T), int64 (n,).

        `flat_idxs` if given; otherwise computed, which synchronises with the device.
        """
        if self.flat_idxs is not None:
            return self.flat_idxs
        return self.transition_mask.flatten().nonzero().squeeze(-1)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """Applies `fn` to every tensor."""
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
        """The batch on `device`; copies from pinned memory are asynchronous."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory; called by DataLoader with `pin_memory=True`."""
        return self.map(lambda tensor: tensor.pin_memory())


@dataclass(slots=True, kw_only=True)
class Transitions:
    """The heads' inputs, without padding.

    Args:
        state: (1, n, S).
        next_state: (1, n, S), without gradient.
        action: recorded actions after the distribution's `action_from_buffer`, (1, n, A).
        reward: (1, n, 1), times the reward multiplier.
        done: (1, n, 1), 1 where the environment terminated.
        direct_obs: observations (1, n, ...) that the actor receives besides the state, or None.
        next_direct_obs: the same of the next timestep.
        flat_idxs: (n,) indices of the transitions in the flattened (B * T).
    """

    state: Tensor
    next_state: Tensor
    action: Tensor
    reward: Tensor
    done: Tensor
    direct_obs: dict[str, Tensor] | None
    next_direct_obs: dict[str, Tensor] | None
    flat_idxs: Tensor

    @classmethod
    def of(
        cls,
        batch: Batch,
        states: Tensor,
        *,
        to_action: Callable[[Tensor], Tensor],
        reward_multiplier: float,
        direct_obs: dict[str, Tensor] | None,
    ) -> Transitions:
        """Gathers the transitions of `batch`, whose timesteps were encoded as `states` (B, T+1, S)."""
        flat_idxs = batch.real_transitions()
        timesteps = flat_idxs + flat_idxs // batch.length  # indices in the flattened (B * (T+1))

        def gather_obs(idxs: Tensor) -> dict[str, Tensor] | None:
            if direct_obs is None:
                return None
            return {key: gather_from_batch(value, idxs) for key, value in direct_obs.items()}

        return cls(
            state=gather_from_batch(states, timesteps),
            next_state=gather_from_batch(states.detach(), timesteps + 1),
            action=to_action(gather_from_batch(batch.actions, flat_idxs)),
            reward=reward_multiplier * gather_from_batch(batch.rews, flat_idxs),
            done=gather_from_batch(batch.dones, flat_idxs).to(batch.rews.dtype),
            direct_obs=gather_obs(timesteps),
            next_direct_obs=gather_obs(timesteps + 1),
            flat_idxs=flat_idxs,
        )


def gather_from_batch(x: Tensor, flat_idxs: Tensor) -> Tensor:
    """The rows `flat_idxs` of the flattened first two axes: (B, T, ...) -> (1, n, ...)."""
    return x.flatten(0, 1).index_select(0, flat_idxs).unsqueeze(0)


def scatter_to_batch(x: Tensor, flat_idxs: Tensor, batch: Batch) -> Tensor:
    """The inverse of `gather_from_batch`: (1, n, ...) -> (B, T, ...), 0 in padding."""
    full = x.new_zeros((batch.batch_size * batch.length, *x.shape[2:]))
    return full.index_copy(0, flat_idxs, x[0]).view(batch.batch_size, batch.length, *x.shape[2:])
