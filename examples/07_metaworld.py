"""Robotic manipulation with k attempts at a hidden goal: one task of Meta-World, ML10 or ML45.

Introduced by Yu et al. 2019. Needs metaworld: pip install 'amago-envs[metaworld]'. The arm must find out
where the goal is: it is not observed. Each of the --k attempts lasts 500 steps and returns at most 5000;
"Trial {i} Success" is 0 or 1. The final test has the goals, and for ml10 and ml45 the tasks, of the
benchmark's test set.

    python examples/07_metaworld.py --benchmark reach-v3 --run_name reach --buffer_dir runs --no_log
    python examples/07_metaworld.py --benchmark ml45 --agent_type multitask --run_name ml45 \\
        --buffer_dir runs --no_log

The returns of ml45's tasks differ widely in scale, which is what the multitask agent is for. The full
setting collects 12 million timesteps and takes a million updates: plan for a GPU. The critics of
--agent_type multitask classify returns between -100 and 5000 k; the AMAGO-2 paper used their wider
default.
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
from amago.envs.builtin.metaworld_ml import Metaworld

ATTEMPT_STEPS = 500


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--benchmark", default="reach-v3", help="name of a task, ml10 or ml45")
    parser.add_argument("--k", type=int, default=3, help="attempts at the same goal")
    parser.add_argument("--max_seq_len", type=int, default=256, help="context length in timesteps")
    parser.add_argument("--hide_rl2s", action="store_true", help="hide previous actions and rewards")
    args = parse_args(parser, argv, smoke="--k 1 --max_seq_len 8")

    rollout_steps = ATTEMPT_STEPS * args.k
    make_train_env = partial(Metaworld, args.benchmark, "train", args.k)
    make_test_env = partial(Metaworld, args.benchmark, "test", args.k)

    config: dict[str, Any] = {
        "NCriticsTwoHot.min_return": -100.0,
        "NCriticsTwoHot.max_return": 5000.0 * args.k,
        "NCriticsTwoHot.output_bins": 96,
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", hide_rl2s=args.hide_rl2s)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=1.0, num_critics=4)
    exploration = switch_exploration(config, "bilevel", rollout_horizon=rollout_steps, steps_anneal=2_000_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_metaworld_{args.benchmark}_k{args.k}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_train_env,
            make_val_env=make_train_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=min(rollout_steps + 1, 4 * args.max_seq_len),
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=15 * rollout_steps + 1,
            learning_rate=5e-4,
            grad_clip=2.0,
        )

    return run_trials(
        args, group_name, make_experiment, make_test_env, test_timesteps=20_000, smoke_steps=ATTEMPT_STEPS
    )


if __name__ == "__main__":
    main()
