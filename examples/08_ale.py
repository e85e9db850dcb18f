"""Several Atari games at once, from colour pixels, on unclipped rewards.

Needs ale_py and OpenCV: pip install 'amago-envs[atari]'. Scores of games differ by factors of thousands,
and so do the losses of critics that predict them; --agent_type multitask classifies returns instead, which
is what this script shows. The bound of a return is the game's best score.

    python examples/08_ale.py --agent_type multitask --run_name ale --buffer_dir runs --no_log
    python examples/08_ale.py --games Pong --run_name pong --buffer_dir runs --no_log

Every game gets the same number of actors, so --parallel_actors is raised to the next multiple of the
number of games (with the defaults from 12 to 20). The full setting collects 20 million timesteps and takes
a million updates on images: plan for a GPU.
"""

import math
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
from amago.envs.builtin.ale_retro import AtariAMAGOWrapper, AtariGame
from amago.nets.cnn import IMPALAishCNN, NatureishCNN

GAMES = ["Pong", "Boxing", "Breakout", "Gopher", "MsPacman"]
GAMES += ["ChopperCommand", "CrazyClimber", "BattleZone", "Qbert", "Seaquest"]


def make_game(name: str) -> AMAGOEnv:
    """A game with all 18 actions, 5 frames a step, and an episode that ends with the last life."""
    game = AtariGame(
        game=name,
        action_space="discrete",
        version="v5",
        frame_skip=5,
        grayscale=False,
        sticky_action_prob=0.25,
        clip_rewards=False,
        terminal_on_life_loss=False,
    )
    return AtariAMAGOWrapper(game)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--games", nargs="+", default=None, help=f"default: {' '.join(GAMES)}")
    parser.add_argument("--max_seq_len", type=int, default=80, help="context length in timesteps")
    parser.add_argument("--cnn", choices=["impala", "nature"], default="impala")
    args = parse_args(parser, argv, smoke="--games Breakout MsPacman --max_seq_len 4 --agent_type multitask")

    games = args.games or GAMES
    actors_per_game = math.ceil(args.parallel_actors / len(games))
    args.parallel_actors = actors_per_game * len(games)
    print(f"{len(games)} games with {actors_per_game} of {args.parallel_actors} actors each")
    make_envs = actors_per_game * [partial(make_game, game) for game in games]

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(
        config,
        "cnn",
        cnn_type=IMPALAishCNN if args.cnn == "impala" else NatureishCNN,
        channels_first=True,
        drqv2_aug=True,
    )
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(
        config,
        args.agent_type,
        reward_multiplier=0.25,
        offline_coeff=1.0 if args.agent_type == "multitask" else 0.0,
    )
    use_config(config, args.configs)

    group_name = f"{args.run_name}_ale_{args.agent_type}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_envs,
            make_val_env=make_envs,
            max_seq_len=args.max_seq_len,
            traj_save_len=3 * args.max_seq_len,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            val_timesteps_per_epoch=21_600,  # half an hour of play
            save_trajs_as="npz-compressed",
        )

    return run_trials(args, group_name, make_experiment, make_envs, test_timesteps=108_000, smoke_steps=300)


if __name__ == "__main__":
    main()
