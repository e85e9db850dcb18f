"""`amago-run eval` evaluates a trained agent on new episodes; `amago-run compare` plots several finished runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from amago.cli.build import changed_arguments, limited_threads
from amago.cli.environments import EnvFacts, EnvMaker, inspect_environment, maker_of
from amago.cli.options import UsageProblem
from amago.cli.plots import draw_runs, read_figures
from amago.cli.report import Summary, comparison_table, show_evaluation
from amago.cli.run_folders import has_recipe, recorded_recipe
from amago.experiment import Experiment
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.run_json import read_run
from amago.loading import DoNothingDataset


@contextmanager
def rebuilt_experiment(
    folder: Path, gin_files: Sequence[Path] = (), assignments: Sequence[str] = (), **changes: Any
) -> Iterator[Experiment]:
    """The Experiment of the run in `folder`, started, without weights, in a temporary folder of its own.

    Args:
        folder: the run's folder, which stays unchanged.
        gin_files, assignments: settings on top of the run's.
        changes: arguments of the Experiment that replace the run's.
    """
    record = read_run(folder)
    set_by_gin = changed_arguments(record, gin_files, assignments)
    with TemporaryDirectory(prefix="amago-run-") as scratch:
        own = {
            "make_train_env": None,  # never used
            "dataset": DoNothingDataset(),
            "ckpt_base_dir": scratch,
            "train_timesteps_per_epoch": 0,
            "log_to_wandb": False,
            "log_to_tensorboard": False,
            "verbose": False,
        }
        for name in set_by_gin & (own.keys() | changes.keys()):
            raise UsageProblem(f"Experiment.{name} has no effect here.", "--set")
        try:
            experiment_class, arguments = record.experiment_class(), record.experiment_arguments(**own)
        except ValueError as error:
            raise UsageProblem(
                f"{folder} was trained by a script, which has to evaluate it: {error}", "RUN"
            ) from error
        arguments = {**arguments, "make_train_env": arguments["make_val_env"], **changes}
        experiment = experiment_class(**{n: value for n, value in arguments.items() if n not in set_by_gin})
        experiment.start()
        try:
            yield experiment
        finally:
            experiment.close()


def evaluate_fresh_episodes(
    experiment: Experiment, maker: EnvMaker, facts: EnvFacts, episodes: int
) -> dict[str, float]:
    """Metrics of `episodes` episodes without exploration, the same number from every actor."""
    rounds = math.ceil(episodes / experiment.parallel_actors)
    metrics = experiment.evaluate_test(maker, timesteps=rounds * facts.evaluation_steps, episodes=episodes)
    return dict(metrics)


def evaluate_run(
    folder: Path,
    *,
    episodes: int | None,
    seed: int | None,
    checkpoint: str,
    gin_files: Sequence[Path],
    assignments: Sequence[str],
    console: Console,
) -> dict[str, float]:
    """Evaluates the run in `folder`; prints and returns the metrics.

    Args:
        episodes: number of episodes; None for that of the evaluation after training.
        seed: seed of the episodes; None for the run's, which repeats the evaluation after training.
        checkpoint: "latest" or the number of an epoch that has a checkpoint.
        gin_files, assignments: settings on top of the run's.

    Raises:
        UsageProblem: the checkpoint does not exist, or a setting is unknown.
    """
    recipe = recorded_recipe(folder) if has_recipe(folder) else None
    episodes = (100 if recipe is None else recipe.eval_episodes) if episodes is None else episodes
    weights = _find_weights(folder, checkpoint)
    changes = {} if seed is None else {"seed": seed}
    with (
        limited_threads(None if recipe is None else recipe.threads),
        rebuilt_experiment(folder, gin_files, assignments, **changes) as experiment,
    ):
        experiment.load_checkpoint_from_path(weights, is_accelerate_state=False)
        if recipe is None:  # of a script: an evaluation during training is as long as an episode at least
            rounds = math.ceil(episodes / experiment.parallel_actors)
            metrics = experiment.evaluate_test(
                experiment.make_val_env,
                timesteps=rounds * experiment.val_timesteps_per_epoch,
                episodes=episodes,
            )
            env = ", ".join(sorted(set(experiment.val_envs.env_names)))
        else:
            maker, env = maker_of(recipe), recipe.env
            metrics = evaluate_fresh_episodes(experiment, maker, inspect_environment(maker), episodes)
    show_evaluation(console, f"{folder.name}: {env}, checkpoint {checkpoint}", metrics, episodes)
    return metrics


def _find_weights(folder: Path, checkpoint: str) -> Path:
    """The policy weights of "latest" or of an epoch."""
    checkpoints = Checkpointer(folder, folder.name)
    if checkpoint != "latest" and not checkpoint.isdecimal():
        raise UsageProblem(f"{checkpoint!r} is neither 'latest' nor the number of an epoch.", "--checkpoint")
    latest = checkpoint == "latest"
    path = checkpoints.latest_policy if latest else checkpoints.policy_weights(int(checkpoint))
    if not path.is_file():
        epochs = ", ".join(map(str, checkpoints.epochs())) or "none"
        raise UsageProblem(f"there is no file {path}; epochs with a checkpoint: {epochs}.", "--checkpoint")
    return path


def compare_runs(
    folders: Sequence[Path], *, labels: Sequence[str] | None, picture: Path, console: Console
) -> None:
    """Draws finished runs into one picture and prints their figures.

    Raises:
        UsageProblem: a run has not finished, or the number of labels is not that of the runs.
    """
    summaries = []
    for folder in folders:
        try:
            summaries.append(Summary.load(folder))
        except FileNotFoundError as error:
            remedy = "finish its training with --resume first."
            raise UsageProblem(f"{folder} has no summary: {remedy}", "RUN") from error
    if labels and len(labels) != len(folders):
        raise UsageProblem(f"{len(labels)} labels for {len(folders)} runs: give one per run.", "--label")
    names = list(labels or [summary.run for summary in summaries])
    draw_runs([read_figures(folder, name) for folder, name in zip(folders, names, strict=True)], picture)
    console.print(comparison_table(names, summaries))
    console.print(f"Picture  {picture}")
