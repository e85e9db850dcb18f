"""A script as a user writes it; scripts/check_installs.py has mypy check it against the installed wheels."""

from typing import Any

import gymnasium
import numpy as np
import torch
from typing_extensions import assert_type

import amago
from amago import Experiment, TrajEncoder, kernels, register_traj_encoder
from amago.agent import Agent, Batch, binary_filter
from amago.cli_utils import switch_agent, switch_traj_encoder, use_config
from amago.envs import AMAGOEnv
from amago.envs.exploration import EpsilonGreedy
from amago.hindsight import FrozenTraj, Relabeler
from amago.loading import DiskTrajDataset, RLData, RLDataset
from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder


def make_env() -> AMAGOEnv:
    return AMAGOEnv(gymnasium.make("CartPole-v1"), env_name="CartPole")


@register_traj_encoder("mean")
class MeanTrajEncoder(TrajEncoder):
    """The mean of the timesteps so far."""

    def __init__(self, tstep_dim: int, max_seq_len: int) -> None:
        super().__init__(tstep_dim, max_seq_len)
        self.tstep_dim = tstep_dim

    @property
    def emb_dim(self) -> int:
        return self.tstep_dim

    def forward(
        self,
        seq: torch.Tensor,
        time_idxs: torch.Tensor,
        hidden_state: Any = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor, Any]:
        counts = torch.arange(1, seq.shape[1] + 1, device=seq.device)[:, None]
        return seq.cumsum(1) / counts, hidden_state


class NegativeRewards(Relabeler):
    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        traj.rews = -np.abs(traj.rews)
        return traj


class OneTrajectory(RLDataset):
    def __init__(self, data: RLData) -> None:
        super().__init__(dset_name="one")
        self.data = data

    @property
    def save_new_trajs_to(self) -> None:
        return None

    @property
    def ready_for_training(self) -> bool:
        return True

    def get_description(self) -> str:
        return "one trajectory"

    def sample_random_trajectory(self) -> RLData:
        return self.data


def main() -> None:
    config: dict[str, Any] = {"amago.agent.Agent.gamma": 0.99}
    traj_encoder_type = switch_traj_encoder(config, arch="transformer", memory_size=64, layers=2)
    agent_type = switch_agent(config, "agent", reward_multiplier=1.0)
    use_config(config, finalize=False)
    dataset = DiskTrajDataset(
        dset_root="runs", dset_name="buffer", dset_max_size=100, relabeler=NegativeRewards()
    )
    experiment = amago.Experiment(
        run_name="cartpole",
        ckpt_base_dir="runs",
        max_seq_len=32,
        dataset=dataset,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=traj_encoder_type or TformerTrajEncoder,
        agent_type=agent_type or Agent,
        exploration_wrapper_type=EpsilonGreedy,
        val_timesteps_per_epoch=100,
        make_train_env=make_env,
        make_val_env=make_env,
        env_mode="sync",
    )
    assert_type(experiment, Experiment)
    experiment.start()
    experiment.learn()
    results = experiment.evaluate_test(make_env, timesteps=500)
    assert_type(results, dict[str, float])


def advantages(batch: Batch) -> torch.Tensor:
    weights = binary_filter(batch.rews)
    assert_type(weights, torch.Tensor)
    return weights


def act(obs: Any) -> Any:
    policy = amago.Policy.load("runs/cartpole")
    assert_type(policy, amago.Policy)
    return policy.act(obs)


def attend(q: torch.Tensor) -> torch.Tensor:
    out = kernels.attention(q, q, q, window=8)
    assert_type(out, torch.Tensor)
    assert_type(MeanTrajEncoder(4, 8), MeanTrajEncoder)  # the decorator keeps the class
    return out


if __name__ == "__main__":
    main()
