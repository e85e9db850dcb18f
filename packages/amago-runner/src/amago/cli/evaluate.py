"""`amago-run eval` evaluates a trained agent on new episodes; `amago-run compare` compares several runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from amago.cli.build import bind_gin, limited_threads
from amago.cli.environments import EnvFacts, EnvMaker, inspect_environment, maker_of
from amago.cli.options import UsageProblem
from amago.cli.plots import draw_groups, mean_success
from amago.cli.report import show_evaluation
from amago.cli.run_figures import Group, by_environment, group_runs, read_figures
from amago.cli.run_folders import recorded_recipe
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
    recipe, record = recorded_recipe(folder), read_run(folder)
    bind_gin(record, gin_files, assignments)
    maker = maker_of(recipe)
    with TemporaryDirectory(prefix="amago-run-") as scratch:
        arguments = record.experiment_arguments(
            make_train_env=maker,
            make_val_env=maker,
            dataset=DoNothingDataset(),
            ckpt_base_dir=scratch,
            train_timesteps_per_epoch=0,
            log_to_wandb=False,
            log_to_tensorboard=False,
            verbose=False,
        )
        experiment = Experiment(**{**arguments, **changes})
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
    recipe = recorded_recipe(folder)
    maker = maker_of(recipe)
    facts = inspect_environment(maker)
    episodes = recipe.eval_episodes if episodes is None else episodes
    weights = _find_weights(folder, checkpoint)
    changes = {} if seed is None else {"seed": seed}
    with (
        limited_threads(recipe.threads),
        rebuilt_experiment(folder, gin_files, assignments, **changes) as experiment,
    ):
        experiment.load_checkpoint_from_path(weights, is_accelerate_state=False)
        metrics = evaluate_fresh_episodes(experiment, maker, facts, episodes)
    show_evaluation(console, f"{folder.name}: {recipe.env}, checkpoint {checkpoint}", metrics, episodes)
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
    """Draws runs, finished or not, into one picture and prints their figures, a table for each environment.

    Runs that differ in nothing but their seed are averaged; runs with different labels are kept apart.

    Raises:
        UsageProblem: the number of labels is not that of the runs.
    """
    if labels and len(labels) != len(folders):
        raise UsageProblem(f"{len(labels)} labels for {len(folders)} runs: give one per run.", "--label")
    names: Sequence[str | None] = labels or [None] * len(folders)
    runs = [read_figures(folder, name) for folder, name in zip(folders, names, strict=True)]
    groups = group_runs(runs, by_label=bool(labels))
    draw_groups(groups, picture)
    for environment, members in by_environment(groups).items():
        console.print(f"[bold]{environment}[/]", highlight=False)
        console.print(comparison_table(members))
        console.print()
    console.print(f"Picture  {picture}")


def comparison_table(groups: Sequence[Group]) -> Table:
    """A table with one column per group: means over its runs, with the lowest and highest return."""
    table = Table("", box=None, pad_edge=False, header_style="bold")
    for group in groups:
        table.add_column(group.name, justify="right")
    table.add_row("State", *(", ".join(sorted({run.state for run in group.runs})) for group in groups))
    table.add_row("Mean return", *(_returns(group) for group in groups))
    success = [mean_success(group) for group in groups]
    for attempt in range(max(map(len, success))):
        rates = [f"{rates[attempt]:.1%}" if attempt < len(rates) else "" for rates in success]
        table.add_row(f"Success of attempt {attempt + 1}", *rates)
    for title, name in (("Environment steps", "env_steps"), ("Updates", "gradient_steps")):
        means = [fmean(getattr(run, name) for run in group.runs) for group in groups]
        table.add_row(title, *(f"{mean:,.0f}" for mean in means))
    return table


def _returns(group: Group) -> str:
    values = [run.final_return for run in group.runs if run.final_return is not None]
    if not values:
        return "no evaluation yet"
    spread = f" [{min(values):.3f}, {max(values):.3f}]" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{escape(spread)}"
