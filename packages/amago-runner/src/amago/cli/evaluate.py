"""`amago-run eval` evaluates a trained agent on new episodes; `amago-run compare` compares several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from amago.cli.build import changed_arguments
from amago.cli.environments import EnvFacts, EnvMaker, inspect_environment, maker_of
from amago.cli.options import UsageProblem
from amago.cli.plots import draw_groups, mean_success
from amago.cli.report import format_return, mean_return, show_evaluation, success_by_attempt
from amago.cli.run_figures import Group, by_environment, group_runs, read_figures
from amago.cli.run_folders import recorded_recipe
from amago.cli.video import check_video_path, film_episodes
from amago.envs import AMAGOEnv
from amago.experiment import Experiment
from amago.experiment.run_json import read_run
from amago.loading import DoNothingDataset
from amago.policy import find_weights

_EPISODES = 20  # of a run from Python, unless asked for another number


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
    try:
        record.import_classes()
    except ValueError as error:
        raise UsageProblem(str(error), "RUN") from error
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


def recorded_maker(folder: Path) -> Callable[[], AMAGOEnv]:
    """The function that makes the run's environments; of a run from Python its `make_val_env`.

    Raises:
        UsageProblem: run.json does not name it.
    """
    record = read_run(folder)
    if "recipe" in (record.environment or {}):
        return maker_of(recorded_recipe(folder))
    try:
        maker: Any = record.argument("make_val_env")
    except ValueError as error:
        remedy = "define it at the top level of a module other than the script, or act by amago.Policy."
        raise UsageProblem(f"{folder}: {error}: {remedy}", "RUN") from error
    return maker if callable(maker) else cast("Callable[[], AMAGOEnv]", maker[0])


def evaluate_fresh_episodes(
    experiment: Experiment, maker: Callable[[], AMAGOEnv], facts: EnvFacts | None, episodes: int
) -> dict[str, float]:
    """Metrics of `episodes` episodes without exploration, the same number from every actor.

    Without facts, an episode is taken to be at most `val_timesteps_per_epoch` long.
    """
    rounds = math.ceil(episodes / experiment.parallel_actors)
    longest = experiment.val_timesteps_per_epoch if facts is None else facts.evaluation_steps
    metrics = experiment.evaluate_test(maker, timesteps=rounds * longest, episodes=episodes)
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
    video: Path | None = None,
    video_episodes: int = 2,
) -> dict[str, float]:
    """Evaluates the run in `folder`; prints and returns the metrics.

    Args:
        episodes: number of episodes; None for that of the evaluation after training.
        seed: seed of the episodes; None for the run's, which repeats the evaluation after training.
        checkpoint: "latest" or the number of an epoch that has a checkpoint.
        gin_files, assignments: settings on top of the run's.
        video: the .gif or .mp4 to which episodes are written; None for no video.
        video_episodes: number of episodes in it; they are played in addition.

    Raises:
        UsageProblem: the checkpoint does not exist, a setting is unknown, or there can be no video.
    """
    if video is not None:
        check_video_path(video)
    weights = _find_weights(folder, checkpoint)
    maker = recorded_maker(folder)
    from_command_line = isinstance(maker, EnvMaker)
    recipe = recorded_recipe(folder) if from_command_line else None
    if episodes is None:
        episodes = _EPISODES if recipe is None else recipe.eval_episodes
    changes = {} if seed is None else {"seed": seed}
    with rebuilt_experiment(folder, gin_files, assignments, **changes) as experiment:
        facts = inspect_environment(maker) if isinstance(maker, EnvMaker) else None
        experiment.load_checkpoint_from_path(weights, is_accelerate_state=False)
        metrics = evaluate_fresh_episodes(experiment, maker, facts, episodes)
        env = recipe.env if recipe is not None else ", ".join(sorted(set(experiment.val_envs.env_names)))
        show_evaluation(console, f"{folder.name}: {env}, checkpoint {checkpoint}", metrics, episodes)
        if video is not None:
            filmed = film_episodes(experiment, maker, video_episodes, video)
            rates = " ".join(f"{rate:.0%}" for rate in success_by_attempt(filmed))
            console.print(
                f"Video  {video}: {video_episodes} episodes, mean return {format_return(mean_return(filmed))}"
                + (f", success by attempt {rates}" if rates else "")
            )
    return metrics


def _find_weights(folder: Path, checkpoint: str) -> Path:
    """The policy weights of "latest" or of an epoch."""
    try:
        return find_weights(folder, checkpoint)
    except (ValueError, FileNotFoundError) as error:
        raise UsageProblem(f"{error}.", "--checkpoint") from error


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
    table.add_row("Return from", *(group.return_source for group in groups))
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
