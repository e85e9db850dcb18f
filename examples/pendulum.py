"""Continuous control, without memory: swing a pendulum up and hold it there (Pendulum-v1, 200 steps).

python examples/pendulum.py --run_name pendulum --buffer_dir runs --no_log
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
    return AMAGOEnv(gym.make("Pendulum-v1"), env_name="Pendulum-v1")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, and returns the metrics of the final evaluation."""
    parser = make_parser("Swing a pendulum up and hold it there (Pendulum-v1).")
    parser.set_defaults(traj_encoder="ff", memory_size=64, memory_layers=1, parallel_actors=8)
    parser.set_defaults(epochs=50, timesteps_per_epoch=50, batches_per_epoch=50, batch_size=16)
    args = parser.parse_args(argv)

    config: dict[str, Any] = {"Actor.d_hidden": 64, "NCritics.d_hidden": 64}
    tstep_encoder = switch_tstep_encoder(config, "ff", d_hidden=64, d_output=64, n_layers=1)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, gamma=0.95, reward_multiplier=1.0, tau=0.01)
    # In steps of one actor.
    anneal = int(0.8 * args.epochs * args.timesteps_per_epoch)
    exploration = switch_exploration(config, "egreedy", eps_end=0.01, steps_anneal=anneal)
    use_config(config, args.configs)

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=25,
            # Episodes of 200 steps are written in segments, so learning need not wait for their end.
            traj_save_len=50,
            group_name="examples",
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=400,
            learning_rate=5e-4,
            lr_warmup_steps=100,
            # Evaluate the mean of the policy's distribution.
            sample_actions_val=False,
        )

    return train(args, make_experiment, make_env)


if __name__ == "__main__":
    main()
