"""In-context adaptation: k attempts to cross a frozen lake whose holes are not shown.

Every rollout has a new lake. An agent with memory finds out in its first attempts where the holes are and
uses that in the later ones, so "Episode {i} Success" should rise with i; without memory (--seq_model ff)
every attempt is the first. A return is the number of attempts that succeed, at most --k_episodes. This
script builds its Experiment by hand; the others do it from common options.

    python examples/00_meta_frozen_lake.py --seq_model transformer --run_name lake --buffer_dir runs

The full setting collects 32 · 700 · 250 = 5.6 million timesteps and takes 700,000 updates: plan for a GPU.
`amago-run train` trains a smaller lake on two CPU cores within minutes.
"""

import contextlib
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from common import parse_args

from amago import Agent, Experiment
from amago.cli_utils import switch_traj_encoder, use_config
from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.exploration import EpsilonGreedy
from amago.loading import DiskTrajDataset
from amago.nets.tstep_encoders import FFTstepEncoder


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq_model", choices=["ff", "transformer", "rnn", "mamba"], required=True)
    parser.add_argument("--run_name", required=True)
    parser.add_argument("--buffer_dir", required=True, help="folder of replay buffers and checkpoints")
    parser.add_argument("--log", action="store_true", help="log to wandb")
    parser.add_argument("--trials", type=int, default=1, help="number of runs")
    parser.add_argument("--lake_size", type=int, default=5)
    parser.add_argument("--k_episodes", type=int, default=10, help="attempts per lake")
    parser.add_argument(
        "--hard_mode", action="store_true", help="swapped actions, noisy positions, melting ice"
    )
    parser.add_argument(
        "--recover_mode", action="store_true", help="holes cost 0.1 and do not end the attempt"
    )
    parser.add_argument("--slip_chance", type=float, default=0.0, help="chance that a move becomes 'stay'")
    parser.add_argument(
        "--max_episode_steps", type=int, default=None, help="of one attempt; default: lake_size²"
    )
    parser.add_argument(
        "--hide_k_progress", action="store_true", help="do not observe the number of the attempt"
    )
    parser.add_argument("--max_seq_len", type=int, default=None, help="default: all attempts")
    args = parse_args(
        parser,
        argv,
        smoke="--seq_model transformer --lake_size 3 --k_episodes 2 --test_timesteps 40",
        common_smoke="",
    )

    def make_env() -> AMAGOEnv:
        lake = MetaFrozenLake(
            size=args.lake_size,
            k_episodes=args.k_episodes,
            hard_mode=args.hard_mode,
            recover_mode=args.recover_mode,
            max_episode_steps=args.max_episode_steps,
            show_k_progress=not args.hide_k_progress,
            slip_chance=args.slip_chance,
        )
        name = f"meta_frozen_lake_k{args.k_episodes}_{args.lake_size}x{args.lake_size}"
        name += ("_hard" if args.hard_mode else "_easy") + ("_recover" if args.recover_mode else "_reset")
        return AMAGOEnv(lake, env_name=name)

    config: dict[str, Any] = {
        "FFTstepEncoder.n_layers": 1,
        "FFTstepEncoder.d_hidden": 128,
        "FFTstepEncoder.d_output": 64,
        "FFTstepEncoder.normalize_inputs": False,  # observations are in [0, 1]
        "Agent.tau": 0.004,
        # Epsilon falls from 1 to 0.05, of which each actor uses a random share in each episode.
        "EpsilonGreedy.steps_anneal": 1_000_000,
    }
    traj_encoder = switch_traj_encoder(config, args.seq_model, memory_size=128, layers=3)
    use_config(config)

    rollout_steps = make_env().unwrapped.max_episode_steps * args.k_episodes
    schedule = {
        "epochs": 900 if args.hard_mode else 700,
        "parallel_actors": 32,
        "train_timesteps_per_epoch": rollout_steps,
        "train_batches_per_epoch": 1000,
        "batch_size": 24,
        "dloader_workers": 10,
    }
    if args.smoke:
        schedule |= {"epochs": 1, "parallel_actors": 2, "train_batches_per_epoch": 2, "dloader_workers": 0}

    metrics: dict[str, float] = {}
    for trial in range(args.trials):
        run_name = f"{args.run_name}_trial_{trial}"
        experiment = Experiment(
            run_name=run_name,
            ckpt_base_dir=args.buffer_dir,
            make_train_env=make_env,
            make_val_env=make_env,
            env_mode="sync",
            dataset=DiskTrajDataset(dset_root=args.buffer_dir, dset_name=run_name, dset_max_size=12_500),
            max_seq_len=args.max_seq_len or rollout_steps,
            traj_save_len=rollout_steps,
            agent_type=Agent,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=EpsilonGreedy,
            val_interval=20,
            val_timesteps_per_epoch=2 * rollout_steps,
            ckpt_interval=200,
            log_to_wandb=args.log,
            wandb_group_name=args.run_name,
            **schedule,
        )
        with contextlib.closing(experiment):
            experiment.start()
            experiment.learn()
            metrics = experiment.evaluate_test(make_env, timesteps=args.test_timesteps or 10_000)
            experiment.delete_buffer_from_disk()
        print(run_name, metrics)
    return metrics


if __name__ == "__main__":
    main()
