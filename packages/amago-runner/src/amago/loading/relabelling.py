"""Relabelers as datasets use them: checked when they are given, and called with whole trajectories."""

from __future__ import annotations

from amago.hindsight import FrozenTraj, NoOpRelabeler, Relabeler


def checked_relabeler(relabeler: Relabeler | None) -> Relabeler | None:
    """`relabeler` itself; raises TypeError if it is a class or cannot be called."""
    if relabeler is not None and (isinstance(relabeler, type) or not callable(relabeler)):
        raise TypeError(
            f"relabeler is {relabeler!r}, must be an instance of a Relabeler, or a function of a trajectory"
        )
    return relabeler


def sees_whole_trajectories(relabeler: Relabeler | None) -> bool:
    """Whether there is one that does anything."""
    return not (relabeler is None or type(relabeler) is NoOpRelabeler)


def relabelled(traj: FrozenTraj, relabeler: Relabeler | None) -> FrozenTraj:
    """The trajectory as the relabeler returns it; raises TypeError if that is nothing."""
    if relabeler is None:
        return traj
    edited: FrozenTraj | None = relabeler(traj)
    if edited is None:
        raise TypeError(f"{type(relabeler).__name__}.relabel must return the trajectory, not None")
    return edited
