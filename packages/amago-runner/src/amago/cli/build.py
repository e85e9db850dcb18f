"""Builds the Experiment of a recipe: its environment, classes, gin settings and arguments.

gin settings apply in this order, later ones win: the recipe, options, --gin files from left to right, --set.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gin
import torch
from rich.console import Console
from rich.markup import escape

from amago.agent import Agent, BaseAgent
from amago.cli.environments import (
    EnvFacts,
    EnvMaker,
    choose_env_mode,
    inspect_environment,
    maker_of,
    resolve_environment,
)
from amago.cli.options import OPTIONS, UsageProblem, option_name, split_assignment
from amago.cli.recipe import QUICKSTART, Recipe, recipe_for
from amago.cli_utils import (
    switch_agent,
    switch_async_mode,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs.exploration import ExplorationWrapper, get_exploration_cls
from amago.experiment import Callback, Experiment
from amago.experiment.config import DATASET_ARGUMENTS
from amago.experiment.gin_config import active_bindings, explain, parameters_of, selector_of, unlocked
from amago.experiment.run_json import RunRecord
from amago.experiment.schedule import LinearDecay
from amago.loading import DiskTrajDataset, OfflineDataset
from amago.loading.offline.array_files import load_minari
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder

# Arguments of Experiment that are settings of the recipe; those with another name there are listed first.
EXPERIMENT_SETTINGS = {
    "parallel_actors": "actors",
    "dset_max_size": "buffer_size",
    "dloader_workers": "loader_workers",
    "train_timesteps_per_epoch": "timesteps_per_epoch",
    "train_batches_per_epoch": "batches_per_epoch",
    **{
        name: name
        for name in (
            *("max_seq_len", "env_mode", "epochs", "val_interval", "ckpt_interval", "batch_size", "seed"),
            *("learning_rate", "lr_warmup_steps", "grad_clip", "l2_coeff", "mixed_precision"),
            *("padded_sampling", "sample_actions_val"),
        )
    },
}
# Other arguments of Experiment that the command line sets, and where.
_OTHER_OPTIONS = {
    "threads": "--threads",
    "run_name": "--run-name",
    "dset_name": "--run-name",
    "ckpt_base_dir": "--run-dir",
    "dset_root": "--run-dir",
    "agent_type": "--agent",
    "tstep_encoder_type": "--tstep-encoder",
    "traj_encoder_type": "--traj-encoder",
    "exploration_wrapper_type": "--exploration",
    "make_train_env": "ENV",
    "make_val_env": "ENV",
    "resume": "--resume",
    "overwrite": "--overwrite",
    "log_to_wandb": "--wandb",
}


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A complete recipe, and the environment and classes that its names refer to.

    Attributes:
        gin: the settings that the recipe and its classes imply, "Selector.parameter" to value.
    """

    recipe: Recipe
    maker: EnvMaker
    facts: EnvFacts
    agent: type[BaseAgent]
    tstep_encoder: type[TstepEncoder]
    traj_encoder: type[TrajEncoder]
    exploration: type[ExplorationWrapper]
    gin: Mapping[str, Any]


def plan_run(changes: Mapping[str, Any], gin_files: Sequence[Path] = ()) -> RunPlan:
    """Chooses the recipe of an environment, and the classes that its names refer to.

    Args:
        changes: the settings given on the command line; without "env" they are changes to the quickstart.
        gin_files: the --gin files; the modules that they import may register classes.

    Raises:
        UsageProblem: an unknown name, which suggests the most similar one; an environment that cannot be made, or
            does not have the mode.
    """
    maker = resolve_environment(changes.get("env", QUICKSTART.env), changes.get("env_args", {}))
    env_mode = choose_env_mode(maker.name, changes.get("env_mode"))
    facts = inspect_environment(maker)
    wanted = changes.get("kind")
    if wanted is not None and facts.kind == "offline":
        raise UsageProblem(
            f"{maker.name} is a dataset, which has settings of its own: leave it out.", "--kind"
        )
    recipe = recipe_for(maker.name, facts.kind, facts.action_kind, wanted).updated(**changes)
    recipe = recipe.updated(
        env=maker.name,
        env_args=dict(maker.args),
        env_mode=env_mode,
        max_seq_len=recipe.max_seq_len or facts.max_seq_len(recipe.context),
        tstep_encoder=recipe.tstep_encoder or facts.tstep_encoder,
    )
    if env_mode == "already_vectorized" and recipe.actors < 2:
        raise UsageProblem("environments that step together are at least 2.", "--actors")
    return _plan(recipe, facts, gin_files)


