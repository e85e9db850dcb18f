"""Hindsight experience replay in a maze: goals that were missed become those that were reached.

A walk through a maze towards a goal it does not reach gives no reward. Relabelled, its goal is the cell where the
walk ended, so that it is rewarded for getting there. Which cell that is, only the whole trajectory tells: the
windows that the learner sees mostly end before.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from amago.agent.batch import Batch
from amago.cli_utils import use_config
from amago.envs.builtin.mazerunner import HindsightInstructionReplay, MazeRunnerAMAGOEnv
from amago.hindsight import FrozenTraj, Relabeler, load_trajectory, save_trajectory, trajectory_filename
from amago.loading import BatchLoader, DiskTrajDataset, OfflineDataset, RLData, RLDataset

WALLS = np.array([[0, 0, 0, 1, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 1, 0]], bool)
MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
GOAL = (0, 4)
WINDOW = 5


def walk(number: int) -> FrozenTraj:
    """A random walk from the first cell that does not come to the goal."""
    rng = np.random.default_rng(number)
    cells, taken = [np.zeros(2, int)], []
    for _ in range(int(rng.integers(15, 30))):
        taken.append(int(rng.integers(4)))
        ahead = np.clip(cells[-1] + MOVES[taken[-1]], 0, 4)
        cells.append(cells[-1] if WALLS[tuple(ahead)] or tuple(ahead) == GOAL else ahead)
    steps = len(taken)
    rl2s = np.zeros((steps + 1, 5), np.float32)
    rl2s[1:, 1:] = np.eye(4)[taken]
    return FrozenTraj(
        obs={"cell": np.array(cells, np.float32), "goal": np.tile(np.float32(GOAL), (steps + 1, 1))},
        rl2s=rl2s,
        time_idxs=np.arange(steps + 1)[:, None],
        rews=np.zeros((steps, 1), np.float32),
        dones=np.zeros((steps, 1), np.bool_),
        actions=rl2s[1:, 1:].copy(),
    )


class ReachedInHindsight(Relabeler):
    """Makes the last cell the goal; the trajectory ends when the walk first comes there."""

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        goal = traj.obs["cell"][-1]
        there = (traj.obs["cell"][1:] == goal).all(axis=1)
        end = int(np.argmax(there)) + 1
        traj.obs["goal"][:] = goal
        traj.rews[:, 0] = traj.rl2s[1:, 0] = there
        traj.dones[:, 0] = there
        return FrozenTraj(
            obs={key: array[: end + 1] for key, array in traj.obs.items()},
            rl2s=traj.rl2s[: end + 1],
            time_idxs=traj.time_idxs[: end + 1],
            rews=traj.rews[:end],
            dones=traj.dones[:end],
            actions=traj.actions[:end],
        )


WALKS = [walk(number) for number in range(8)]


@pytest.fixture
def make_maze(tmp_path: Path) -> Callable[..., DiskTrajDataset]:
    """Makes datasets of the walks, each known by the length of its stored trajectory and first moves."""

    def make(save_as: str = "npz", cache_bytes: int = 1 << 20, relabel: bool = True) -> DiskTrajDataset:
        relabeler = ReachedInHindsight() if relabel else None
        dataset = DiskTrajDataset(tmp_path, save_as, 100, relabeler=relabeler, cache_bytes=cache_bytes)
        if not any(dataset.fifo_folder.iterdir()):
            for number, traj in enumerate(WALKS):
                name = trajectory_filename("maze", 0, number, number)
                save_trajectory(traj, dataset.fifo_folder / name, save_as, "maze")
        dataset.configure(400, WINDOW, "both", True)
        return dataset

    return make


def batches_of(dataset: RLDataset, workers: int = 0) -> list[Batch]:
    loader = BatchLoader(dataset, batch_size=20, batches_per_epoch=10, workers=workers, device="cpu", seed=0)
    batches = [batch for epoch in range(2) for batch in loader.epoch(epoch)]
    loader.close()
    return batches


def assert_rewarded_for_what_was_reached(batches: list[Batch]) -> None:
    goals, ends_outside = set(), 0
    for batch in batches:
        assert batch.lengths is not None
        for row, timesteps in enumerate(batch.lengths.tolist()):
            cell, goal = batch.obs["cell"][row, :timesteps], batch.obs["goal"][row, :timesteps]
            there = (cell[1:] == goal[1:]).all(-1)
            assert (goal == goal[0]).all()
            assert torch.equal(batch.rews[row, : timesteps - 1, 0], there.float())
            assert torch.equal(batch.dones[row, : timesteps - 1, 0], there)
            assert torch.equal(batch.rl2s[row, 1:timesteps, 0], there.float())
            goals.add(tuple(goal[0].int().tolist()))
            ends_outside += not there.any()
    assert goals == {tuple(traj.obs["cell"][-1].astype(int).tolist()) for traj in WALKS}
    assert ends_outside, "windows that end before the goal know it all the same"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_walks_are_rewarded_for_the_cells_that_they_reached(make_maze, save_as, cache_bytes, workers) -> None:
    assert_rewarded_for_what_was_reached(batches_of(make_maze(save_as, cache_bytes), workers))


def test_offline_data_can_be_relabelled_alike() -> None:
    dataset = OfflineDataset(WALKS, relabeler=ReachedInHindsight())
    dataset.configure(400, WINDOW, "both", False)
    assert_rewarded_for_what_was_reached(batches_of(dataset))


def test_relabelling_does_not_change_stored_files(make_maze) -> None:
    dataset = make_maze()
    batches_of(dataset)
    for path, traj in zip(sorted(dataset.fifo_folder.iterdir()), WALKS, strict=True):
        for name, array in traj.to_dict().items():
            np.testing.assert_array_equal(load_trajectory(path).to_dict()[name], array)
    for batch in batches_of(make_maze(relabel=False)):
        rewards = batch.rews[batch.transition_mask]
        assert not rewards.any()


def test_goals_taken_from_the_window_would_be_noticed(make_maze) -> None:
    class RelabelsWindows(DiskTrajDataset):
        def sample_random_slice(self):  # the fault: sliced first
            return type(self).relabel_slice(super().sample_random_slice())

        @staticmethod
        def relabel_slice(data):
            traj = FrozenTraj(
                obs={key: array.copy() for key, array in data.obs.items()},
                rl2s=data.rl2s.copy(),
                time_idxs=data.time_idxs,
                rews=data.rews.copy(),
                dones=data.dones.copy(),
                actions=data.actions,
            )
            relabelled = ReachedInHindsight().relabel(traj)
            return RLData(relabelled)

    dataset = make_maze(relabel=False)
    dataset.__class__ = RelabelsWindows
    with pytest.raises(AssertionError):
        assert_rewarded_for_what_was_reached(batches_of(dataset))


def make_maze_runner() -> MazeRunnerAMAGOEnv:
    return MazeRunnerAMAGOEnv(maze_dim=7, num_goals=3, time_limit=30, randomized_action_space=False)


def test_mazerunner_trains_on_episodes_that_reach_their_goals_in_hindsight(make_experiment, tmp_path) -> None:
    use_config({"FFTstepEncoder.specify_obs_keys": ["obs", "goals"]}, finalize=False)

    def dataset(strategy: str) -> DiskTrajDataset:
        relabeler = HindsightInstructionReplay(3, strategy)
        return DiskTrajDataset(tmp_path, "mazes", 1000, relabeler=relabeler)

    experiment = make_experiment(
        make_train_env=make_maze_runner,
        make_val_env=make_maze_runner,
        dataset=dataset("all"),
        max_seq_len=30,
        traj_save_len=31,
        stagger_traj_file_lengths=False,
        train_timesteps_per_epoch=90,
    )
    experiment.start()
    experiment.learn()
    assert experiment.grad_update_counter == 8
    relabelled, some = dataset("all"), dataset("some")
    for each in (relabelled, some):
        each.configure(400, 30, "none", True)
    batches = batches_of(relabelled)
    for batch in batches:
        assert sorted(batch.obs) == ["goals", "obs"]
        # Only "all" makes every episode a success, whatever the agent did.
        mask = batch.transition_mask
        assert (batch.rews * mask).sum(1).tolist() == [[3.0]] * 20
        assert (batch.dones & mask).sum(1).tolist() == [[1]] * 20
    for alone, beside in zip(batches_of(some), batches_of(some, workers=2), strict=True):
        assert torch.equal(alone.rews, beside.rews)
        assert torch.equal(alone.obs["goals"], beside.obs["goals"])
