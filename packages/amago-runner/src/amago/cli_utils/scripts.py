"""Common options of training scripts, the Experiment made from them, and its asynchronous modes."""

from __future__ import annotations

import math
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from amago.agent import BaseAgent
from amago.envs import AMAGOEnv
from amago.envs.exploration import EpsilonGreedy, ExplorationWrapper
from amago.experiment.experiment import Experiment
from amago.loading import DiskTrajDataset, RLDataset
from amago.nets.registry import did_you_mean
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder

MODES = ("both", "collect", "learn")


def add_common_cli(parser: ArgumentParser) -> ArgumentParser:
    """Adds the options that most training scripts share; returns the parser.

    `create_experiment_from_cli` applies those that are arguments of an Experiment. The script applies the others:
    `--configs` (with `use_config`), `--trials` (a loop), `--ckpt` (`Experiment.load_checkpoint`) and `--mode`
    (`switch_async_mode`).
    """
    basic = parser.add_argument_group("run")
    basic.add_argument("--run_name", type=str, required=True, help="name of the run's folder, and on wandb")
    basic.add_argument(
        "--buffer_dir", type=str, required=True, help="folder of all replay buffers and checkpoints"
    )
    basic.add_argument(
        "--configs", type=str, nargs="*", default=None, help="gin files, applied from left to right"
    )
    basic.add_argument("--trials", type=int, default=1, help="number of runs")
    basic.add_argument("--ckpt", type=int, default=None, help="epoch of the checkpoint to start from")
    basic.add_argument("--no_log", action="store_true", help="do not log to wandb")
    basic.add_argument("--seed", type=int, default=None, help="random seed")
    basic.add_argument(
        "--resume", action=BooleanOptionalAction, default=False, help="continue from the last checkpoint"
    )
    basic.add_argument(
        "--auto_resume", action="store_true", help="continue if there is a checkpoint, else start"
    )
    basic.add_argument("--overwrite", action="store_true", help="replace a run of this name")

    model = parser.add_argument_group("model")
    model.add_argument("--agent_type", type=str, default="agent", help="registered name of the agent")
    model.add_argument(
        "--traj_encoder", type=str, default="transformer", help="registered name of the trajectory encoder"
    )
    model.add_argument("--memory_size", type=int, default=256, help="width of the trajectory encoder")
    model.add_argument("--memory_layers", type=int, default=3, help="layers of the trajectory encoder")

    learning = parser.add_argument_group("learning")
    learning.add_argument("--epochs", type=int, default=1000, help="epochs of collecting and training")
    learning.add_argument("--batches_per_epoch", type=int, default=1000, help="training batches per epoch")
    learning.add_argument("--batch_size", type=int, default=24, help="sequences per batch and process")
    learning.add_argument("--start_learning_at_epoch", type=int, default=0, help="first epoch with updates")
    learning.add_argument("--mixed_precision", choices=("no", "bf16"), default="no", help="mixed precision")
    learning.add_argument("--dloader_workers", type=int, default=8, help="data loader processes")
    learning.add_argument(
        "--dset_max_size", type=int, default=20_000, help="trajectories kept in the replay buffer"
    )
    learning.add_argument("--ckpt_interval", type=int, default=50, help="epochs between checkpoints")

    rollouts = parser.add_argument_group("rollouts")
    rollouts.add_argument(
        "--env_mode",
        choices=("async", "sync", "already_vectorized"),
        default="async",
        help="environments in worker processes, in this process, or batched by themselves",
    )
    rollouts.add_argument("--parallel_actors", type=int, default=12, help="parallel environments")
    rollouts.add_argument(
        "--timesteps_per_epoch", type=int, default=1000, help="environment steps per actor and epoch"
    )
    rollouts.add_argument("--val_interval", type=int, default=20, help="epochs between evaluations")
    rollouts.add_argument("--mode", choices=MODES, default="both", help="only collect, only learn, or both")
    return parser


