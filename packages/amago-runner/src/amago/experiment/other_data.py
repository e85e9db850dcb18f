"""Says so where an update fails because the dataset's trajectories are of another environment.

It happens when an environment has changed and its buffer is used again. Batches are not judged beforehand:
datasets may hold more than the agent needs, and its encoder may take what the space does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amago.agent import BaseAgent, Batch
from amago.nets.specs import as_obs_spec


@contextmanager
def other_data_told(agent: BaseAgent, batch: Batch) -> Iterator[None]:
    """Turns an error of the networks into a ValueError that names the arrays which are not the agent's."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AssertionError) as error:
        differences = differences_from_spaces(agent, batch)
        if not differences:
            raise
        raise ValueError(
            f"the dataset's trajectories do not fit the environment: {'; '.join(differences)}. They are of "
            "another environment, or of this one before it was changed: give the dataset another dset_name, or "
            "move their files away"
        ) from error


def differences_from_spaces(agent: BaseAgent, batch: Batch) -> list[str]:
    """The arrays of a batch that differ from the spaces that the agent was made for, in words."""
    told = []
    for key, spec in as_obs_spec(agent.obs_space).items():
        if key not in batch.obs:
            told.append(f"they have no observation {key!r}, only {sorted(batch.obs)}")
        elif (shape := tuple(batch.obs[key].shape[2:])) != spec.shape:
            told.append(
                f"observation {key!r} has the shape {shape} in them and {spec.shape} in the environment"
            )
    width = batch.actions.shape[-1]
    if width != agent.action_spec.dim:
        told.append(f"actions take {width} numbers in them and {agent.action_spec.dim} in the environment")
    return told
