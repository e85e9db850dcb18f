"""Hindsight: a rollout that missed its goals is a good example of how to reach the places where it came.

The agent sees the walls next to it and a list of --goals cells that it must visit in order, 1 for each;
random walks rarely find any. Stored rollouts are therefore relabelled whenever they are sampled
(Andrychowicz et al. 2017): cells that were visited take the place of goals that were not, and rewards are
computed anew. `HindsightInstructionReplay` does this; it is a `Relabeler`, of which you can write your
own. A return is at most --goals.

    python examples/13_mazerunner_relabeling.py --relabel some --run_name maze --buffer_dir runs --no_log

Compare --relabel none. The full setting collects 12 million timesteps and takes a million updates on
sequences of 250: plan for a GPU, and tune the exploration.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
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
from amago.envs.builtin.mazerunner import HindsightInstructionReplay, MazeRunnerAMAGOEnv
from amago.loading import DiskTrajDataset


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--maze_size", type=int, default=11, help="side of the square maze")
    parser.add_argument("--goals", type=int, default=3, help="cells to visit, in order")
    parser.add_argument("--time_limit", type=int, default=250, help="steps of a rollout")
    parser.add_argument(
        "--relabel", choices=["some", "all", "none"], default="some", help="goals to replace in hindsight"
    )
    parser.add_argument("--randomized_actions", action="store_true", help="shuffle the actions in each maze")
    args = parse_args(parser, argv, smoke="--time_limit 20")

    make_env = partial(
        MazeRunnerAMAGOEnv,
        maze_dim=args.maze_size,
        num_goals=args.goals,
        time_limit=args.time_limit,
        randomized_action_space=args.randomized_actions,
    )

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(
        config, "ff", n_layers=2, d_hidden=128, specify_obs_keys=["obs", "goals"]
    )
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type)
    exploration = switch_exploration(config, "egreedy", steps_anneal=500_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_mazerunner_{args.relabel}"

    def make_experiment(run_name: str) -> Experiment:
        relabeler = HindsightInstructionReplay(args.goals, args.relabel)
        dataset = DiskTrajDataset(
            dset_root=args.buffer_dir,
            dset_name=run_name,
            dset_max_size=args.dset_max_size,
            relabeler=relabeler,
        )
        relabeler.rng = dataset.rng  # so that samples depend on the run's seed alone
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=args.time_limit,
            # Whole rollouts: a goal is only known to be missed at the end.
            traj_save_len=args.time_limit + 1,
            stagger_traj_file_lengths=False,
            dataset=dataset,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=5 * args.time_limit,
        )

    return run_trials(
        args, group_name, make_experiment, make_env, test_timesteps=20 * args.time_limit, smoke_steps=40
    )


if __name__ == "__main__":
    main()
