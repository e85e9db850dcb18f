"""Relabelers: edit stored trajectories before the learner samples from them.

Hindsight experience replay (Andrychowicz et al. 2017) is the best-known use: goals are replaced by states
that were reached, and rewards are recomputed.
"""

from typing import Protocol

from amago.hindsight.trajectory import FrozenTraj


class Relabeler(Protocol):
    """Edits trajectories that are sampled from the buffer.

    Subclass it, or pass any object with these methods. The trajectory is the whole content of a file, in writable
    arrays. It may be edited in place, lose observation keys, and be shortened as long as obs, rl2s and
    time_idxs keep one row more than the other arrays. `rl2s[:, 0]` holds the previous reward: write a new
    reward there too if the policy is to see it.

    A relabeler that draws random numbers takes them from its attribute `rng`, a `numpy.random.Generator`: a
    dataset replaces it by the stream of the sample, so batches do not depend on the number of loader workers.
    """

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        """Returns the edited trajectory; this may be `traj` itself."""
        ...

    def __call__(self, traj: FrozenTraj) -> FrozenTraj:
        return self.relabel(traj)


class NoOpRelabeler(Relabeler):
    """Returns every trajectory unchanged."""

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        return traj
