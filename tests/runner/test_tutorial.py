"""The tutorial's snippets, as a user would type them: environments, parts, gin settings, runs, async modes.

Where a snippet trains, sizes are small.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import gymnasium
import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import amago
from amago import Experiment, TstepEncoder
from amago.agent import Agent, MultiTaskAgent
from amago.cli_utils import (
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv
from amago.envs.exploration import EpsilonGreedy
from amago.loading import DiskTrajDataset
from amago.nets.cnn import IMPALAishCNN, NatureishCNN
from amago.nets.ff import Normalization
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder, MambaTrajEncoder, TformerTrajEncoder
from amago.nets.transformer import SlidingWindowFlexAttention
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder

pytestmark = pytest.mark.usefixtures("small_nets")

# What the snippets abbreviate as "...": sizes that let a run end within a second.
SMALL: dict[str, Any] = {
    "run_name": "some_name",
    "max_seq_len": 16,
    "val_timesteps_per_epoch": 20,
    "parallel_actors": 2,
    "env_mode": "sync",
    "train_timesteps_per_epoch": 20,
    "train_batches_per_epoch": 2,
    "batch_size": 2,
    "epochs": 1,
    "dloader_workers": 0,
    "verbose": False,
}


def make_env() -> AMAGOEnv:
    env = gymnasium.make("Pendulum-v1", max_episode_steps=10)
    # `env_name` is used for logging
    return amago.envs.AMAGOEnv(env=env, env_name="Pendulum", batched_envs=1)


def train(experiment: Experiment) -> Experiment:
    experiment.start()
    experiment.learn()
    experiment.close()
    return experiment


def small_experiment(tmp_path: Path, **parts: Any) -> Experiment:
    arguments: dict[str, Any] = {
        **SMALL,
        "ckpt_base_dir": tmp_path,
        "make_train_env": make_env,
        "make_val_env": make_env,
        "tstep_encoder_type": FFTstepEncoder,
        "traj_encoder_type": FFTrajEncoder,
        "agent_type": Agent,
        **parts,
    }
    if "dset_root" not in parts:
        arguments["dataset"] = DiskTrajDataset(dset_root=tmp_path, dset_name="data", dset_max_size=100)
    return Experiment(**arguments)


class MyMetaRLEnv(gym.Wrapper):  # type: ignore[type-arg]
    """The tutorial's k-shot environment: it resets itself to the same task and ends after the k-th attempt."""

    k = 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.task_seed = seed
        obs, info = self.env.reset(seed=seed)
        self.current_episode = 0
        self.episode_return = 0.0
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        self.episode_return += float(reward)
        if terminated or truncated:
            next_obs, info = self.env.reset(seed=self.task_seed)
            info[f"{AMAGO_ENV_LOG_PREFIX} Ep {self.current_episode} Return"] = self.episode_return
            self.episode_return = 0.0
            self.current_episode += 1
        done = self.current_episode >= self.k
        return next_obs, float(reward), done, done, info


def test_1_meta_rl_environments_reset_themselves_and_log_by_attempt(tmp_path: Path) -> None:
    def make() -> AMAGOEnv:
        return AMAGOEnv(MyMetaRLEnv(gymnasium.make("CartPole-v1", max_episode_steps=5)), env_name="meta")

    experiment = small_experiment(tmp_path, make_train_env=make, make_val_env=make)
    experiment.start()
    metrics = experiment.evaluate_test(make)
    experiment.close()
    assert {"Average Ep 0 Return in meta", "Average Ep 1 Return in meta"} <= set(metrics)
    assert metrics["Average Total Return in meta"] == 10.0


class TutorialsOwnMetaRLEnv(MyMetaRLEnv):
    """The same with the signature that the tutorial gives it."""

    def reset(self) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return super().reset()


@pytest.mark.filterwarnings("ignore:.*takes no seed:UserWarning")
def test_1_meta_rl_environments_may_take_no_seed(tmp_path: Path) -> None:
    def make() -> AMAGOEnv:
        return AMAGOEnv(
            TutorialsOwnMetaRLEnv(gymnasium.make("CartPole-v1", max_episode_steps=5)), env_name="meta"
        )

    assert train(small_experiment(tmp_path, make_train_env=make, make_val_env=make)).counters.env_steps == 40


