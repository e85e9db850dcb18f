"""Autoreset: in the step that ends an episode, its final observation is stored and the next episode begins.

An environment of one row is reset here. One of several rows (`batched_envs` > 1) has reset its rows itself and
reports their final observations in `info`.
"""

import warnings

from amago.envs.vector.env_slot import EnvSlot


def autoreset(slot: EnvSlot, rows: list[int]) -> bool:
    """Stores the final observations of finished rows and begins their next episodes.

    Args:
        slot: whose arrays hold the results of a step.
        rows: the rows whose episode ended, counted within the slot.

    Returns:
        Whether the environment was reset here, and may therefore have another name.
    """
    store_final_observations(slot, rows)
    if slot.resets_itself:
        store_reported_final_observations(slot, rows)
        return False
    slot.reset()
    return True


def store_final_observations(slot: EnvSlot, rows: list[int]) -> None:
    """Copies observations and time indices of `rows` to `final_obs` and `final_time_idxs`; starts time at 0."""
    arrays = slot.arrays
    for key, final in arrays.final_obs.items():
        final[rows] = arrays.obs[key][rows]
    arrays.final_time_idxs[rows] = arrays.time_idxs[rows]
    arrays.rl2s[rows] = 0.0
    arrays.time_idxs[rows] = 0


def store_reported_final_observations(slot: EnvSlot, rows: list[int]) -> None:
    """Replaces `final_obs` of `rows` by those that the environment reported in `info`; warns if there are none."""
    final = slot.amago_env.final_observation(slot.info, rows)
    if final is not None:
        for key, array in final.items():
            slot.arrays.final_obs[key][rows] = array
    elif not slot.warned:
        slot.warned = True
        warnings.warn(
            f"environment {slot.name!r} resets its rows itself and does not report the final observation of "
            "an episode, so the first one of the next episode is recorded instead: put it into "
            "info['final_obs']",
            stacklevel=2,
        )
