"""Examples learn: control with discrete and continuous actions, memory over fifty steps."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.examples.running import EXAMPLES, run_example

Train = Callable[..., dict[str, float]]

# As the docstrings of the scripts have them.
SMALL = "--seed 0 --no_log --env_mode sync --dloader_workers 0 --memory_size 64 --memory_layers 1"
CARTPOLE = (
    "--env CartPole-v1 --traj_encoder ff --max_seq_len 16 --parallel_actors 16 --epochs 50 "
    "--timesteps_per_epoch 100 --batches_per_epoch 50 --batch_size 64"
)
PENDULUM = (
    "--env Pendulum-v1 --traj_encoder ff --max_seq_len 8 --parallel_actors 8 --epochs 50 "
    "--timesteps_per_epoch 50 --batches_per_epoch 50 --batch_size 48"
)
TMAZE = "--horizon 50 --parallel_actors 16 --epochs 80 --timesteps_per_epoch 102 --batches_per_epoch 25"


@pytest.fixture
def train(buffer_dir: Path) -> Train:
    """Runs an example with a .gin file and a fixed seed; the metrics of its final test."""

    def run(script: str, gin_file: str, arguments: str) -> dict[str, float]:
        config = ["--configs", str(EXAMPLES / gin_file)]
        return run_example(script, buffer_dir, [*config, *SMALL.split(), *arguments.split()])

    return run


@pytest.mark.slow
def test_cartpole_is_balanced(train: Train) -> None:
    metrics = train("01_basic_gym.py", "cartpole.gin", CARTPOLE)
    assert metrics["Average Total Return in CartPole-v1"] > 400


@pytest.mark.slow
def test_pendulum_swings_up(train: Train) -> None:
    metrics = train("01_basic_gym.py", "pendulum.gin", PENDULUM)
    assert metrics["Average Total Return in Pendulum-v1"] > -300


def success_in_the_maze(train: Train, encoder: str) -> float:
    """Success over 512 rollouts of a corridor of 50 steps."""
    arguments = f"{TMAZE} --traj_encoder {encoder} --test_timesteps {32 * 51}"
    return train("04_tmaze.py", "tmaze.gin", arguments)["Average Success in TMazePassive-H50"]


@pytest.mark.slow
def test_a_transformer_remembers_the_cue_through_the_corridor(train: Train) -> None:
    assert success_in_the_maze(train, "transformer") >= 0.95


@pytest.mark.slow
def test_without_memory_the_maze_is_not_solved(train: Train) -> None:
    """Not less than a guess either: it learns to reach the junction."""
    assert 0.4 <= success_in_the_maze(train, "ff") <= 0.6