class VectorizedCounter(gym.Env[np.ndarray, np.ndarray]):
    """An environment that steps a whole batch itself, as the tutorial's gymnax wrapper does."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = np.zeros(self.num_envs, np.int64)
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.time += 1
        done = self.time >= 5
        self.time[done] = 0
        obs = np.repeat(self.time[:, None] / 5, 3, axis=1).astype(np.float32)
        rewards = np.asarray(action, np.float32).reshape(self.num_envs)
        return obs, rewards, done, np.zeros_like(done), {}


def test_1_environments_that_are_vectorized_already(tmp_path: Path) -> None:
    def make() -> AMAGOEnv:
        return AMAGOEnv(env=VectorizedCounter(8), env_name="vectorized", batched_envs=8)

    experiment = train(
        small_experiment(
            tmp_path,
            make_train_env=make,
            make_val_env=make,
            parallel_actors=8,  # match batch dim of environment
            env_mode="already_vectorized",  # prevents spawning multiple async instances
        )
    )
    assert experiment.counters.env_steps == 160


class ImagesAndJointsEnv(gym.Env[dict[str, np.ndarray], int]):
    """Observations of two kinds, for the tutorial's encoder."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Dict(
            {
                "image": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
                "joints": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
            }
        )
        self.action_space = gym.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation(), float(action == 1), self.time >= 8, False, {}

    def observation(self) -> dict[str, np.ndarray]:
        return {
            "image": self.np_random.integers(0, 256, (36, 36, 3), dtype=np.uint8),
            "joints": self.np_random.uniform(-1, 1, 4).astype(np.float32),
        }


class MultiModalRobotTstepEncoder(TstepEncoder):
    """The tutorial's own timestep encoder, with two slips of the pen corrected.

    They are `def __init_(obs_space, ...)`, which lacked two underscores and `self`, and "Noramlization". The
    imports of torch, `torch.nn` and `torch.nn.functional`, which the snippet leaves out, stand at the top.
    """

    def __init__(self, obs_space: gym.spaces.Dict, rl2_space: gym.spaces.Box) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        img_space = obs_space["image"]
        joint_space = obs_space["joints"]
        self.cnn = NatureishCNN(img_shape=img_space.shape)
        cnn_out_shape = self.cnn(self.cnn.blank_img).shape[-1]
        self.joint_rl2_emb = nn.Linear(joint_space.shape[-1] + rl2_space.shape[-1], 32)
        self.merge = nn.Linear(cnn_out_shape + 32, 128)
        # we'll represent each Timestep as a 64d vector
        self.output_layer = nn.Linear(128, 64)
        self.out_norm = Normalization("layer", 64)

    @property
    def emb_dim(self) -> int:
        # tell the rest of the model what shape to expect
        return 64

    def inner_forward(self, obs: Any, rl2s: Any, log_dict: Any = None) -> Any:
        img_features = self.cnn(obs["image"])
        joints_and_rl2s = torch.cat((obs["joints"], rl2s), dim=-1)
        joint_features = F.leaky_relu(self.joint_rl2_emb(joints_and_rl2s))
        merged = torch.cat((img_features, joint_features), dim=-1)
        merged = F.leaky_relu(self.merge(merged))
        return self.out_norm(self.output_layer(merged))


def test_2_create_your_own_timestep_encoder(tmp_path: Path) -> None:
    def make() -> AMAGOEnv:
        return AMAGOEnv(ImagesAndJointsEnv(), env_name="robot")

    experiment = train(
        small_experiment(
            tmp_path, make_train_env=make, make_val_env=make, tstep_encoder_type=MultiModalRobotTstepEncoder
        )
    )
    assert experiment.counters.gradient_steps == 2
    assert isinstance(experiment.policy.tstep_encoder, MultiModalRobotTstepEncoder)
    assert experiment.policy.traj_encoder.tstep_dim == 64


@pytest.mark.parametrize(
    "traj_encoder_type", [FFTrajEncoder, GRUTrajEncoder, MambaTrajEncoder, TformerTrajEncoder]
)
def test_3_pick_a_sequence_model(tmp_path: Path, traj_encoder_type: Any) -> None:
    assert train(small_experiment(tmp_path, traj_encoder_type=traj_encoder_type)).counters.gradient_steps == 2


def test_3_pick_an_agent(tmp_path: Path) -> None:
    assert train(small_experiment(tmp_path, agent_type=MultiTaskAgent)).counters.gradient_steps == 2


def test_6_a_larger_cnn_through_gin() -> None:
    config = {
        "amago.nets.tstep_encoders.CNNTstepEncoder.cnn_type": IMPALAishCNN,
        "amago.nets.cnn.IMPALAishCNN.cnn_block_depths": [32, 64, 64],
    }
    # changes the default values
    use_config(config)
    encoder = CNNTstepEncoder(obs_space={"observation": (16, 16, 3)}, rl2_space=(3,))
    assert isinstance(encoder.cnn, IMPALAishCNN)
    # the same with a short name
    use_config({"IMPALAishCNN.cnn_block_depths": [16, 32]})
    assert gin.query_parameter("amago.nets.cnn.IMPALAishCNN.cnn_block_depths") == [16, 32]


