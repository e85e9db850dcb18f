"""The examples learn their tasks: control of discrete and continuous actions, and memory over fifty steps."""

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def train(example, buffer_dir):
    """Runs an example to its end with a fixed seed; the metrics of its final evaluation."""

    def run(name, *arguments):
        common = ["--run_name", name, "--buffer_dir", str(buffer_dir), "--no_log", "--seed", "0"]
        return example(name).main([*common, *arguments])

    return run


def test_cartpole_is_balanced(train):
    assert train("cartpole")["Average Total Return in CartPole-v1"] > 400


def test_pendulum_swings_up(train):
    assert train("pendulum")["Average Total Return in Pendulum-v1"] > -300


def success_in_the_maze(train, encoder):
    """Success over 500 evaluation rollouts of a corridor of 50 steps."""
    metrics = train("tmaze", "--traj_encoder", encoder, "--corridor_length", "50", "--eval_episodes", "500")
    return metrics["Average Success in T-Maze"]


def test_a_transformer_remembers_the_cue_through_the_corridor(train):
    assert success_in_the_maze(train, "transformer") >= 0.95


def test_without_memory_the_maze_is_a_guess(train):
    assert success_in_the_maze(train, "ff") <= 0.6
