"""`Transitions`: the real transitions of a padded batch, gathered along one axis so that the heads skip padding.

Shapes: B batch, T transitions, n real transitions, A width of the action representation, S state width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from amago.agent.batch import Batch


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
