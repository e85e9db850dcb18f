"""What groups of environments are told and what they tell: specs, exploration, and notes besides the arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from amago.envs.amago_env import AMAGOEnv
from amago.envs.vector.buffers import layout

MakeEnv = Callable[[], AMAGOEnv]
NameChange = tuple[int, int, str]  # rows [start, stop) and their new name


@dataclass(slots=True, kw_only=True)
class StepNotes:
    """What a step has to tell besides arrays; rows are counted within the group that made the notes.

    Args:
        metrics: (row, {name: value}) of reported metrics.
        names_in_step: names that changed during the step itself, so its transitions already bear them.
        names_after_reset: names that changed with the reset after an episode's end.
    """

    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    names_in_step: list[NameChange] = field(default_factory=list)
    names_after_reset: list[NameChange] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GroupSpec:
    """What the environments of a group look like from outside."""

    observation_space: gym.spaces.Dict
    rl2_space: gym.spaces.Box
    action_space: gym.Space[Any]
    rows_per_env: list[int]
    names: list[str]


def common_spec(specs: Sequence[GroupSpec], first_index: int) -> GroupSpec:
    """Several specs, of environments from `first_index` on, as one.

    Raises:
        ValueError: if observations differ in keys, shapes or dtypes, or the action spaces differ.
    """
    first = specs[0]
    fields = layout(first.observation_space, first.rl2_space, first.action_space)
    index = first_index
    for spec in specs:
        for name, same in (
            ("action_space", spec.action_space == first.action_space),
            (
                "observation_space",
                layout(spec.observation_space, spec.rl2_space, spec.action_space) == fields,
            ),
        ):
            if not same:
                raise ValueError(
                    f"environments {first_index} and {index} differ in their {name}, {getattr(first, name)} and "
                    f"{getattr(spec, name)}: environments that are stepped together must share their spaces"
                )
        index += len(spec.names)
    return GroupSpec(
        observation_space=first.observation_space,
        rl2_space=first.rl2_space,
        action_space=first.action_space,
        rows_per_env=[rows for spec in specs for rows in spec.rows_per_env],
        names=[name for spec in specs for name in spec.names],
    )


@dataclass(slots=True, kw_only=True)
class ExplorationSetup:
    """The exploration of every environment and the seed of its random streams."""

    wrapper_type: type[Any] | None = None
    seed: int | None = None
    rank: int = 0
