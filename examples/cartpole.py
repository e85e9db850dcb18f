"""Ordinary reinforcement learning, without memory: balance a pole on a cart for 500 steps (CartPole-v1).

python examples/cartpole.py --run_name cartpole --buffer_dir runs --no_log
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from common import make_parser, train

from amago import Experiment
from amago.cli_utils import (
    create_experiment_from_cli,
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv


def make_env() -> AMAGOEnv:
    """One environment, ready for an Experiment."""
    return AMAGOEnv(gym.make("CartPole-v1"), env_name="CartPole-v1")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, and returns the metrics of the final evaluation."""
    parser = make_parser("Balance a pole on a cart (CartPole-v1).")
    parser.set_defaults(traj_encoder="ff", memory_size=64, memory_layers=1, parallel_actors=16)
    parser.set_defaults(epochs=50, timesteps_per_epoch=100, batches_per_epoch=50, batch_size=32)
    args = parser.parse_args(argv)

    config: dict[str, Any] = {
        "Actor.d_hidden": 128,
        "NCritics.d_hidden": 128,
        # Sampling files uniformly would mostly show the short episodes of bad policies.
        "DiskTrajDataset.sample_by": "timesteps",
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", d_hidden=128, d_output=64)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    # The reward is 1 in every step, so short discounts carry no information. A large tau and 5-step returns let
    # values that sum 100 rewards grow within few updates.
    agent = switch_agent(
        config,
        args.agent_type,
        gamma=0.99,
        use_multigamma=False,
        reward_multiplier=1.0,
        tau=0.1,
        n_step=5,
    )
    # In steps of one actor.
    anneal = int(0.8 * args.epochs * args.timesteps_per_epoch)
    exploration = switch_exploration(config, "egreedy", eps_end=0.01, steps_anneal=anneal)
    use_config(config, args.configs)

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=32,
            traj_save_len=100,
            group_name="examples",
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=1000,
            # Windows may extend past both ends of a trajectory; otherwise its last step, the fall, is rare.
            padded_sampling="both",
            learning_rate=5e-4,
            lr_warmup_steps=100,
            # Evaluate the most likely action; a sampled one is sometimes a mistake.
            sample_actions_val=False,
        )

    return train(args, make_experiment, make_env)


if __name__ == "__main__":
    main()
