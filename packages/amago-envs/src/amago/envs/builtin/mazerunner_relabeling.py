"""HindsightInstructionReplay: hindsight relabelling of MazeRunner episodes.

An episode that missed its goals becomes one that was asked for what it did (Grigsby et al. 2024, "AMAGO"):
hindsight experience replay (Andrychowicz et al. 2017) for a list of goals.

k = goals of an episode, T = transitions of a trajectory, which has T + 1 observations. Cells are (row, column).
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from amago.envs.arguments import Size, check_arguments
from amago.hindsight import FrozenTraj, Relabeler

REACHED = (-1, -1)  # in place of a goal's cell
STRATEGIES = ("none", "some", "all")


class HindsightInstructionReplay(Relabeler):
    """Replaces goals that an episode missed by cells that it visited, and rewrites rewards and goals to match.

    Pass it as `DiskTrajDataset(relabeler=...)`, with `traj_save_len` above the environment's time limit so that a
    file holds a whole episode. The key "achieved" is always dropped. Observation indices count from 0, the first
    observation; goals can be reached from 1 on.

    1. n goals were reached. h alternatives are drawn: k - n ("all"), uniform from 0 to k - n ("some"), or 0
       ("none"). With h = 0, rewards and goals stay as they are.
    2. The alternatives are the agent's cells at h different observations that reached no goal. With the goals that
       were reached they begin the new list, sorted by time; original goals fill it up to k.
    3. The episode is replayed on the new list: reward 1, in `rews` and the next `rl2s`, where the active goal is
       met, which reads -1 from that observation on. It ends as done where the last one is met.

    Args:
        num_goals: k.
        strategy: "none", "some" or "all".
        rng: generator; a dataset replaces it by the stream of each sample. None uses fresh entropy.

    Raises:
        ValueError: for an unknown strategy; from `relabel`, if "goals" has another number of goals.
        KeyError: from `relabel`, if the trajectory has no "achieved" or "goals".
    """

    @check_arguments
    def __init__(
        self,
        num_goals: Size,
        strategy: Literal["none", "some", "all"] = "all",
        rng: np.random.Generator | None = None,
    ) -> None:
        self.num_goals = num_goals
        self.strategy = strategy
        self.rng = np.random.default_rng() if rng is None else rng

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        """The trajectory without "achieved", relabelled in place and perhaps shortened."""
        achieved = traj.obs.pop("achieved").reshape(len(traj) + 1, 2)
        goals = traj.obs["goals"]
        if goals.shape[1:] != (self.num_goals, 2):
            raise ValueError(
                f'the trajectory\'s "goals" have shape {goals.shape[1:]}, expected {(self.num_goals, 2)} for '
                f"num_goals={self.num_goals}"
            )
        # A segment from the middle of an episode may begin with goals that are reached already.
        wanted = goals[0][(goals[0] != REACHED).any(axis=1)]
        reached = np.flatnonzero(traj.rews[:, 0]) + 1
        num_alternatives = self._draw_count(len(wanted) - len(reached))
        candidates = np.setdiff1d(np.arange(1, len(traj) + 1), reached)
        num_alternatives = min(num_alternatives, len(candidates))
        if num_alternatives > 0:
            drawn = self.rng.choice(candidates, num_alternatives, replace=False)
            met = achieved[np.sort(np.concatenate((reached, drawn)))]
            self._replay(traj, achieved, np.concatenate((met, wanted[len(reached) :]))[: len(wanted)])
        return traj

    def _draw_count(self, missed: int) -> int:
        if self.strategy == "some" and missed > 0:
            return int(self.rng.integers(missed, endpoint=True))
        return missed if self.strategy == "all" else 0

    def _replay(
        self, traj: FrozenTraj, achieved: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32]
    ) -> None:
        """Writes what the episode would have been with the goals `wanted`, and cuts it off after the last."""
        goals = traj.obs["goals"]
        first = self.num_goals - len(wanted)
        traj.rews[:] = 0.0
        traj.rl2s[1:, 0] = 0.0
        goals[:, :first] = REACHED
        goals[:, first:] = wanted
        cells, targets = achieved.tolist(), wanted.tolist()
        active = 0
        for i in range(1, len(cells)):
            if cells[i] != targets[active]:
                continue
            traj.rews[i - 1] = traj.rl2s[i, 0] = 1.0
            goals[i:, first + active] = REACHED
            active += 1
            if active == len(targets):
                traj.dones[i - 1] = True
                self._cut(traj, i)
                return

    def _cut(self, traj: FrozenTraj, length: int) -> None:
        for name in ("rews", "dones", "actions"):
            setattr(traj, name, getattr(traj, name)[:length])
        traj.rl2s, traj.time_idxs = traj.rl2s[: length + 1], traj.time_idxs[: length + 1]
        traj.obs = {key: array[: length + 1] for key, array in traj.obs.items()}
