"""`amago-run train`: builds the run, trains it, evaluates it, and shows its summary and learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from amago.cli.build import (
    EXPERIMENT_SETTINGS,
    RunPlan,
    bind_gin,
    build_agent,
    build_experiment,
    changed_arguments,
    plan_recorded_run,
    plan_run,
    switch_mode,
    warn_of_unused_settings,
)
from amago.cli.environments import named_module, resolve_environment
from amago.cli.evaluate import evaluate_fresh_episodes
from amago.cli.options import UsageProblem, option_name
from amago.cli.recipe import FIXED_WHEN_RESUMED, Recipe
from amago.cli.report import show_summary
from amago.cli.run_folders import (
    RUN_FILE,
    has_checkpoint,
    has_recipe,
    problems_named,
    recorded_recipe,
    require_run_folder,
)
from amago.experiment import Callback, Experiment
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.run_folder import PICTURE_FILE, SUMMARY_FILE
from amago.experiment.run_json import read_run
from amago.experiment.stop_signals import RunStopped
from amago.experiment.summary import Summary
from amago.experiment.trusted import trusting


def train_run(
    folder: Path,
    changes: Mapping[str, Any],
    *,
    gin_files: Sequence[Path],
    assignments: Sequence[str],
    resume: bool | str,
    overwrite: bool,
    log_to_wandb: bool,
    log_to_tensorboard: bool,
    console: Console,
    only_learn: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Trains a run, then evaluates it, and writes and prints its summary.

    Args:
        folder: the run's folder; its name is the run's name.
        changes: the settings of the recipe that were given on the command line.
        gin_files, assignments: --gin and --set.
        resume: continue the run in `folder`; "auto" does so if it has a checkpoint.
        overwrite: replace the run in `folder`.
        log_to_wandb: log to Weights & Biases as well.
        log_to_tensorboard: write TensorBoard files as well.
        only_learn: learn from what collectors in other processes collect.
        callbacks: further callbacks of the Experiment.

    Raises:
        UsageProblem: a setting cannot be used; nothing on disk was changed.
        typer.Exit: with status 1, since the run has ended without an update although it was to learn.
    """
    is_resumed = resume is True or (resume == "auto" and has_checkpoint(folder))
    if is_resumed:
        _require_resumable(folder)
    plan: RunPlan | None = None
    with trusting(*named_module(changes)):
        if is_resumed and not has_recipe(folder):
            experiment = _scripts_experiment(folder, changes, gin_files, assignments)
        else:
            plan = (
                plan_recorded_run(
                    _resumed_recipe(folder, changes, may_be_finished=resume == "auto"), gin_files
                )
                if is_resumed
                else plan_run(changes, gin_files)
            )
            bind_gin(read_run(folder) if is_resumed else plan.gin, gin_files, assignments)
            build_agent(plan)  # Fails before anything is written if a setting is wrong.
            experiment = build_experiment(
                plan,
                folder,
                resume=resume,
                overwrite=overwrite,
                log_to_wandb=log_to_wandb,
                log_to_tensorboard=log_to_tensorboard,
                callbacks=callbacks,
            )
            if only_learn:
                switch_mode(experiment, "learn")
    try:
        experiment.check_loggers()
    except (ImportError, RuntimeError) as error:
        raise UsageProblem(str(error), "--wandb" if log_to_wandb else "--tensorboard") from error
    if not is_resumed:
        require_run_folder(folder)
    summary = _learn_and_evaluate(experiment, console, plan, assignments)
    picture = folder / PICTURE_FILE
    show_summary(console, summary, folder, picture if picture.is_file() else None)
    was_to_learn = experiment.start_learning_at_epoch < experiment.epochs
    if was_to_learn and summary.gradient_steps == summary.skipped_updates:
        console.print("[bold red]The run has ended without an update:[/] its policy is untrained.")
        raise typer.Exit(1)
    return summary


