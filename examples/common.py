"""What the example scripts share: the option `--smoke`, and a script's trials from start to final test."""

import atexit
import contextlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

from amago import Experiment
from amago.cli_utils import switch_async_mode
from amago.envs import AMAGOEnv

# Options of `add_common_cli` that `--smoke` sets.
SMOKE = (
    "--no_log --seed 0 --epochs 1 --timesteps_per_epoch 60 --batches_per_epoch 2 --batch_size 2 "
    "--parallel_actors 2 --env_mode sync --dloader_workers 0 --memory_size 32 --memory_layers 1"
)


def parse_args(
    parser: ArgumentParser, argv: Sequence[str] | None, smoke: str = "", common_smoke: str = SMOKE
) -> Namespace:
    """Parses the command line, to which it adds `--smoke`: a run of seconds that shows that everything works.

    With `--smoke` the options of the texts `common_smoke` and `smoke` come first, so that those of the command
    line win. The run is written to a temporary folder unless `--buffer_dir` names another.
    """
    parser.add_argument(
        "--test_timesteps", type=int, default=None, help="length of the final test, per actor"
    )
    parser.add_argument("--smoke", action="store_true", help="a tiny run of seconds, to see that all works")
    argv = sys.argv[1:] if argv is None else list(argv)
    if "--smoke" in argv:
        folder = tempfile.TemporaryDirectory(prefix="amago-smoke-")
        atexit.register(folder.cleanup)
        tiny = ["--run_name", "smoke", "--buffer_dir", folder.name, *common_smoke.split(), *smoke.split()]
        argv = tiny + argv
    return parser.parse_args(argv)


def run_trials(
    args: Namespace,
    group_name: str,
    make_experiment: Callable[[str], Experiment],
    make_test_env: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
    test_timesteps: int,
    smoke_steps: int = 100,
    keep_buffer: bool = False,
) -> dict[str, float]:
    """Trains and tests `--trials` runs, `{group_name}_trial_0` and so on; returns the last one's test metrics.

    Args:
        args: options of `add_common_cli` and `parse_args`.
        make_experiment: makes the experiment of a run, given its name.
        make_test_env: makes the environments of the final evaluation.
        test_timesteps: its length in timesteps per actor, unless `--test_timesteps` is given.
        smoke_steps: its length, and that of a validation, with `--smoke`: one episode.
        keep_buffer: keep the replay buffer. It is kept in any case if `--mode` is not "both", since other
            processes may still use it.
    """
    if args.smoke:
        test_timesteps = min(test_timesteps, smoke_steps)
    metrics: dict[str, float] = {}
    for trial in range(args.trials):
        experiment = make_experiment(f"{group_name}_trial_{trial}")
        if args.smoke:
            experiment.val_timesteps_per_epoch = min(experiment.val_timesteps_per_epoch, smoke_steps)
        # Closing stops the workers and finishes the wandb run, if there is one, after an error too.
        with contextlib.closing(switch_async_mode(experiment, args.mode)):
            experiment.start()
            if args.ckpt is not None:
                experiment.load_checkpoint(args.ckpt)
            experiment.learn()
            metrics = experiment.evaluate_test(make_test_env, timesteps=args.test_timesteps or test_timesteps)
            if args.mode == "both" and not keep_buffer:
                experiment.delete_buffer_from_disk()
        print(experiment.run_name, metrics or "no episode finished in the final test")
    return metrics
