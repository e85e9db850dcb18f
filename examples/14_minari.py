"""Offline RL on a Minari dataset, D4RL's among them, and online fine-tuning after an epoch.

Needs minari: pip install 'amago-envs[minari]', and the packages of the dataset's environment; the dataset is
downloaded if it is not on this machine. The agent imitates the recorded actions, weighted by their advantage,
and never moves along the critics' gradient. From --online_after_epoch on it also collects: a fifth of the
samples then come from its own replay buffer, whose share grows over 50 epochs. "Normalized Return" is 0 for
the returns of a random policy and 1 for those of an expert, if the dataset states both.

    python examples/14_minari.py --env D4RL/pointmaze/umaze-v2 --run_name umaze --buffer_dir runs --no_log

The full setting takes a million updates: plan for a GPU.
"""

import atexit
import math
import os
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from common import parse_args, run_trials

from amago import Experiment
from amago.agent import exp_filter
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv
from amago.envs.builtin.minari_envs import MinariAMAGOEnv
from amago.loading import DiskTrajDataset, MixtureOfDatasets
from amago.loading.offline import OfflineDataset
from amago.nets.actor_critic import Actor, ResidualActor
from amago.nets.policy_dists import GMM, Beta, TanhGaussian

POLICY_DISTS = {"TanhGaussian": TanhGaussian, "GMM": GMM, "Beta": Beta}
ACTORS = {"ResidualActor": ResidualActor, "Actor": Actor}
SMOKE_DATASET = "amago/random-pendulum-v0"


def record_random_pendulum() -> None:
    """Records SMOKE_DATASET in a temporary folder: three episodes of random actions, for `--smoke`."""
    import minari

    folder = tempfile.TemporaryDirectory(prefix="amago-smoke-")
    atexit.register(folder.cleanup)
    os.environ["MINARI_DATASETS_PATH"] = folder.name
    env = minari.DataCollector(gym.make("Pendulum-v1"))
    for seed in range(3):
        env.reset(seed=seed)
        truncated = False
        while not truncated:
            truncated = env.step(env.action_space.sample())[3]
    env.create_dataset(
        SMOKE_DATASET, algorithm_name="random", author="amago", author_email="", code_permalink=""
    )
    env.close()


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--env", required=True, help="id of the dataset, such as D4RL/pointmaze/umaze-v2")
    parser.add_argument("--max_seq_len", type=int, default=32, help="context length in timesteps")
    parser.add_argument("--policy_dist", choices=list(POLICY_DISTS), default="Beta")
    parser.add_argument("--actor_type", choices=list(ACTORS), default="Actor")
    parser.add_argument(
        "--online_after_epoch", type=float, default=math.inf, help="first epoch that collects; default: never"
    )
    parser.add_argument(
        "--eval_timesteps", type=int, default=1000, help="episode length where the environment has no limit"
    )
    args = parse_args(parser, argv, smoke=f"--env {SMOKE_DATASET} --max_seq_len 8 --online_after_epoch 0")
    if args.env == SMOKE_DATASET:
        record_random_pendulum()

    def make_env() -> AMAGOEnv:
        return MinariAMAGOEnv(args.env, download=True)

    env = make_env()
    spec = env.env.spec
    time_limit = (spec and spec.max_episode_steps) or args.eval_timesteps
    args.timesteps_per_epoch = time_limit

    hidden = 128
    config: dict[str, Any] = {
        "NCritics.d_hidden": hidden,
        "NCriticsTwoHot.d_hidden": hidden,
        "NCriticsTwoHot.output_bins": 64,
        "Actor.d_hidden": hidden,
        "Actor.continuous_dist_type": POLICY_DISTS[args.policy_dist],
        "ResidualActor.feature_dim": hidden,
        "ResidualActor.residual_ff_dim": 2 * hidden,
        "ResidualActor.residual_blocks": 2,
        "ResidualActor.continuous_dist_type": POLICY_DISTS[args.policy_dist],
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", n_layers=1, d_hidden=hidden, d_output=hidden)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(
        config,
        args.agent_type,
        online_coeff=0.0,
        offline_coeff=1.0,
        gamma=0.997,
        # Mazes and kitchens give a few points at most, locomotion thousands.
        reward_multiplier=100.0 if (env.ref_max_score or math.inf) <= 10.0 else 1.0,
        num_actions_for_value_in_critic_loss=3,
        num_actions_for_value_in_actor_loss=5,
        num_critics=5,
        fbc_filter_func=exp_filter,
        actor_type=ACTORS[args.actor_type],
    )
    exploration = switch_exploration(config, "egreedy", eps_start=0.05, eps_end=0.01, steps_anneal=15_000)
    use_config(config, args.configs)

    name = args.env.replace("/", "_")
    group_name = f"{args.run_name}_{name}"

    def make_experiment(run_name: str) -> Experiment:
        # Converted once into trajectory files, which all trials use.
        offline = OfflineDataset.from_minari(
            args.env, download=True, store=Path(args.buffer_dir) / "minari" / name
        )
        online = DiskTrajDataset(
            args.buffer_dir,
            run_name,
            dset_max_size=args.dset_max_size,
            dset_min_size=2 if args.smoke else 250,
        )
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=time_limit + 2,
            stagger_traj_file_lengths=False,
            dataset=MixtureOfDatasets([offline, online], [0.8, 0.2], smooth_sudden_starts=50),
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            start_collecting_at_epoch=args.online_after_epoch,
            val_timesteps_per_epoch=time_limit + 1,
            padded_sampling="right",
            learning_rate=1e-4,
            sample_actions_train=False,
            sample_actions_val=False,
        )

    return run_trials(
        args,
        group_name,
        make_experiment,
        make_env,
        test_timesteps=10_000,
        smoke_steps=time_limit,
        keep_buffer=True,
    )


if __name__ == "__main__":
    main()
