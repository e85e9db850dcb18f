"""Symbolic Alchemy: learn an unknown chemistry within an episode, and use it (Wang et al. 2021).

Needs dm_alchemy, which is not on PyPI: see `amago.envs.builtin.alchemy`. An episode is 10 trials of 20
steps with new stones and potions and the same chemistry. A stone gives -3, -1, 1 or 15, and a trial has
three.

    python examples/06_alchemy.py --run_name alchemy --buffer_dir runs --no_log

A hard problem with a strong local optimum. The full setting collects 12 million timesteps and takes a
million updates; expect to need more than that, and --agent_type multitask for the largest runs.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from common import parse_args, run_trials

from amago import Experiment
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
from amago.envs.builtin.alchemy import SymbolicAlchemy

EPISODE_STEPS = 200


def make_env() -> AMAGOEnv:
    """One environment; every reset draws a new chemistry."""
    return AMAGOEnv(SymbolicAlchemy(), env_name="dm_symbolic_alchemy")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    args = parse_args(parser, argv, smoke="--timesteps_per_epoch 210")

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(config, "ff", n_layers=2, d_hidden=256, d_output=256)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=100.0)
    exploration = switch_exploration(config, "bilevel", rollout_horizon=EPISODE_STEPS, steps_anneal=2_500_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_dm_symbolic_alchemy"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=EPISODE_STEPS + 1,
            traj_save_len=EPISODE_STEPS + 1,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=2000,
        )

    return run_trials(
        args, group_name, make_experiment, make_env, test_timesteps=20_000, smoke_steps=EPISODE_STEPS
    )


if __name__ == "__main__":
    main()
