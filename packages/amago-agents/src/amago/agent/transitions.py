"""The real transitions of a padded batch side by side, and back again.

Shapes: B batch, T transitions, n real transitions, A width of the action representation, S state width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from amago.agent.batch import Batch


@dataclass(slots=True, kw_only=True)
class Transitions:
    """What the heads work on: no step of it is padding.

    Args:
        state: (1, n, S).
        next_state: (1, n, S), without gradient.
        action: recorded actions as critics and policy judge them, (1, n, A).
        reward: (1, n, 1), times the reward multiplier.
        done: (1, n, 1), 1 where the environment terminated.
        direct_obs: observations (1, n, ...) that the actor sees besides the state, None if there are none.
        next_direct_obs: the same of the next timestep.
        places: (n,) where the transitions stand in the flattened (B * T).
        q_dist: what classifying critics say of the recorded actions, once they have computed it.
        every_action: values of all discrete actions, (1, n, C, G, A), once the critics have computed them.
    """

    state: Tensor
    next_state: Tensor
    action: Tensor
    reward: Tensor
    done: Tensor
    direct_obs: dict[str, Tensor] | None
    next_direct_obs: dict[str, Tensor] | None
    places: Tensor
    q_dist: Any = None
    every_action: Tensor | None = None

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
        """Picks the transitions of `batch`, whose timesteps were encoded as `states` (B, T+1, S)."""
        places = batch.real_transitions()
        now = places + places // batch.length  # the same places among the B * (T+1) timesteps

        def pick(x: Tensor, idxs: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, idxs).unsqueeze(0)

        def pick_obs(idxs: Tensor) -> dict[str, Tensor] | None:
            return (
                None if direct_obs is None else {key: pick(value, idxs) for key, value in direct_obs.items()}
            )

        return cls(
            state=pick(states, now),
            next_state=pick(states.detach(), now + 1),
            action=to_action(pick(batch.actions, places)),
            reward=reward_multiplier * pick(batch.rews, places),
            done=pick(batch.dones, places).to(batch.rews.dtype),
            direct_obs=pick_obs(now),
            next_direct_obs=pick_obs(now + 1),
            places=places,
        )


def spread(x: Tensor, places: Tensor, batch: Batch) -> Tensor:
    """Real transitions (1, n, ...) back at their places in (B, T, ...), 0 elsewhere."""
    full = x.new_zeros((batch.batch_size * batch.length, *x.shape[2:]))
    return full.index_copy(0, places, x[0]).view(batch.batch_size, batch.length, *x.shape[2:])
