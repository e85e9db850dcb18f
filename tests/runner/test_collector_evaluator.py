"""Collector and Evaluator without an Experiment: who is reset when, what is recorded, what a seed fixes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import VectorEnv, make_vector_env
from amago.experiment.collector import Collector
from amago.experiment.evaluator import Evaluator
from amago.experiment.random_streams import RandomStreams
from amago.experiment.rollout import ActingPolicy
from amago.hindsight import trajectory_length
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

CPU = torch.device("cpu")


@pytest.fixture
def envs(make_experiment: Callable[..., Any]) -> Iterator[VectorEnv]:
    """Three environments with episodes of six steps."""
    maker = make_experiment().make_train_env
    envs = make_vector_env([maker] * 3, env_mode="sync", seed=0)
    yield envs
    envs.close()


@pytest.fixture
def agent(envs: VectorEnv) -> Agent:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Agent(
            obs_space=envs.observation_space,
            rl2_space=envs.rl2_space,
            action_space=envs.action_space,
            max_seq_len=8,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=GRUTrajEncoder,
        )


@pytest.fixture
def collector(agent: Agent, envs: VectorEnv, tmp_path: Path) -> Iterator[Collector]:
    recorder = TrajectoryRecorder(
        3, save_to=tmp_path / "data", save_len=1e10, max_seq_len=8, rng=np.random.default_rng(0)
    )
    collector = Collector(ActingPolicy(agent, device=CPU), envs, recorder, RandomStreams(1, 0, CPU))
    yield collector
    collector.close()


def lengths(folder: Path) -> list[int]:
    return sorted(trajectory_length(path) for path in folder.iterdir())


def test_episodes_continue_from_one_collection_to_the_next(collector: Collector, tmp_path: Path) -> None:
    assert collector.collect(0, timesteps=4).returns == {}
    assert len(collector.collect(1, timesteps=4).returns["memory"]) == 3
    assert lengths(tmp_path / "data") == [6] * 3
    assert collector.steps_by_env_name == {"memory": 24}


def test_a_checkpoint_writes_unfinished_episodes_and_the_next_collection_resets(
    collector: Collector, tmp_path: Path
) -> None:
    collector.collect(0, timesteps=4)
    state = collector.state_dict()
    assert lengths(tmp_path / "data") == [4] * 3
    assert collector.collect(1, timesteps=4).returns == {}
    assert state["recorder"]["total_frames"] == 12
    collector.load_state_dict(state)
    assert collector.state_dict()["recorder"]["total_frames"] == 12


def test_the_same_index_evaluates_the_same_episodes(agent: Agent, envs: VectorEnv) -> None:
    evaluator = Evaluator(ActingPolicy(agent, device=CPU), RandomStreams(1, 0, CPU))
    first, again, other = (evaluator.evaluate(envs, index, episodes=30)[1].returns for index in (0, 0, 1))
    assert len(first["memory"]) == 30
    assert first == again
    assert first != other