def create_experiment_from_cli(
    command_line_args: Namespace,
    make_train_env: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
    make_val_env: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
    max_seq_len: int,
    group_name: str,
    run_name: str,
    agent_type: type[BaseAgent],
    tstep_encoder_type: type[TstepEncoder],
    traj_encoder_type: type[TrajEncoder],
    traj_save_len: int | float | None = None,
    exploration_wrapper_type: type[ExplorationWrapper] | None = EpsilonGreedy,
    experiment_type: type[Experiment] = Experiment,
    dataset: RLDataset | None = None,
    **extra_experiment_kwargs: Any,
) -> Experiment:
    """Makes the Experiment of the options of `add_common_cli`.

    Checkpoints, and the replay buffer unless a dataset is given, are written to `{buffer_dir}/{run_name}`. The
    argument `run_name` overrides `--run_name`, so a script can number its trials.

    Args:
        command_line_args: the parsed options.
        max_seq_len: length of training sequences in transitions.
        group_name: group of the run on wandb.
        traj_save_len: maximum length of a trajectory file in timesteps; None keeps the Experiment's default.
        experiment_type: Experiment or a subclass.
        dataset: the replay buffer; None makes a DiskTrajDataset.
        extra_experiment_kwargs: further arguments of the Experiment; they override the options.
    """
    cli = command_line_args
    if dataset is None:
        dataset = DiskTrajDataset(
            dset_root=cli.buffer_dir, dset_name=run_name, dset_max_size=cli.dset_max_size
        )
    arguments: dict[str, Any] = {
        "run_name": run_name,
        "ckpt_base_dir": cli.buffer_dir,
        "max_seq_len": max_seq_len,
        "dataset": dataset,
        "make_train_env": make_train_env,
        "make_val_env": make_val_env,
        "agent_type": agent_type,
        "tstep_encoder_type": tstep_encoder_type,
        "traj_encoder_type": traj_encoder_type,
        "exploration_wrapper_type": exploration_wrapper_type,
        "env_mode": cli.env_mode,
        "parallel_actors": cli.parallel_actors,
        "log_to_wandb": not cli.no_log,
        "wandb_group_name": group_name,
        "epochs": cli.epochs,
        "batch_size": cli.batch_size,
        "train_batches_per_epoch": cli.batches_per_epoch,
        "train_timesteps_per_epoch": cli.timesteps_per_epoch,
        "val_interval": cli.val_interval,
        "ckpt_interval": cli.ckpt_interval,
        "start_learning_at_epoch": cli.start_learning_at_epoch,
        "dloader_workers": cli.dloader_workers,
        "mixed_precision": cli.mixed_precision,
        "seed": cli.seed,
        # A script loads the checkpoint of --ckpt after start().
        "resume": "auto" if cli.auto_resume else cli.resume or cli.ckpt is not None,
        "overwrite": cli.overwrite,
    }
    if traj_save_len is not None:
        arguments["traj_save_len"] = traj_save_len
    return experiment_type(**{**arguments, **extra_experiment_kwargs})


def make_experiment_learn_only(experiment: Experiment) -> Experiment:
    """Makes an Experiment only train, on data that other processes collect; it always saves its latest policy.

    It waits without limit until the dataset is ready; the dataset's minimum size says how much data it needs.
    """
    experiment.start_learning_at_epoch = 0  # Epochs without updates would pass at once.
    experiment.start_collecting_at_epoch = math.inf
    experiment.train_timesteps_per_epoch = 0
    experiment.val_interval = None
    experiment.always_save_latest = True
    experiment.always_load_latest = False
    experiment.has_dset_edit_rights = True
    experiment.data_timeout = math.inf
    return experiment


def make_experiment_collect_only(experiment: Experiment) -> Experiment:
    """Makes an Experiment only collect, with the latest policy of a learner, until it is stopped.

    Its epoch is the learner's. It draws its own seed: collectors of one seed would collect the same data. Of
    several collectors of a run only the first evaluates.
    """
    experiment.seed = None
    experiment.resume = False
    experiment.start_learning_at_epoch = math.inf
    experiment.start_collecting_at_epoch = 0
    experiment.epochs = math.inf
    experiment.ckpt_interval = None
    experiment.always_save_latest = False
    experiment.always_load_latest = True
    experiment.has_dset_edit_rights = False
    return experiment


def switch_async_mode(experiment: Experiment, mode: str) -> Experiment:
    """Makes an Experiment only collect, only learn, or both; call it before `start()`.

    Args:
        mode: "collect", "learn" or "both"; "both" changes nothing.

    Raises:
        ValueError: another mode, or the Experiment is started.
    """
    if mode not in MODES:
        raise ValueError(
            f"mode must be 'both', 'collect' or 'learn', not {mode!r}.{did_you_mean(mode, MODES)}"
        )
    if experiment.started:
        raise ValueError(f"the experiment {experiment.run_name!r} is started: switch its mode before start()")
    if mode == "learn":
        return make_experiment_learn_only(experiment)
    if mode == "collect":
        return make_experiment_collect_only(experiment)
    return experiment
