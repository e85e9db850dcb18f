"""Relabelling: editing a stored trajectory after the fact, before the learner samples from it.

Hindsight experience replay (Andrychowicz et al. 2017) is the best-known use: goals are replaced by what was
reached and rewards recomputed.
"""

from typing import Protocol

from amago.hindsight.trajectory import FrozenTraj


class Relabeler(Protocol):
    """Edits trajectories on their way from the buffer to the learner.

    Subclass it, or pass any object with these methods. The trajectory is one whole stored piece with writable
    arrays: it may be edited in place, observation keys may be dropped, and it may be shortened as long as obs,
    rl2s and time_idxs keep one row more than the rest. `rl2s[:, 0]` holds the previous reward, so a new reward
    belongs there too if the policy shall see it.
    """

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        """Returns the edited trajectory; it may be `traj` itself."""
        ...

    def __call__(self, traj: FrozenTraj) -> FrozenTraj:
        return self.relabel(traj)


class NoOpRelabeler(Relabeler):
    """Returns every trajectory as it is."""

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        return traj