def plan_recorded_run(recipe: Recipe, gin_files: Sequence[Path] = ()) -> RunPlan:
    """The plan of a complete recipe, such as a run has recorded."""
    return _plan(recipe, inspect_environment(maker_of(recipe)), gin_files)


def _plan(recipe: Recipe, facts: EnvFacts, gin_files: Sequence[Path]) -> RunPlan:
    if gin_files:
        bind_gin({}, gin_files)  # imports the modules of the files
    config: dict[str, Any] = {}
    try:
        plan = RunPlan(
            recipe=recipe,
            maker=maker_of(recipe),
            facts=facts,
            agent=switch_agent(config, recipe.agent),
            tstep_encoder=switch_tstep_encoder(config, str(recipe.tstep_encoder)),
            traj_encoder=switch_traj_encoder(
                config, recipe.traj_encoder, recipe.memory_size, recipe.memory_layers
            ),
            exploration=_choose_exploration(config, recipe, facts),
            gin=config,
        )
    except ValueError as error:
        raise UsageProblem(str(error), "the settings") from error
    if facts.action_kind == "multibinary" and {"online_coeff", "offline_coeff"} <= {
        *parameters_of(plan.agent)
    }:
        # Samples of MultiBinary actions carry no gradient, so the agent learns by the offline loss alone.
        config[f"{selector_of(plan.agent)}.online_coeff"] = 0.0
        config[f"{selector_of(plan.agent)}.offline_coeff"] = 1.0
    config["DiskTrajDataset.sample_by"] = recipe.sample_by
    if recipe.tstep_encoder == "multimodal" and facts.grids:
        # Ids need the scale of their statistics; a convolutional network would scale them as pixels.
        config["MultiModalTstepEncoder.encoders"] = dict.fromkeys(facts.grids, "vector")
    settings = dict(recipe.gin)
    if facts.reward_multiplier is not None:
        settings["Agent.reward_multiplier"] = facts.reward_multiplier
    config.update(_for_agent(settings, plan.agent))
    return plan


def _for_agent(settings: Mapping[str, Any], agent: type[BaseAgent]) -> dict[str, Any]:
    """gin settings with those of "Agent" renamed to the chosen agent's; what it does not take is left out."""
    renamed = {}
    for key, value in settings.items():
        selector, _, parameter = key.rpartition(".")
        if selector != "Agent":
            renamed[key] = value
        elif parameter in parameters_of(agent):
            renamed[f"{selector_of(agent)}.{parameter}"] = value
    return renamed


def _choose_exploration(config: dict[str, Any], recipe: Recipe, facts: EnvFacts) -> type[ExplorationWrapper]:
    """Exploration that is annealed over the run and knows the environment's time limit."""
    accepted = parameters_of(get_exploration_cls(recipe.exploration))
    settings = {"steps_anneal": recipe.anneal_steps, "rollout_horizon": facts.time_limit}
    known = {name: value for name, value in settings.items() if name in accepted and value is not None}
    return switch_exploration(config, recipe.exploration, **known)


def bind_gin(
    base: Mapping[str, Any] | RunRecord, gin_files: Sequence[Path] = (), assignments: Sequence[str] = ()
) -> None:
    """Replaces all gin settings and locks gin.

    Args:
        base: "Selector.parameter" to value, or the record of a run whose settings are restored.
        gin_files: the --gin files.
        assignments: the --set texts, SELECTOR.PARAMETER=VALUE.

    Raises:
        UsageProblem: a file or text that gin refuses; suggests the most similar selector or parameter.
    """
    with gin.unlock_config():
        gin.clear_config()
        if isinstance(base, RunRecord):
            try:
                base.bind_gin()
            except ValueError as error:
                raise UsageProblem(str(error), "RUN") from error
        else:
            use_config(base, finalize=False)
    try:
        use_config({}, gin_configs=gin_files, finalize=False)
    except (ValueError, SyntaxError, ImportError, OSError) as error:
        raise UsageProblem(str(error), "--gin") from error
    for text in assignments:
        _assign(text)
    use_config({})