def _require_resumable(folder: Path) -> None:
    if not (folder / RUN_FILE).is_file():
        raise UsageProblem(f"there is no run in {folder}.", "--run-name")
    if not has_checkpoint(folder):
        raise UsageProblem(f"{folder} has no checkpoint yet: start it again with --overwrite.", "--resume")


def _resumed_recipe(folder: Path, changes: Mapping[str, Any], *, may_be_finished: bool) -> Recipe:
    """The recorded recipe with those changes that a resumed run accepts."""
    recorded = recorded_recipe(folder)
    epochs_done = max(Checkpointer(folder, folder.name).epochs()) + 1
    is_finished = (
        epochs_done >= changes.get("epochs", recorded.epochs)
        and (folder / SUMMARY_FILE).exists()
        and Summary.load(folder).status == "finished"  # "stopped": in the middle of the last epoch
    )
    if is_finished and not may_be_finished:
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


def _scripts_experiment(
    folder: Path, changes: Mapping[str, Any], gin_files: Sequence[Path], assignments: Sequence[str]
) -> Experiment:
    """The Experiment of a run that a script started, as its run.json describes it."""
    record = read_run(folder)
    arguments: dict[str, Any] = {"resume": True, "ckpt_base_dir": folder.parent, "verbose": True}
    names = {setting: name for name, setting in EXPERIMENT_SETTINGS.items()}
    for setting, value in changes.items():
        if setting in FIXED_WHEN_RESUMED or setting not in names:
            remedy = "leave it out, or change it in the script."
            raise UsageProblem(f"{folder} was trained by a script: {remedy}", option_name(setting))
        arguments[names[setting]] = value
    try:
        set_by_gin = changed_arguments(record, gin_files, assignments)
        experiment_class = record.experiment_class()
        arguments = record.experiment_arguments(**arguments)
        kept = {name: value for name, value in arguments.items() if name not in set_by_gin}
        experiment: Experiment = experiment_class(**kept)
    except ValueError as error:
        raise UsageProblem(
            f"{folder} was trained by a script, which has to resume it: {error}", "--resume"
        ) from error
    return experiment


def _learn_and_evaluate(
    experiment: Experiment, console: Console, plan: RunPlan | None, assignments: Sequence[str]
) -> Summary:
    """Trains, evaluates what amago-run has started, and returns the summary."""
    resume = "--resume instead of --overwrite" if experiment.overwrite else "--resume"
    try:
        with problems_named(experiment.run_dir):
            experiment.start()
        warn_of_unused_settings(assignments, experiment.policy, console)
        if experiment.epoch >= experiment.epochs:
            console.print(f"{experiment.run_dir} has finished its {experiment.epoch} epochs.", soft_wrap=True)
        elif plan is not None:
            _announce(console, plan.recipe)
        experiment.learn()
        if plan is None:
            return Summary.load(experiment.run_dir)
        metrics = evaluate_fresh_episodes(experiment, plan.maker, plan.facts, plan.recipe.eval_episodes)
        summary = experiment.write_summary(metrics, plan.recipe.eval_episodes)
        assert summary is not None
        return summary
    except RunStopped:
        console.print(f"The same command with {resume} continues the run.")
        raise
    except KeyboardInterrupt:
        console.print(
            f"Stopped. The same command with {resume} continues from the last checkpoint."
            if has_checkpoint(experiment.run_dir)
            else "Stopped before the first checkpoint. The same command with --overwrite starts again."
        )
        raise
    finally:
        experiment.close()


def _announce(console: Console, recipe: Recipe) -> None:
    arguments = ", ".join(f"{key}={value}" for key, value in recipe.env_args.items())
    console.print(
        f"Training on [bold]{recipe.env}[/]{f' ({arguments})' if arguments else ''}: "
        f"{recipe.env_steps:,} environment steps with {recipe.actors} actors, "
        f"{recipe.epochs * recipe.batches_per_epoch:,} updates, {recipe.traj_encoder} of "
        f"{recipe.memory_layers} x {recipe.memory_size}, context of {recipe.max_seq_len}.",
        highlight=False,
    )
