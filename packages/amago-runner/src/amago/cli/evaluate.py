"""`amago-run eval` and `amago-run compare`: a trained agent on fresh episodes, and finished runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from amago.cli.bindings import override_bindings, restore_bindings
from amago.cli.environments import EnvFacts, EnvMaker, inspect_environment
from amago.cli.options import UsageProblem
from amago.cli.plots import default_labels, draw_runs, read_run
from amago.cli.report import Summary, comparison_table, show_evaluation
from amago.cli.runs import recorded_recipe
from amago.experiment import Experiment
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.run_file import read_run as read_record
from amago.loading import DoNothingDataset


def fresh_metrics(
    experiment: Experiment, maker: EnvMaker, facts: EnvFacts, episodes: int
) -> dict[str, float]:
    """Metrics of `episodes` fresh episodes, the same number from every actor, without exploration."""
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
    """Builds the run in `folder` again from its run.json, evaluates it, shows and returns the metrics.

    Args:
        episodes: how many; None for as many as the final figures of training have.
        seed: of the episodes; None for the run's, which repeats the final figures.
        checkpoint: "latest" or the number of an epoch that has a checkpoint.
        gin_files, assignments: settings on top of the run's.
        console: where the table goes.

    Raises:
        UsageProblem: the checkpoint does not exist, or a setting is not known.
    """
    record = read_record(folder)
    recipe = recorded_recipe(folder)
    weights = find_weights(folder, checkpoint)
    restore_bindings(record)
    override_bindings(gin_files, assignments)
    maker = EnvMaker(name=recipe.env, args=recipe.env_args)
    facts = inspect_environment(maker)
    episodes = recipe.eval_episodes if episodes is None else episodes
    # The experiment writes its own run.json, metrics and logs; the run's folder keeps those of the training.
    with TemporaryDirectory(prefix="amago-eval-") as scratch:
        arguments = record.experiment_arguments(
            make_train_env=maker,
            make_val_env=maker,
            dataset=DoNothingDataset(),
            ckpt_base_dir=scratch,
            train_timesteps_per_epoch=0,
            log_to_wandb=False,
            verbose=False,
        )
        if seed is not None:
            arguments["seed"] = seed
        experiment = Experiment(**arguments)
        experiment.start()
        try:
            experiment.load_checkpoint_from_path(weights, is_accelerate_state=False)
            metrics = fresh_metrics(experiment, maker, facts, episodes)
        finally:
            experiment.close()
    show_evaluation(console, f"{folder.name}: {recipe.env}, checkpoint {checkpoint}", metrics, episodes)
    return metrics


def find_weights(folder: Path, checkpoint: str) -> Path:
    """The weights file that "latest" or an epoch's number means; UsageProblem lists what there is."""
    checkpoints = Checkpointer(folder, folder.name)
    if checkpoint == "latest":
        path = checkpoints.latest_policy
    elif checkpoint.isdecimal():
        path = checkpoints.policy_weights(int(checkpoint))
    else:
        raise UsageProblem(f"{checkpoint!r} is neither 'latest' nor the number of an epoch.", "--checkpoint")
    if not path.is_file():
        epochs = ", ".join(map(str, checkpoints.epochs())) or "none"
        raise UsageProblem(
            f"{folder} has no weights at {path}; epochs with a checkpoint: {epochs}.", "--checkpoint"
        )
    return path


def compare_runs(
    folders: Sequence[Path], *, labels: Sequence[str] | None, picture: Path, console: Console
) -> None:
    """Draws finished runs into one picture and prints their figures.

    Raises:
        UsageProblem: a run has not finished, or there is not one label per run.
    """
    summaries = []
    for folder in folders:
        try:
            summaries.append(Summary.load(folder))
        except FileNotFoundError as error:
            remedy = "finish its training with --resume first."
            raise UsageProblem(f"{folder} has no summary: {remedy}", "RUN") from error
    if labels and len(labels) != len(folders):
        raise UsageProblem(f"{len(labels)} labels for {len(folders)} runs: give one for each.", "--label")
    names = list(labels or default_labels(summaries))
    draw_runs([read_run(folder, name) for folder, name in zip(folders, names, strict=True)], picture)
    console.print(comparison_table(names, summaries))
    console.print(f"Picture  {picture}")