def _assign(text: str) -> None:
    key, value = split_assignment(text, "--set")
    if "." not in key:
        remedy = "write SELECTOR.PARAMETER=VALUE, as in Agent.gamma=0.99."
        raise UsageProblem(f"{text!r} names no parameter: {remedy}", "--set")
    try:
        with unlocked():
            gin.parse_config(f"{key} = {value}")
    except SyntaxError as error:
        raise UsageProblem(
            f"{value!r} is not a gin literal: give a number, True, None, a list, @Configurable or a text in "
            "quotes. The shell removes one pair of quotes, so write --set '" + key + '="relu"\'.',
            "--set",
        ) from error
    except ValueError as error:
        # The first line is the problem; gin adds the line that it parsed, which is `text`.
        raise UsageProblem(explain(str(error).partition("\n")[0]), "--set") from error


def build_agent(plan: RunPlan) -> BaseAgent:
    """The agent of a plan, with gin as it is bound now.

    Raises:
        UsageProblem: agent, encoders or exploration refuse a setting.
    """
    assert plan.recipe.max_seq_len is not None
    try:
        env = plan.maker()
    except ValueError as error:
        raise UsageProblem(f"{plan.maker.name}: {error}", "ENV") from error
    try:
        plan.exploration(env)
        with torch.random.fork_rng():
            return plan.agent(
                obs_space=env.observation_space,
                rl2_space=env.rl2_space,
                action_space=env.action_space,
                max_seq_len=plan.recipe.max_seq_len,
                tstep_encoder_type=plan.tstep_encoder,
                traj_encoder_type=plan.traj_encoder,
            )
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageProblem(str(error), "the settings") from error
    finally:
        env.close()


def warn_of_unused_settings(assignments: Sequence[str], agent: BaseAgent, console: Console) -> None:
    """Prints a warning for every --set text whose class is an encoder that is no part of the agent."""
    parts = {_full_name(cls) for module in agent.modules() for cls in type(module).__mro__}
    encoders = ", ".join(type(each).__name__ for each in (agent.tstep_encoder, agent.traj_encoder))
    bound = {binding.selector for binding in active_bindings()}
    for text in assignments:
        name = text.partition("=")[0].strip().rpartition("/")[2].rpartition(".")[0]
        found = [each for each in bound if f".{each}".endswith(f".{name}")]
        cls = gin.get_configurable(min(found, key=len)) if found else None
        if not (isinstance(cls, type) and issubclass(cls, (TstepEncoder, TrajEncoder))):
            continue
        if _full_name(cls) not in parts:
            console.print(
                f"[bold yellow]Warning:[/] --set {escape(text)} has no effect: this run has no {cls.__name__} "
                f"(its encoders: {encoders}).",
                highlight=False,
                soft_wrap=True,
            )


def _full_name(cls: type) -> tuple[str, str]:
    """What a class and the class that gin makes of it for `register` have in common."""
    return cls.__module__, cls.__qualname__


def _offline_arguments(plan: RunPlan, folder: Path) -> dict[str, Any]:
    """Arguments of a run that learns from a Minari dataset and collects nothing."""
    dataset = load_minari(
        plan.recipe.env_args["dataset"], download=plan.recipe.env_args.get("download", False)
    )
    return {
        "dataset": OfflineDataset(
            dataset, store=folder.parent / f"{folder.name}-data", sample_by="timesteps"
        ),
        "dset_root": None,
        "dset_name": None,
        "dset_max_size": None,
        "start_collecting_at_epoch": math.inf,
    }


def _refuse_set_by_options(plan: RunPlan) -> None:
    """Raises a UsageProblem for a gin setting that would be ignored, since an option sets the same argument."""
    options = {
        name: option_name(setting) for name, setting in EXPERIMENT_SETTINGS.items() if setting in OPTIONS
    }
    fixed = {
        (selector_of(Experiment), name): option for name, option in {**options, **_OTHER_OPTIONS}.items()
    }
    fixed |= {
        (selector_of(DiskTrajDataset), name): options.get(name) or _OTHER_OPTIONS[name]
        for name in DATASET_ARGUMENTS
    }
    for part in (plan.agent, plan.traj_encoder, plan.tstep_encoder):
        for name in ("max_seq_len", "tstep_encoder_type", "traj_encoder_type"):
            fixed[selector_of(part), name] = options.get(name) or _OTHER_OPTIONS[name]
    for binding in active_bindings():
        if option := fixed.get((binding.selector, binding.parameter)):
            name = f"{binding.selector.rpartition('.')[2]}.{binding.parameter}"
            raise UsageProblem(f"give {option} instead of {name}.", "--set")


