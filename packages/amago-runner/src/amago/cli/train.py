"""`amago-run train`: builds the run, trains it, evaluates it, and writes its summary and learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from amago.cli.build import (
    RunPlan,
    bind_gin,
    build_agent,
    build_experiment,
    limited_threads,
    plan_recorded_run,
    plan_run,
)
from amago.cli.environments import resolve_environment
from amago.cli.evaluate import evaluate_fresh_episodes
from amago.cli.options import UsageProblem, option_name
from amago.cli.plots import PICTURE_FILE, draw_runs, read_figures
from amago.cli.progress import TrainingProgress
from amago.cli.recipe import FIXED_WHEN_RESUMED, Recipe
from amago.cli.report import SUMMARY_FILE, Summary, mean_return, show_summary, success_by_attempt
from amago.cli.run_folders import prepare_folder, recorded_recipe
from amago.cli.separate import holds_only_collected_data
from amago.cli_utils import switch_async_mode
from amago.experiment import Callback, Experiment
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.run_json import installed_versions, read_run


def train_run(
    folder: Path,
    changes: Mapping[str, Any],
    *,
    gin_files: Sequence[Path],
    assignments: Sequence[str],
    resume: bool,
    overwrite: bool,
    log_to_wandb: bool,
    console: Console,
    only_learn: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Trains a run, then evaluates it, and writes and prints its summary.

    Args:
        folder: the run's folder; its name is the run's name.
        changes: the settings of the recipe that were given on the command line.
        gin_files, assignments: --gin and --set.
        resume: continue the run in `folder`.
        overwrite: replace the run in `folder`.
        log_to_wandb: log to Weights & Biases as well.
        only_learn: learn from what collectors in other processes collect.
        callbacks: further callbacks of the Experiment.

    Raises:
        UsageProblem: a setting cannot be used; nothing on disk was changed.
    """
    plan = plan_recorded_run(_resumed_recipe(folder, changes)) if resume else plan_run(changes)
    bind_gin(read_run(folder) if resume else plan.gin, gin_files, assignments)
    build_agent(plan)  # Fails before anything is written if a setting is wrong.
    progress = TrainingProgress(console, plan.recipe.epochs)
    experiment = build_experiment(
        plan, folder, resume=resume, log_to_wandb=log_to_wandb, callbacks=[progress, *callbacks]
    )
    if only_learn:
        switch_async_mode(experiment, "learn")
    if not resume and not (only_learn and holds_only_collected_data(folder) and not overwrite):
        prepare_folder(folder, overwrite=overwrite)
    _announce(console, plan.recipe, folder)
    with limited_threads(plan.recipe.threads):
        metrics = _learn_and_evaluate(experiment, progress, console, plan)
    summary = _summarise(folder.name, plan.recipe, experiment, metrics, progress.wall_seconds)
    summary.save(folder)
    picture = folder / PICTURE_FILE
    draw_runs([read_figures(folder)], picture)
    show_summary(console, summary, folder, picture)
    return summary


def _resumed_recipe(folder: Path, changes: Mapping[str, Any]) -> Recipe:
    """The recorded recipe with those changes that a resumed run accepts."""
    recorded = recorded_recipe(folder)
    epochs_done = max(Checkpointer(folder, folder.name).epochs(), default=-1) + 1
    if epochs_done == 0:
        remedy = "start it again with --overwrite."
        raise UsageProblem(f"{folder} has no checkpoint yet: {remedy}", "--resume")
    if epochs_done >= changes.get("epochs", recorded.epochs) and (folder / SUMMARY_FILE).exists():
        remedy = "raise --epochs to train it further."
        raise UsageProblem(f"{folder} has finished its {epochs_done} epochs: {remedy}", "--resume")
    wanted = recorded.updated(**changes)
    if "env" in changes:
        wanted = wanted.updated(env=resolve_environment(wanted.env, {}).name)
    for setting in FIXED_WHEN_RESUMED:
        old, new = getattr(recorded, setting), getattr(wanted, setting)
        if new != old:
            raise UsageProblem(
                f"{folder} was trained with {old!r}, which a resumed run cannot change to {new!r}: leave it out, "
                "or start another run.",
                option_name(setting),
            )
    return wanted


def _learn_and_evaluate(
    experiment: Experiment, progress: TrainingProgress, console: Console, plan: RunPlan
) -> dict[str, float]:
    """Trains, and returns the metrics of the evaluation afterwards."""
    try:
        experiment.start()
        experiment.learn()
        progress.close()
        return evaluate_fresh_episodes(experiment, plan.maker, plan.facts, plan.recipe.eval_episodes)
    except KeyboardInterrupt:
        progress.close()
        saved = Checkpointer(experiment.run_dir, experiment.run_name).epochs()
        console.print(
            "Stopped. The same command with --resume continues from the last checkpoint."
            if saved
            else "Stopped before the first checkpoint. The same command with --overwrite starts again."
        )
        raise
    finally:
        progress.close()
        experiment.close()


def _announce(console: Console, recipe: Recipe, folder: Path) -> None:
    arguments = ", ".join(f"{key}={value}" for key, value in recipe.env_args.items())
    console.print(
        f"Training on [bold]{recipe.env}[/]{f' ({arguments})' if arguments else ''}: "
        f"{recipe.env_steps:,} environment steps with {recipe.actors} actors, "
        f"{recipe.epochs * recipe.batches_per_epoch:,} updates, {recipe.traj_encoder} of "
        f"{recipe.memory_layers} x {recipe.memory_size}, context of {recipe.max_seq_len}, seed {recipe.seed}. "
        f"Run folder: {folder}",
        highlight=False,
    )


def _summarise(
    run: str, recipe: Recipe, experiment: Experiment, metrics: Mapping[str, float], wall_seconds: float
) -> Summary:
    return Summary(
        run=run,
        env=recipe.env,
        env_args=recipe.env_args,
        agent=recipe.agent,
        tstep_encoder=str(recipe.tstep_encoder),
        traj_encoder=recipe.traj_encoder,
        seed=recipe.seed,
        mean_return=mean_return(metrics),
        success_by_attempt=success_by_attempt(metrics),
        eval_episodes=recipe.eval_episodes,
        env_steps=experiment.counters.env_steps,
        gradient_steps=experiment.counters.gradient_steps,
        wall_seconds=round(wall_seconds, 2),
        metrics=metrics,
        versions=installed_versions(),
    )
