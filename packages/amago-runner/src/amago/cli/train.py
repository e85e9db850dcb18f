"""`amago-run train`: from a recipe to an Experiment, through training, to the run's summary and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from amago.cli.bindings import apply_bindings, override_bindings, restore_bindings
from amago.cli.environments import EnvFacts, EnvMaker, inspect_environment, resolve_environment
from amago.cli.evaluate import fresh_metrics
from amago.cli.options import UsageProblem
from amago.cli.parts import Parts, choose_parts, try_parts
from amago.cli.plots import PICTURE_FILE, draw_runs, read_run
from amago.cli.progress import TrainingProgress, make_display
from amago.cli.recipes import Recipe
from amago.cli.report import SUMMARY_FILE, Summary, mean_return, show_summary, success_by_attempt
from amago.cli.runs import make_room, recorded_recipe
from amago.experiment import Callback, Experiment
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.run_file import installed_versions
from amago.experiment.run_file import read_run as read_record

# What decides the shapes of weights, the environment or the random streams stays as it was in a resumed run.
_FIXED_IN_A_RUN = (
    "env",
    "env_args",
    "agent",
    "tstep_encoder",
    "traj_encoder",
    "exploration",
    "memory_size",
    "memory_layers",
    "max_seq_len",
    "actors",
    "seed",
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for.

    Attributes:
        folder: the run's folder; its name is the run's name.
        recipe: what the run starts from, or would if it were new.
        changes: the recipe's fields that were given as options.
        gin_files, assignments: `--gin` and `--set`.
        resume: continue the run in `folder` with its own recipe and gin settings.
        overwrite: replace the run in `folder`.
        wandb: log to Weights and Biases as well.
    """

    folder: Path
    recipe: Recipe
    changes: Mapping[str, Any]
    gin_files: tuple[Path, ...] = ()
    assignments: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False
    wandb: bool = False


def train_run(request: Request, console: Console) -> Summary:
    """Trains what `request` asks for, then evaluates, writes and shows its figures.

    Raises:
        UsageProblem: something in the request cannot be; nothing was changed on disk then.
    """
    recipe = _resumed_recipe(request) if request.resume else _new_recipe(request)
    maker = resolve_environment(recipe.env, recipe.env_args)
    facts = inspect_environment(maker)
    recipe = recipe.updated(
        env=maker.name,
        env_args=dict(maker.args),
        max_seq_len=recipe.max_seq_len or facts.max_seq_len,
        tstep_encoder=recipe.tstep_encoder or facts.tstep_encoder,
    )
    parts = choose_parts(recipe, facts)
    if request.resume:
        restore_bindings(read_record(request.folder))
        override_bindings(request.gin_files, request.assignments)
    else:
        apply_bindings(parts.bindings, request.gin_files, request.assignments)
    assert recipe.max_seq_len is not None
    try_parts(parts, maker, recipe.max_seq_len)
    progress = TrainingProgress(make_display(console, recipe.epochs), recipe.epochs)
    experiment = build_experiment(request, recipe, parts, maker, facts, [progress])
    if not request.resume:
        make_room(request.folder, overwrite=request.overwrite)
    _make_folder(request.folder)
    _announce(console, recipe, request.folder)
    metrics = _learn_and_evaluate(experiment, progress, console, maker, facts, recipe.eval_episodes)
    summary = _summarise(request.folder.name, recipe, experiment, metrics, progress.wall_seconds)
    summary.save(request.folder)
    picture = request.folder / PICTURE_FILE
    draw_runs([read_run(request.folder)], picture)
    show_summary(console, summary, request.folder, picture)
    return summary


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageProblem(f"the folder {folder} cannot be made: {error}", "--run-dir") from error


def _learn_and_evaluate(
    experiment: Experiment,
    progress: TrainingProgress,
    console: Console,
    maker: EnvMaker,
    facts: EnvFacts,
    episodes: int,
) -> dict[str, float]:
    """Trains, and returns the metrics of the fresh episodes afterwards."""
    try:
        experiment.start()
        experiment.learn()
        progress.close()
        return fresh_metrics(experiment, maker, facts, episodes)
    except KeyboardInterrupt:
        progress.close()
        saved = Checkpointer(experiment.run_dir, experiment.run_name).epochs()
        console.print(
            "Stopped. The same command with --resume goes on from the last checkpoint."
            if saved
            else "Stopped before the first checkpoint. The same command with --overwrite starts again."
        )
        raise
    finally:
        progress.close()
        experiment.close()