def _refuse_settings_of_another_agent(plan: RunPlan) -> None:
    """Raises a UsageProblem for a setting of `Agent` that the recipe's setting of the trained agent overrides."""
    base, name = selector_of(Agent), plan.agent.__name__
    active = {each.key: each.value for each in active_bindings()}
    for key, value in plan.gin.items():
        selector, _, parameter = key.rpartition(".")
        is_own = selector == selector_of(plan.agent) != base
        if is_own and f"{base}.{parameter}" in active and active.get(key) == value:
            raise UsageProblem(
                f"Agent.{parameter} has no effect on the {name} that is trained: give {name}.{parameter}.",
                "--set or --gin",
            )


def changed_arguments(
    record: RunRecord, gin_files: Sequence[Path] = (), assignments: Sequence[str] = ()
) -> set[str]:
    """Restores the gin settings of a run, adds others, and returns the arguments of Experiment that these set."""
    bind_gin(record)
    before = {binding.key: binding.value for binding in active_bindings()}
    bind_gin(record, gin_files, assignments)
    own = [binding for binding in active_bindings() if binding.selector == selector_of(Experiment)]
    return {each.parameter for each in own if each.key not in before or before[each.key] != each.value}


def build_experiment(
    plan: RunPlan,
    folder: Path,
    *,
    resume: bool | str = False,
    overwrite: bool = False,
    log_to_wandb: bool = False,
    log_to_tensorboard: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Experiment:
    """The Experiment of a plan, not started; its run is the folder, and gin has to be bound already.

    Raises:
        UsageProblem: the Experiment refuses an argument.
    """
    recipe = plan.recipe
    if recipe.lr_end < 1.0:
        decay = LinearDecay(max(1, recipe.epochs * recipe.batches_per_epoch), recipe.lr_end)
        callbacks = [*callbacks, decay]
    arguments: dict[str, Any] = {
        "run_name": folder.name,
        "ckpt_base_dir": folder.parent,
        "dset_root": folder.parent,
        "dset_name": folder.name,
        "tstep_encoder_type": plan.tstep_encoder,
        "traj_encoder_type": plan.traj_encoder,
        "agent_type": plan.agent,
        "exploration_wrapper_type": plan.exploration,
        "val_timesteps_per_epoch": min(recipe.val_rounds * plan.facts.evaluation_steps, recipe.val_steps),
        "make_train_env": plan.maker,
        "make_val_env": plan.maker,
        "log_to_wandb": log_to_wandb,
        "log_to_tensorboard": log_to_tensorboard,
        "save_trajs_as": "traj",
        "resume": resume,
        "overwrite": overwrite,
        "callbacks": callbacks,
        "env_description": {
            "name": plan.maker.name,
            "args": dict(plan.maker.args),
            "recipe": dataclasses.asdict(recipe),
        },
        **{name: getattr(recipe, setting) for name, setting in EXPERIMENT_SETTINGS.items()},
    }
    if recipe.threads is not None:
        arguments["threads"] = recipe.threads
    if plan.facts.kind == "offline":
        arguments.update(_offline_arguments(plan, folder))
    if recipe.batches_per_epoch == 0:  # only collects
        arguments.update(start_learning_at_epoch=math.inf, train_batches_per_epoch=1)
    if recipe.traj_save_len is not None:
        arguments["traj_save_len"] = max(recipe.traj_save_len, recipe.max_seq_len or 0)
    _refuse_set_by_options(plan)
    _refuse_settings_of_another_agent(plan)
    bound = {each.parameter for each in active_bindings() if each.selector == selector_of(Experiment)}
    for name in bound & arguments.keys():
        del arguments[name]  # An explicit argument would override gin.
    try:
        return Experiment(**arguments)
    except ValueError as error:
        raise UsageProblem(str(error), "train") from error


def switch_mode(experiment: Experiment, mode: str) -> Experiment:
    """As `switch_async_mode`; raises a UsageProblem for a setting that the mode refuses."""
    try:
        switch_async_mode(experiment, mode).validate()
    except ValueError as error:
        raise UsageProblem(str(error), "the settings") from error
    return experiment
