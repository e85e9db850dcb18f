"""The environments of a group with their rows, and stages of some of them.

A member is one environment, which may step many rows itself.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amago.envs.amago_env import AMAGOEnv
from amago.envs.vector.buffers import StepArrays
from amago.hindsight.timestep import Array


@dataclass(slots=True, eq=False)
class Member:
    """One environment and its rows of the arrays, sliced once because slicing costs as much as a copy."""

    number: int  # in its group
    amago_env: AMAGOEnv
    env: Any  # the exploration wrapper around it, if there is one
    start: int
    stop: int
    name: str
    resets_itself: bool
    name_is_fixed: bool
    # Of the last step, kept for those that reset themselves.
    info: dict[str, Any] = field(default_factory=dict)
    obs: list[tuple[str, Array]] = field(default_factory=list)
    actions: Array = field(default_factory=lambda: np.empty(0))
    rewards: Array = field(default_factory=lambda: np.empty(0))
    terminated: Array = field(default_factory=lambda: np.empty(0))
    truncated: Array = field(default_factory=lambda: np.empty(0))
    time_idxs: Array = field(default_factory=lambda: np.empty(0))
    only_reset: Array = field(default_factory=lambda: np.empty(0))
    warned: bool = False  # that last observations are missing


@dataclass(slots=True, eq=False)
class Stage:
    """Consecutive members that are stepped, and started anew, before the next ones."""

    rows: slice
    members: list[Member]
    arrays: StepArrays  # of these rows
    renaming: list[Member]  # those whose name may change

    @classmethod
    def of(cls, members: list[Member], arrays: StepArrays) -> "Stage":
        """Of some members; `arrays` are those of all."""
        rows = slice(members[0].start, members[-1].stop)
        renaming = [member for member in members if not member.name_is_fixed]
        return cls(rows, members, arrays.rows(rows.start, rows.stop), renaming)
