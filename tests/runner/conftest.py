"""Trajectories and buffers that the runner's tests share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from amago.hindsight import FrozenTraj, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset, RLDataset


@pytest.fixture(scope="session")
def make_traj() -> Callable[..., FrozenTraj]:
    """Makes trajectories that tell where each of their rows comes from: obs rows are (number, timestep)."""

    def make(transitions: int = 5, number: int = 0, width: int = 2) -> FrozenTraj:
        steps = np.arange(transitions + 1)
        rng = np.random.default_rng([number, transitions])
        actions = rng.uniform(-1, 1, (transitions, width)).astype(np.float32)
        rews = steps[1:, None].astype(np.float32)
        rl2s = np.zeros((transitions + 1, 1 + width), dtype=np.float32)
        rl2s[1:] = np.concatenate([rews, actions], axis=1)
        return FrozenTraj(
            obs={"observation": np.stack([np.full_like(steps, number), steps], axis=1).astype(np.float32)},
            rl2s=rl2s,
            time_idxs=steps[:, None],
            rews=rews,
            dones=(steps[1:, None] == transitions),
            actions=actions,
        )

    return make


@pytest.fixture(scope="session")
def fill(make_traj: Callable[..., FrozenTraj]) -> Callable[..., list[Path]]:
    """Writes `count` trajectory files into a folder, numbered from `first` on in content, name and time."""

    def write(
        folder: Path,
        count: int,
        *,
        first: int = 0,
        transitions: int | list[int] = 5,
        save_as: str = "npz",
        env_name: str = "env",
        writer: int = 0,
    ) -> list[Path]:
        lengths = [transitions] * count if isinstance(transitions, int) else transitions
        return [
            save_trajectory(
                make_traj(length, number),
                folder / trajectory_filename(env_name, writer, number, 1_700_000_000 + number),
                save_as,
                env_name,
            )
            for number, length in zip(range(first, first + count), lengths, strict=True)
        ]

    return write


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., DiskTrajDataset]:
    """Makes datasets on one buffer, configured for `items` windows of `length` transitions, with seed 0."""

    def make(
        dset_max_size: float = 100, *, items: int = 50, length: int = 4, edit: bool = True, **options: object
    ) -> DiskTrajDataset:
        dataset = DiskTrajDataset(tmp_path, "dset", dset_max_size, **options)
        dataset.configure(items, length, "none", edit)
        dataset.seed = 0
        return dataset

    return make


@pytest.fixture(scope="session")
def numbers() -> Callable[[RLDataset], set[int]]:
    """Tells the numbers of the trajectories that an epoch draws from."""

    def drawn(dataset: RLDataset) -> set[int]:
        return {int(dataset[i].obs["observation"][0, 0]) for i in range(len(dataset))}

    return drawn
