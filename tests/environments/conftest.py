"""A short training run for the tests of the builtin environments on their real packages (`make test-envs`)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import pytest

from amago.agent import Agent
from amago.cli_utils import use_config
from amago.envs import AMAGOEnv
from amago.experiment import Experiment
from amago.loading import DiskTrajDataset
from amago.nets.traj_encoders import FFTrajEncoder
from amago.nets.tstep_encoders import get_tstep_encoder_cls, tstep_encoder_for

SMALL_NETS = {
    "FFTstepEncoder.d_hidden": 16,
    "FFTstepEncoder.d_output": 16,
    "CNNTstepEncoder.img_features": 16,
    "CNNTstepEncoder.d_output": 16,
    "FFTrajEncoder.d_model": 16,
    "Actor.d_hidden": 16,
    "NCritics.d_hidden": 16,
    "Agent.num_critics": 2,
    "EpsilonGreedy.steps_anneal": 100,
}


@pytest.fixture
def short_training(tmp_path: Path) -> Iterator[Callable[..., Experiment]]:
    """Trains a tiny agent for one epoch: collects, takes two updates and evaluates; returns the Experiment.

    The timestep encoder is chosen by the observation space. Keyword arguments replace those of Experiment.
    """
    gin.clear_config()
    use_config(SMALL_NETS, finalize=False)
    trained: list[Experiment] = []

    def train(make_env: Callable[[], AMAGOEnv], **changes: Any) -> Experiment:
        if "tstep_encoder_type" not in changes:
            env = make_env()
            changes["tstep_encoder_type"] = get_tstep_encoder_cls(tstep_encoder_for(env.observation_space))
            env.close()
        arguments: dict[str, Any] = {
            "run_name": "run",
            "ckpt_base_dir": tmp_path,
            "max_seq_len": 8,
            "dataset": DiskTrajDataset(dset_root=tmp_path, dset_name="buffer", dset_max_size=1000),
            "traj_encoder_type": FFTrajEncoder,
            "agent_type": Agent,
            "val_timesteps_per_epoch": 10,
            "make_train_env": make_env,
            "make_val_env": make_env,
            "parallel_actors": 2,
            "env_mode": "sync",
            "verbose": False,
            "dloader_workers": 0,
            "epochs": 1,
            "train_timesteps_per_epoch": 20,
            "traj_save_len": 10,
            "stagger_traj_file_lengths": False,
            "train_batches_per_epoch": 2,
            "batch_size": 2,
            "log_interval": 1,
            "seed": 0,
            **changes,
        }
        experiment = Experiment(**arguments)
        trained.append(experiment)
        experiment.start()
        experiment.learn()
        assert experiment.grad_update_counter == 2
        return experiment

    yield train
    for experiment in trained:
        experiment.close()
    gin.clear_config()
