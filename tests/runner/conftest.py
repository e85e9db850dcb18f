"""Trajectories, buffers and small experiments that the runner's tests share."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest

from amago.agent import Agent
from amago.cli_utils import use_config
from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv
from amago.experiment import Experiment
from amago.hindsight import FrozenTraj, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset, RLDataset
from amago.nets.traj_encoders import FFTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder


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


class MemoryEnv(gym.Env[np.ndarray, int]):
    """Shows one of two signs in the first step and rewards repeating it in every step; lasts `horizon` steps."""

    def __init__(self, horizon: int = 6) -> None:
        self.horizon = horizon
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._sign = int(self.np_random.integers(2))
        self._time = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._time += 1
        reward = float(action == self._sign)
        over = self._time >= self.horizon
        info = {f"{AMAGO_ENV_LOG_PREFIX} Last Step Right": reward} if over else {}
        return self._obs(), reward, over, False, info

    def _obs(self) -> np.ndarray:
        shown = (2.0 * self._sign - 1.0) if self._time == 0 else 0.0
        return np.array([shown, self._time / self.horizon, float(self.np_random.random())], np.float32)


def make_memory_env() -> AMAGOEnv:
    """A MemoryEnv as experiments want it; importable, so run.json can name it."""
    return AMAGOEnv(MemoryEnv(), env_name="memory")


SMALL_NETS: dict[str, Any] = {
    "FFTstepEncoder.d_hidden": 16,
    "FFTstepEncoder.d_output": 8,
    "FFTstepEncoder.n_layers": 1,
    "FFTrajEncoder.d_model": 8,
    "GRUTrajEncoder.d_hidden": 8,
    "GRUTrajEncoder.d_output": 8,
    "TformerTrajEncoder.d_model": 8,
    "TformerTrajEncoder.d_ff": 16,
    "TformerTrajEncoder.n_heads": 2,
    "TformerTrajEncoder.n_layers": 1,
    "Actor.d_hidden": 8,
    "NCritics.d_hidden": 8,
    "EpsilonGreedy.steps_anneal": 200,
}


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., DiskTrajDataset]:
    """Makes datasets on one buffer, configured for `items` windows of `length` transitions, with seed 0."""

    def make(
        dset_max_size: float = 100, *, items: int = 50, length: int = 4, edit: bool = True, **options: object
    ) -> DiskTrajDataset:
        dataset = DiskTrajDataset(tmp_path, "dset", dset_max_size, **options)
        dataset.configure(items, length, "none", edit)
        dataset.seed_sampling(0)
        return dataset

    return make


@pytest.fixture(scope="session")
def numbers() -> Callable[[RLDataset], set[int]]:
    """Tells the numbers of the trajectories that an epoch draws from."""

    def drawn(dataset: RLDataset) -> set[int]:
        return {int(dataset[i].obs["observation"][0, 0]) for i in range(len(dataset))}

    return drawn


@pytest.fixture
def clean_gin() -> Iterator[None]:
    """gin without bindings, before and after."""
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def small_nets(clean_gin: None) -> None:
    """Binds networks so small that a training run takes a second."""
    use_config(SMALL_NETS, finalize=False)


@pytest.fixture
def make_experiment(tmp_path: Path, small_nets: None) -> Iterator[Callable[..., Experiment]]:
    """Makes small experiments on MemoryEnv under the test's folder; they are closed when the test ends."""
    made: list[Experiment] = []

    def make(folder: str = "runs", cls: type[Experiment] = Experiment, **changes: Any) -> Experiment:
        root = tmp_path / folder
        arguments: dict[str, Any] = {
            "run_name": "run",
            "ckpt_base_dir": root,
            "max_seq_len": 8,
            "tstep_encoder_type": FFTstepEncoder,
            "traj_encoder_type": FFTrajEncoder,
            "agent_type": Agent,
            "val_timesteps_per_epoch": 12,
            "make_train_env": make_memory_env,
            "make_val_env": make_memory_env,
            "parallel_actors": 3,
            "env_mode": "sync",
            "verbose": False,
            "dloader_workers": 0,
            "epochs": 2,
            "train_timesteps_per_epoch": 20,
            "train_batches_per_epoch": 4,
            "batch_size": 4,
            "log_interval": 2,
            "seed": 7,
            **changes,
        }
        if "dataset" not in arguments and "dset_root" not in arguments:
            arguments["dataset"] = DiskTrajDataset(dset_root=root, dset_name="buffer", dset_max_size=1000)
        made.append(cls(**arguments))
        return made[-1]

    yield make
    for experiment in made:
        experiment.close()


@pytest.fixture(scope="session")
def metrics_of() -> Callable[..., list[dict[str, Any]]]:
    """Reads the lines of a run's metrics.jsonl, of one section or of all."""

    def read(experiment: Experiment, section: str | None = None) -> list[dict[str, Any]]:
        lines = (experiment.run_dir / "metrics.jsonl").read_text().splitlines()
        parsed = [json.loads(line) for line in lines]
        return [line for line in parsed if section in (None, line["section"])]

    return read
