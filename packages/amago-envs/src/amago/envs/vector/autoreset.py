"""Autoreset: the step that ends an episode stores its final observation and starts the next episode.

Single environments are reset here. Batched environments (`batched_envs` > 1) reset their own rows and report
the final observations in `info`.
"""

import warnings

from amago.envs.vector.env_slot import EnvSlot


def autoreset(slot: EnvSlot, rows: list[int]) -> bool:
    """Stores the final observations of finished rows and starts their next episodes.

    Args:
        slot: environment slot with the results of a step in its arrays.
        rows: indices within the slot of the rows whose episode ended.

    Returns:
        Whether this call reset the environment, which may have changed its name.
    """
    store_final_observations(slot, rows)
    if slot.resets_itself:
        store_reported_final_observations(slot, rows)
        return False
    slot.reset()
    return True


def store_final_observations(slot: EnvSlot, rows: list[int]) -> None:
    """Copies observations and time indices of `rows` to the `final_` arrays; zeros `rl2s` and `time_idxs`."""
    arrays = slot.arrays
    for key, final in arrays.final_obs.items():
        final[rows] = arrays.obs[key][rows]
    arrays.final_time_idxs[rows] = arrays.time_idxs[rows]
    arrays.rl2s[rows] = 0.0
    arrays.time_idxs[rows] = 0


def store_reported_final_observations(slot: EnvSlot, rows: list[int]) -> None:
    """Replaces `final_obs` of `rows` with the final observations in `info`; warns once if there are none."""
    final = slot.amago_env.final_observation(slot.info, rows)
    if final is not None:
        for key, array in final.items():
            slot.arrays.final_obs[key][rows] = array
    elif not slot.warned:
        slot.warned = True
        warnings.warn(
            f"environment {slot.name!r} autoresets without reporting the final observation of an episode, so "
            "the first one of the next episode is recorded instead: add the final observation as "
            "info['final_obs']",
            stacklevel=2,
        )