def test_6_a_transformer_with_another_attention(tmp_path: Path) -> None:
    config = {
        "TformerTrajEncoder.n_heads": 4,
        "TformerTrajEncoder.d_model": 32,
        "TformerTrajEncoder.d_ff": 64,
        "TformerTrajEncoder.attention_type": SlidingWindowFlexAttention,
        "SlidingWindowFlexAttention.window_size": 128,
    }
    use_config(config)
    experiment = train(small_experiment(tmp_path, traj_encoder_type=TformerTrajEncoder))
    modules = experiment.policy.traj_encoder.modules()
    found = [m for m in modules if isinstance(m, SlidingWindowFlexAttention)]
    assert {m.mask_mod.window for m in found} == {128}
    assert experiment.policy.traj_encoder.emb_dim == 32


def test_6_an_easier_way_and_gin_files(tmp_path: Path) -> None:
    environment_config, rl_config = tmp_path / "environment_config.gin", tmp_path / "rl_config.gin"
    environment_config.write_text("MultiTaskAgent.gamma = 0.9\nMultiTaskAgent.tau = 0.01\n")
    rl_config.write_text("MultiTaskAgent.gamma = 0.95\n")
    config: dict[str, Any] = {
        # niche changes a level below the `TstepEncoder` / `TrajEncoder`, so we still have to specify them
        "amago.nets.transformer.SlidingWindowFlexAttention.window_size": 128,
        "amago.nets.cnn.IMPALAishCNN.cnn_block_depths": [32, 64, 64],
    }
    tstep_encoder_type = switch_tstep_encoder(config, arch="cnn", cnn_type=IMPALAishCNN)
    traj_encoder_type = switch_traj_encoder(
        config,
        arch="transformer",
        d_model=512,
        d_ff=2048,
        n_heads=16,
        attention_type=SlidingWindowFlexAttention,
    )
    exploration_wrapper_type = switch_exploration(
        config, strategy="egreedy", eps_start=1.0, eps_end=0.01, steps_anneal=200_000
    )
    # also customize random RL details as an example
    agent_type = switch_agent(config, agent="multitask", num_critics=6, gamma=0.998)
    # these changes are applied in order from left to right; the final one counts
    use_config(config, gin_configs=[str(environment_config), str(rl_config)])
    assert (tstep_encoder_type, traj_encoder_type) == (CNNTstepEncoder, TformerTrajEncoder)
    assert (exploration_wrapper_type, agent_type) == (EpsilonGreedy, MultiTaskAgent)
    assert gin.get_bindings(MultiTaskAgent) == {"num_critics": 6, "gamma": 0.95, "tau": 0.01}


def test_7_start_the_experiment_and_run_training(tmp_path: Path) -> None:
    dataset = DiskTrajDataset(dset_root=tmp_path, dset_name="buffer", dset_max_size=100)
    experiment = Experiment(
        dataset=dataset,
        make_train_env=make_env,
        make_val_env=make_env,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=TformerTrajEncoder,
        agent_type=Agent,
        exploration_wrapper_type=EpsilonGreedy,
        ckpt_base_dir=str(tmp_path / "some/place/"),
        **SMALL,
    )
    experiment.start()
    experiment.learn()
    metrics = experiment.evaluate_test(make_env)
    experiment.close()
    assert "Average Total Return in Pendulum" in metrics
    assert (tmp_path / "some" / "place" / "some_name" / "config.txt").is_file()


def test_offline_rl_from_protected_data(tmp_path: Path) -> None:
    """Data in `buffer/protected` and no collection at all."""
    collected = train(small_experiment(tmp_path, run_name="collected", start_learning_at_epoch=9))
    fifo = tmp_path / "data" / "buffer" / "fifo"
    offline = DiskTrajDataset(dset_root=tmp_path, dset_name="offline", dset_max_size=100)
    protected = tmp_path / "offline" / "buffer" / "protected"
    for path in fifo.iterdir():
        path.rename(protected / path.name)
    experiment = small_experiment(tmp_path)
    experiment.dataset = offline
    experiment.start_collecting_at_epoch = float("inf")
    assert train(experiment).counters.gradient_steps == 2
    assert (collected.counters.env_steps, experiment.counters.env_steps) == (40, 0)
    assert list(protected.iterdir())


def test_a_script_of_the_whole(tmp_path: Path) -> None:
    """Every snippet's pieces together run as one program would."""
    make: Callable[[], AMAGOEnv] = make_env
    experiment = small_experiment(
        tmp_path,
        make_train_env=[make, make],
        make_val_env=make,
        env_mode="async",
        epochs=2,
        dloader_workers=1,
    )
    assert train(experiment).counters.gradient_steps == 4