def build_experiment(
    request: Request,
    recipe: Recipe,
    parts: Parts,
    maker: EnvMaker,
    facts: EnvFacts,
    callbacks: Sequence[Callback] = (),
) -> Experiment:
    """The Experiment that the recipe describes; gin is bound already, nothing is started or written."""
    folder = request.folder
    assert recipe.max_seq_len is not None
    try:
        return Experiment(
            run_name=folder.name,
            ckpt_base_dir=folder.parent,
            dset_root=folder.parent,
            dset_name=folder.name,
            dset_max_size=recipe.dset_max_size,
            max_seq_len=recipe.max_seq_len,
            tstep_encoder_type=parts.tstep_encoder,
            traj_encoder_type=parts.traj_encoder,
            agent_type=parts.agent,
            exploration_wrapper_type=parts.exploration,
            val_timesteps_per_epoch=recipe.val_rounds * facts.evaluation_steps,
            make_train_env=maker,
            make_val_env=maker,
            parallel_actors=recipe.actors,
            env_mode=recipe.env_mode,
            log_to_wandb=request.wandb,
            verbose=False,
            save_trajs_as="traj",
            dloader_workers=recipe.loader_workers,
            epochs=recipe.epochs,
            train_timesteps_per_epoch=recipe.timesteps_per_epoch,
            train_batches_per_epoch=recipe.batches_per_epoch,
            val_interval=recipe.val_interval,
            ckpt_interval=recipe.ckpt_interval,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            lr_warmup_steps=recipe.lr_warmup_steps,
            grad_clip=recipe.grad_clip,
            l2_coeff=recipe.l2_coeff,
            mixed_precision=recipe.mixed_precision,
            seed=recipe.seed,
            resume=request.resume,
            callbacks=callbacks,
            env_description={"name": maker.name, "args": dict(maker.args), "recipe": recipe.as_json()},
        )
    except ValueError as error:
        raise UsageProblem(str(error), "train") from error


def _new_recipe(request: Request) -> Recipe:
    changes = dict(request.changes)
    # The recipe's environment arguments hold unless the same ones are given.
    changes["env_args"] = {**request.recipe.env_args, **changes.get("env_args", {})}
    return request.recipe.updated(**changes)


def _resumed_recipe(request: Request) -> Recipe:
    """The stored recipe with the changes that a run bears."""
    stored = recorded_recipe(request.folder)
    epochs_done = max(Checkpointer(request.folder, request.folder.name).epochs(), default=-1) + 1
    if epochs_done == 0:
        remedy = "start it again with --overwrite."
        raise UsageProblem(f"{request.folder} stopped before its first checkpoint: {remedy}", "--resume")
    if (
        epochs_done >= request.changes.get("epochs", stored.epochs)
        and (request.folder / SUMMARY_FILE).exists()
    ):
        remedy = "give more --epochs to train it further."
        raise UsageProblem(f"{request.folder} has finished its {epochs_done} epochs: {remedy}", "--resume")
    for name in _FIXED_IN_A_RUN:
        wanted = request.changes.get(name, getattr(stored, name))
        if name == "env" and wanted != stored.env:
            wanted = resolve_environment(wanted, {}).name
        if name == "env_args":
            wanted = {**stored.env_args, **wanted}
        if wanted != getattr(stored, name):
            option = "ENV" if name == "env" else f"--{name.removesuffix('s') if name == 'env_args' else name}"
            raise UsageProblem(
                f"{request.folder} was trained with {getattr(stored, name)!r}, and a resumed run cannot change "
                f"that to {wanted!r}: leave it out, or start another run.",
                option.replace("_", "-"),
            )
    free = {name: value for name, value in request.changes.items() if name not in _FIXED_IN_A_RUN}
    return stored.updated(**free)


def _announce(console: Console, recipe: Recipe, folder: Path) -> None:
    arguments = ", ".join(f"{key}={value}" for key, value in recipe.env_args.items())
    console.print(
        f"[bold]{recipe.env}[/]{f' ({arguments})' if arguments else ''}: {recipe.traj_encoder}, "
        f"{recipe.memory_layers} x {recipe.memory_size}, sequences of {recipe.max_seq_len}; "
        f"{recipe.env_steps:,} steps with {recipe.actors} actors, {recipe.gradient_steps:,} updates, "
        f"seed {recipe.seed}; in {folder}",
        highlight=False,
    )


def _summarise(
    run: str, recipe: Recipe, experiment: Experiment, metrics: Mapping[str, float], wall_seconds: float
) -> Summary:
    average = mean_return(metrics)
    assert recipe.tstep_encoder is not None
    return Summary(
        run=run,
        env=recipe.env,
        env_args=recipe.env_args,
        agent=recipe.agent,
        tstep_encoder=recipe.tstep_encoder,
        traj_encoder=recipe.traj_encoder,
        seed=recipe.seed,
        mean_return=average,
        success_by_attempt=success_by_attempt(metrics),
        eval_episodes=recipe.eval_episodes,
        env_steps=experiment.counters.env_steps,
        gradient_steps=experiment.counters.gradient_steps,
        wall_seconds=round(wall_seconds, 2),
        metrics=metrics,
        versions=installed_versions(),
    )
