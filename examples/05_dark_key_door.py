"""Meta-RL in a dark room: find the key, then the door, as often as possible before the time is over.

The room stays the same within a rollout of --meta_horizon steps and is another one in the next, so an
agent with memory searches once and then walks straight. Each round gives at most 2, and the return of a
rollout is bounded by 2 for each round that fits into it. With --light_room_observation key and door are
observed and no memory is needed.

    python examples/05_dark_key_door.py --run_name door --buffer_dir runs --no_log

The full setting collects 12 million timesteps and takes a million updates on sequences of 500: plan for a
GPU.
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
from amago.envs.builtin.toy_gym import RoomKeyDoor


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--meta_horizon", type=int, default=500, help="steps in the same room")
    parser.add_argument("--room_size", type=int, default=8)
    parser.add_argument("--episode_length", type=int, default=50, help="longest round")
    parser.add_argument("--light_room_observation", action="store_true", help="observe key and door")
    parser.add_argument("--randomize_actions", action="store_true", help="shuffle the actions in each room")
    args = parse_args(parser, argv, smoke="--meta_horizon 40 --room_size 3 --episode_length 20")

    def make_env() -> AMAGOEnv:
        room = RoomKeyDoor(
            dark=not args.light_room_observation,
            size=args.room_size,
            max_episode_steps=args.episode_length,
            meta_rollout_horizon=args.meta_horizon,
            randomize_actions=args.randomize_actions,
        )
        return AMAGOEnv(room, env_name=f"Dark-Key-To-Door-{args.room_size}x{args.room_size}")

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(config, "ff", n_layers=2, d_hidden=128, d_output=64)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=100.0)
    # Much exploration at the start of a rollout, little at its end, when the room should be known.
    exploration = switch_exploration(
        config, "bilevel", rollout_horizon=args.meta_horizon, steps_anneal=500_000
    )
    use_config(config, args.configs)

    group_name = f"{args.run_name}_dark_key_door"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=args.meta_horizon,
            traj_save_len=args.meta_horizon,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=4 * args.meta_horizon,
        )

    return run_trials(args, group_name, make_experiment, make_env, test_timesteps=20_000)


if __name__ == "__main__":
    main()
