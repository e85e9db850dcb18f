"""Ordinary reinforcement learning: any gymnasium environment with vector observations.

A Markov decision process is the special case in which memory is not needed, so --traj_encoder ff does too.

    python examples/01_basic_gym.py --env LunarLander-v3 --run_name lander --buffer_dir runs --no_log

Small environments do not need the full setting (12 million timesteps, a million updates). These two take
minutes on two CPU cores, with the networks and learning rates of the .gin files:

    python examples/01_basic_gym.py --env CartPole-v1 --configs examples/cartpole.gin --run_name cartpole \\
        --buffer_dir runs --no_log --traj_encoder ff --memory_size 64 --memory_layers 1 --max_seq_len 16 \\
        --env_mode sync --dloader_workers 0 --parallel_actors 16 --epochs 50 --timesteps_per_epoch 100 \\
        --batches_per_epoch 50 --batch_size 64
    python examples/01_basic_gym.py --env Pendulum-v1 --configs examples/pendulum.gin --run_name pendulum \\
        --buffer_dir runs --no_log --traj_encoder ff --memory_size 64 --memory_layers 1 --max_seq_len 8 \\
        --env_mode sync --dloader_workers 0 --parallel_actors 8 --epochs 50 --timesteps_per_epoch 50 \\
        --batches_per_epoch 50 --batch_size 48
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from common import parse_args, run_trials

from amago import Experiment
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--env", required=True, help="id of the environment, such as CartPole-v1")
    parser.add_argument("--max_seq_len", type=int, default=128, help="context length in timesteps")
    parser.add_argument("--eval_timesteps", type=int, default=1000, help="length of an evaluation, per actor")
    args = parse_args(parser, argv, smoke="--env CartPole-v1 --max_seq_len 4")

    def make_env() -> AMAGOEnv:
        return AMAGOEnv(gym.make(args.env), env_name=args.env.replace("/", "_"))

    config: dict[str, Any] = {"Discrete.clip_prob_high": 1.0, "Discrete.clip_prob_low": 1e-6}
    tstep_encoder = switch_tstep_encoder(config, "ff")
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=1.0)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_{args.env.replace('/', '_')}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=8 * args.max_seq_len,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            val_timesteps_per_epoch=args.eval_timesteps,
        )

    return run_trials(args, group_name, make_experiment, make_env, test_timesteps=10_000)


if __name__ == "__main__":
    main()
