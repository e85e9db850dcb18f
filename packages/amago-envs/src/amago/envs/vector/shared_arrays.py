"""The arrays of a vector environment's step, in ordinary or in shared memory.

All arrays of a step lie in one block of memory: worker processes write their rows in place, and the main process
reads the whole batch without a copy. Shared blocks are anonymous (memfd): they have no name in the file system and
disappear with the last process that maps them.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from amago.envs.vector.base import PolicyInput
from amago.hindsight import Array

ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Shape of one row and dtype of one array in the block."""

    shape: tuple[int, ...]
    dtype: str

    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(slots=True, kw_only=True, eq=False)
class StepArrays:
    """Views of n consecutive rows of the block; names as in `VectorStep`.

    `policy_actions` (n, ...) is the input of a step, all others are its results. Rows of `final_obs` and
    `final_time_idxs` hold the end of the row's last finished episode.
    """

    obs: dict[str, Array]
    final_obs: dict[str, Array]
    rl2s: Array
    time_idxs: Array
    final_time_idxs: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    policy_actions: Array

    def rows(self, start: int, stop: int) -> "StepArrays":
        """Views of the rows [start, stop)."""
        arrays = {name: getattr(self, name)[start:stop] for name in _PLAIN_FIELDS}
        return StepArrays(
            obs={key: array[start:stop] for key, array in self.obs.items()},
            final_obs={key: array[start:stop] for key, array in self.final_obs.items()},
            **arrays,
        )

    def policy_input(self) -> PolicyInput:
        """The input of the policy, as views."""
        return PolicyInput(obs=self.obs, rl2s=self.rl2s, time_idxs=self.time_idxs)


_PLAIN_FIELDS = (
    "rl2s",
    "time_idxs",
    "final_time_idxs",
    "actions",
    "rewards",
    "terminated",
    "truncated",
    "policy_actions",
)


def layout(
    observation_space: gym.spaces.Dict, rl2_space: gym.spaces.Box, action_space: gym.Space[object]
) -> dict[str, Field]:
    """The arrays that environments with these spaces fill, by name."""
    width = rl2_space.shape[0] - 1
    fields = {
        "rl2s": Field(shape=(1 + width,), dtype="float32"),
        "time_idxs": Field(shape=(), dtype="int64"),
        "final_time_idxs": Field(shape=(), dtype="int64"),
        "actions": Field(shape=(width,), dtype="float32"),
        "rewards": Field(shape=(), dtype="float32"),
        "terminated": Field(shape=(), dtype="bool"),
        "truncated": Field(shape=(), dtype="bool"),
        "policy_actions": policy_action_field(action_space),
    }
    for key, space in observation_space.spaces.items():
        if space.shape is None or space.dtype is None:
            raise TypeError(
                f"observation {key!r} has the space {space}, which has no shape; AMAGOEnv maps it to arrays"
            )
        for prefix in ("obs", "final_obs"):
            fields[f"{prefix}/{key}"] = Field(shape=space.shape, dtype=np.dtype(space.dtype).str)
    return fields


def policy_action_field(action_space: gym.Space[object]) -> Field:
    """Shape and dtype of one row of policy actions for this space."""
    if isinstance(action_space, gym.spaces.Discrete):
        return Field(shape=(1,), dtype="int64")
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        return Field(shape=action_space.shape, dtype="int64")
    if isinstance(action_space, gym.spaces.MultiBinary):
        return Field(shape=action_space.shape, dtype="int8")
    if isinstance(action_space, gym.spaces.Box):
        return Field(shape=action_space.shape, dtype="float32")
    raise TypeError(f"action space must be Discrete, MultiDiscrete, MultiBinary or Box, got {action_space}")


def required_bytes(fields: dict[str, Field], num_rows: int) -> int:
    """Bytes of the block that holds `num_rows` rows of every field."""
    return sum(_aligned(field.row_bytes() * num_rows) for field in fields.values()) or ALIGNMENT


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def carve(fields: dict[str, Field], num_rows: int, block: mmap.mmap | bytearray) -> StepArrays:
    """The arrays inside a block of `required_bytes(fields, num_rows)` bytes."""
    arrays: dict[str, Array] = {}
    offset = 0
    for name, field in fields.items():
        arrays[name] = np.ndarray((num_rows, *field.shape), np.dtype(field.dtype), block, offset)
        offset += _aligned(field.row_bytes() * num_rows)
    obs, final_obs = (
        {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
        for prefix in ("obs/", "final_obs/")
    )
    return StepArrays(obs=obs, final_obs=final_obs, **{name: arrays[name] for name in _PLAIN_FIELDS})


def open_shared_block(size: int) -> int:
    """The file descriptor of new, zeroed, anonymous memory that processes can map; the caller closes it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("amago-envs")
    else:
        descriptor, path = tempfile.mkstemp(prefix="amago-envs-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return descriptor
