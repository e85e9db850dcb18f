"""The examples run, and learn: control with discrete and continuous actions, memory over fifty steps."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Train = Callable[..., dict[str, float]]


@pytest.fixture
def train(example: Callable[[str], ModuleType], buffer_dir: Path) -> Train:
    """Runs an example to its end with a fixed seed; the metrics of its final evaluation."""

    def run(name: str, *arguments: str) -> dict[str, float]:
        common = ["--run_name", name, "--buffer_dir", str(buffer_dir), "--no_log", "--seed", "0"]
        metrics: dict[str, float] = example(name).main([*common, *arguments])
        return metrics

    return run


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "tmaze"])
def test_an_example_runs_from_start_to_evaluation(train: Train, name: str) -> None:
    size = "--epochs 1 --timesteps_per_epoch 210 --batches_per_epoch 2 --parallel_actors 2 --eval_episodes 4"
    assert train(name, *size.split())


@pytest.mark.slow
def test_cartpole_is_balanced(train: Train) -> None:
    assert train("cartpole")["Average Total Return in CartPole-v1"] > 400


@pytest.mark.slow
def test_pendulum_swings_up(train: Train) -> None:
    assert train("pendulum")["Average Total Return in Pendulum-v1"] > -300


def success_in_the_maze(train: Train, encoder: str) -> float:
    """Success over 500 evaluation rollouts of a corridor of 50 steps."""
    metrics = train("tmaze", "--traj_encoder", encoder, "--corridor_length", "50", "--eval_episodes", "500")
    return metrics["Average Success in T-Maze"]


@pytest.mark.slow
def test_a_transformer_remembers_the_cue_through_the_corridor(train: Train) -> None:
    assert success_in_the_maze(train, "transformer") >= 0.95


@pytest.mark.slow
def test_without_memory_the_maze_is_not_solved(train: Train) -> None:
    """Not less than a guess either: it learns to reach the junction."""
    assert 0.4 <= success_in_the_maze(train, "ff") <= 0.6
