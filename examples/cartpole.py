"""Ordinary reinforcement learning, without memory: balance a pole on a cart (CartPole-v1, at most 500 steps).

python examples/cartpole.py --run_name cartpole --buffer_dir runs --no_log
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

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

ENV = "CartPole-v1"


def make_env() -> AMAGOEnv:
    """One environment, ready for an Experiment."""
    return AMAGOEnv(gym.make(ENV), env_name=ENV)


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The common options, with defaults for two CPU cores and a few minutes."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--eval_episodes", type=int, default=100, help="episodes of the final evaluation")
    parser.set_defaults(
        traj_encoder="ff",
        memory_size=64,
        memory_layers=1,
        env_mode="sync",
        parallel_actors=16,
        epochs=50,
        timesteps_per_epoch=100,
        batches_per_epoch=50,
        batch_size=32,
        dset_max_size=2000,
        dloader_workers=0,
        val_interval=10,
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, and returns the metrics of the final evaluation."""
    args = parse_args(argv)
    config: dict[str, Any] = {
        "Actor.d_hidden": 128,
        "NCritics.d_hidden": 128,
        # Files differ in length: drawing them all alike would show mostly the short episodes of bad policies.
        "DiskTrajDataset.sample_by": "timesteps",
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", d_hidden=128, d_output=64)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    # Quick targets and 5-step returns: values that sum up 100 steps must grow within few updates.
    agent = switch_agent(config, args.agent_type, gamma=0.99, reward_multiplier=1.0, tau=0.2, n_step=5)
    # Steps are those of one actor: the last fifth of training has the least exploration.
    anneal = int(0.8 * args.epochs * args.timesteps_per_epoch)
    exploration = switch_exploration(config, "egreedy", eps_end=0.01, steps_anneal=anneal)
    use_config(config, args.configs)
    experiment = create_experiment_from_cli(
        args,
        make_train_env=make_env,
        make_val_env=make_env,
        max_seq_len=32,
        traj_save_len=100,
        group_name="examples",
        run_name=args.run_name,
        agent_type=agent,
        tstep_encoder_type=tstep_encoder,
        traj_encoder_type=traj_encoder,
        exploration_wrapper_type=exploration,
        val_timesteps_per_epoch=1000,
        # Windows may overhang a trajectory: those inside it alone would hardly ever show its last step, the fall.
        padded_sampling="both",
        learning_rate=5e-4,
        lr_warmup_steps=100,
        # A balancing policy is judged without the share of random actions that its distribution keeps.
        sample_actions_val=False,
    )
    experiment.start()
    experiment.learn()
    metrics = experiment.evaluate_test(make_env, episodes=args.eval_episodes)
    experiment.close()
    return metrics


if __name__ == "__main__":
    print(main())
