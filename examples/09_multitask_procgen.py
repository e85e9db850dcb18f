"""Generalisation: Procgen games on levels never seen, with two attempts at each level (Cobbe et al. 2020).

Needs procgen: pip install --no-deps procgen2==0.10.7 gym3==0.3.3 && pip install cffi imageio. The policy
trains on levels 0 to --train_seeds and is evaluated on others; a mark in the image tells the second
attempt from the first. easy-rescaled multiplies the rewards of coinrun by 100 and those of climber by 0.1,
which --agent_type multitask should not care about. memory-hard plays all 16 games, six of them in a mode
that needs memory. A return is the sum of two attempts' rewards, whose bounds are those of the games.

    python examples/09_multitask_procgen.py --agent_type multitask --run_name procgen --buffer_dir runs --no_log

The full setting collects 12 million timesteps and takes a million updates on images: plan for a GPU.
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
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv
from amago.envs.builtin.procgen_envs import ALL_PROCGEN_GAMES, ProcgenAMAGO, TwoAttemptMTProcgen
from amago.nets.cnn import IMPALAishCNN

EASY_GAMES = ["climber", "coinrun", "jumper", "ninja", "leaper"]
LAST_LEVEL = 10_000_000
# Arguments of TwoAttemptMTProcgen, and a length that most rollouts stay below.
DISTRIBUTIONS: dict[str, tuple[dict[str, Any], int]] = {
    "easy": ({"games": EASY_GAMES, "distribution_mode": "easy"}, 2000),
    "easy-rescaled": (
        {
            "games": EASY_GAMES,
            "distribution_mode": "easy",
            "reward_scales": {"coinrun": 100.0, "climber": 0.1},
        },
        2000,
    ),
    "memory-hard": ({"games": ALL_PROCGEN_GAMES, "distribution_mode": "memory-hard"}, 5000),
}


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--max_seq_len", type=int, default=256, help="context length in timesteps")
    parser.add_argument("--distribution", choices=list(DISTRIBUTIONS), default="easy")
    parser.add_argument("--train_seeds", type=int, default=10_000, help="last level of training")
    args = parse_args(parser, argv, smoke="--max_seq_len 4")

    settings, horizon = DISTRIBUTIONS[args.distribution]

    def make_env(seed_range: tuple[int, int]) -> AMAGOEnv:
        return ProcgenAMAGO(TwoAttemptMTProcgen(**settings, seed_range=seed_range))

    make_train_env = partial(make_env, (0, args.train_seeds))
    make_test_env = partial(make_env, (args.train_seeds + 1, LAST_LEVEL))

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(
        config, "cnn", cnn_type=IMPALAishCNN, channels_first=False, drqv2_aug=True
    )
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_procgen_{args.distribution}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_train_env,
            make_val_env=make_test_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=4 * args.max_seq_len,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            val_timesteps_per_epoch=5 * horizon + 1,
        )

    return run_trials(args, group_name, make_experiment, make_test_env, test_timesteps=20 * horizon)


if __name__ == "__main__":
    main()
