"""Actions as an environment takes them, turned into the representation that trajectories hold.

T = rows, A = width of the representation.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.actions import make_action_codec

Array = npt.NDArray[Any]

# Files in half precision, and bounds that were rounded when they were written
_TOLERANCE = 1e-3


def represent_actions(actions: Array, space: gym.Space[Any] | None) -> npt.NDArray[np.float32]:
    """(T, A) float32: one-hots (Discrete, MultiDiscrete), zeros and ones (MultiBinary), in [-1, 1] (Box).

    Args:
        actions: (T, ...) as the environment with `space` receives them.
        space: None if `actions` (T, A) are in that representation already.

    Raises:
        ValueError: if actions do not fit the space, or, without one, are no numbers in [-1, 1].
        TypeError: for a space that policies cannot act in.
    """
    actions = np.asarray(actions)
    if actions.dtype.kind not in "fiub":
        raise ValueError(f"actions have dtype {actions.dtype}; they must be numbers")
    if actions.dtype.kind == "f" and not np.isfinite(actions).all():
        row = int(np.flatnonzero(~np.isfinite(actions.reshape(len(actions), -1)).all(1))[0])
        raise ValueError(f"actions[{row}] of the episode is {actions[row].tolist()}, which is not finite")
    if space is None:
        return _already_represented(actions)
    codec = make_action_codec(space, len(actions))
    if isinstance(space, gym.spaces.Box):
        return _scaled(actions, space)
    start = getattr(space, "start", 0)
    shape = (1,) if isinstance(space, gym.spaces.Discrete) else space.shape
    assert shape is not None
    if actions.ndim == 1 and shape == (1,):
        actions = actions[:, None]
    if actions.shape[1:] != shape:
        raise _other_shape(actions, shape, space)
    choices = (actions - np.asarray(start)).reshape(len(actions), -1)
    try:
        return codec.represent(codec.check(choices))
    except ValueError as error:
        raise ValueError(f"actions do not fit the action space {space}: {error}") from error


def _already_represented(actions: Array) -> npt.NDArray[np.float32]:
    if actions.dtype.kind != "f" or actions.ndim != 2:
        raise ValueError(
            f"actions have dtype {actions.dtype} and shape {actions.shape}, so they are as an environment takes "
            "them: give its action_space, for example gymnasium.spaces.Discrete(4) (amago-run convert: --actions "
            "discrete:4)"
        )
    if (np.abs(actions) > 1.0).any():
        raise ValueError(
            f"actions reach from {actions.min():g} to {actions.max():g}, beyond [-1, 1]: give the environment's "
            "action_space, by whose bounds they are scaled (amago-run convert: --actions box:LOW:HIGH)"
        )
    return actions.astype(np.float32)


def _scaled(actions: Array, space: gym.spaces.Box) -> npt.NDArray[np.float32]:
    if actions.ndim == 1 and space.shape in ((), (1,)):
        actions = actions.reshape(-1, *space.shape)
    if actions.shape[1:] != space.shape:
        raise _other_shape(actions, space.shape, space)
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    flat = actions.reshape(len(actions), -1).astype(np.float64)
    middle, half_range = (high + low) / 2.0, (high - low) / 2.0
    scaled = np.divide(flat - middle, half_range, out=np.zeros_like(flat), where=half_range > 0)
    beyond = (np.abs(scaled) > 1.0 + _TOLERANCE).any(axis=1)
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise ValueError(
            f"actions[{row}] of the episode is {flat[row].tolist()}, outside of the action space {space}: "
            "give the space of the environment that the data comes from"
        )
    return np.clip(scaled, -1.0, 1.0).astype(np.float32)


def _other_shape(actions: Array, shape: tuple[int, ...], space: gym.Space[Any]) -> ValueError:
    return ValueError(f"each action has shape {actions.shape[1:]}, but those of {space} have shape {shape}")
