"""Code that the examples share: their options, and a run from start to final evaluation."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from amago import Experiment
from amago.cli_utils import add_common_cli, switch_async_mode
from amago.envs import AMAGOEnv


def make_parser(description: str, eval_episodes: int = 100) -> ArgumentParser:
    """The options of `add_common_cli`, with defaults for small networks and quick environments on two cores."""
    parser = add_common_cli(ArgumentParser(description=description))
    parser.add_argument(
        "--eval_episodes", type=int, default=eval_episodes, help="episodes of the final evaluation"
    )
    # At this size, worker processes cost more time than they save.
    parser.set_defaults(env_mode="sync", dloader_workers=0, val_interval=10, dset_max_size=2000)
    return parser


def train(
    args: Namespace, make_experiment: Callable[[str], Experiment], make_env: Callable[[], AMAGOEnv]
) -> dict[str, float]:
    """Trains `--trials` runs and returns the metrics of the last one's final evaluation.

    Args:
        args: parsed options of `make_parser`.
        make_experiment: makes the experiment of a run, given its name.
        make_env: makes an environment for the final evaluation.
    """
    metrics: dict[str, float] = {}
    for trial in range(args.trials):
        name = args.run_name if args.trials == 1 else f"{args.run_name}_{trial}"
        experiment = switch_async_mode(make_experiment(name), args.mode)
        experiment.start()
        if args.ckpt is not None:
            experiment.load_checkpoint(args.ckpt)
        experiment.learn()
        metrics = experiment.evaluate_test(make_env, episodes=args.eval_episodes)
        experiment.close()
        print(name, metrics)
    return metrics
