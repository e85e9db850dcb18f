"""`amago-run import-policy`: weights that were saved elsewhere become the latest policy of a run.

The names and shapes in the file tell most of what the agent was; that is shown first. Then the policy goes into
the run that is named, or into a new one that is made with the file's sizes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from amago.agent import BaseAgent
from amago.cli.bindings import apply_bindings, override_bindings, restore_bindings
from amago.cli.environments import EnvMaker, inspect_environment, resolve_environment
from amago.cli.options import UsageProblem
from amago.cli.parts import Parts, build_agent, choose_parts
from amago.cli.recipes import Recipe
from amago.cli.runs import RUN_FILE, find_run, make_room, recorded_recipe
from amago.cli.train import Request, build_experiment
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.policy_sizes import UNKNOWN, Fact, differences, facts_of
from amago.experiment.run_file import read_run, write_config_text, write_run
from amago.experiment.saved_policies import SavedPolicy, read_saved_policy
from amago.loading import DoNothingDataset
from amago.utils import count_params

# Where the policy that a run had before the first import is kept, beside the latest one.
REPLACED = "policy_before_import.pt"
_NAMES_SHOWN = 3
# The recipe's fields that a part's kind decides.
_CHOICES = {"agent": "agent", "timestep encoder": "tstep_encoder", "memory": "traj_encoder"}


@dataclass(frozen=True, kw_only=True)
class Import:
    """What the command line asks for.

    Attributes:
        file: the saved policy.
        run: name or folder of a run; of the run to make if `env` is given.
        run_dir: folder of the runs.
        env, env_args: environment of a new run, by name, and its arguments.
        max_seq_len: of a new run; None takes it from the environment.
        gin_files, assignments: settings of a new run, on top of the sizes in the file.
    """

    file: Path
    run: str
    run_dir: Path
    env: str | None = None
    env_args: Mapping[str, Any] = field(default_factory=dict)
    max_seq_len: int | None = None
    gin_files: Sequence[Path] = ()
    assignments: Sequence[str] = ()


def import_policy(request: Import, console: Console) -> Path:
    """Shows what is in the file and makes it the run's latest policy; returns the run's folder.

    Raises:
        UsageProblem: the file holds no weights or more than weights, there is no such run, or the policy does
            not fit it. Nothing was changed then.
    """
    try:
        saved = read_saved_policy(request.file)
    except (ValueError, FileNotFoundError) as error:
        raise UsageProblem(str(error), "FILE") from error
    facts = facts_of(saved.weights)
    show_policy(console, request.file, saved, facts)
    put = _into_existing_run if request.env is None else _into_new_run
    folder, agent = put(request, saved, facts)
    console.print(
        f"{count_params(agent):,} trainable parameters are now the latest policy of {folder}: "
        f"[bold]amago-run eval {request.run}[/] evaluates it.",
        highlight=False,
    )
    if (folder / "ckpts" / "latest" / REPLACED).exists():
        console.print(
            f"The run's own latest policy is kept beside it as {REPLACED}. Its checkpoints stay, and "
            "train --resume goes on from them.",
            highlight=False,
        )
    return folder


def show_policy(console: Console, file: Path, saved: SavedPolicy, facts: Sequence[Fact]) -> None:
    """Prints what the weights tell, a line for each part."""
    table = Table.grid(padding=(0, 2))
    for part in dict.fromkeys(fact.part for fact in facts):
        own = [fact for fact in facts if fact.part == part]
        shown = [str(fact.value) for fact in own if fact.name == "kind"]
        shown += [f"{fact.name} {fact.value}" for fact in own if fact.name != "kind"]
        table.add_row(part, ", ".join(shown))
    if saved.unwrapped:
        table.add_row("taken out of", ", ".join(map(repr, saved.unwrapped)))
    if saved.copies:
        table.add_row("left out", f"{len(saved.copies)} tensors, a copy of the critics that is not needed")
    if saved.not_finite:
        table.add_row("[yellow]not finite[/]", _some(saved.not_finite))
    console.print(
        f"[bold]{file}[/]: {saved.num_parameters:,} numbers in {len(saved.weights)} tensors, targets and "
        "running statistics included",
        highlight=False,
    )
    console.print(table, highlight=False)


def _into_existing_run(request: Import, saved: SavedPolicy, facts: Sequence[Fact]) -> tuple[Path, BaseAgent]:
    """Into the run that is named, if its agent has the same weights."""
    if request.env_args or request.max_seq_len or request.gin_files or request.assignments:
        raise UsageProblem(
            "--env-arg, --max-seq-len, --gin and --set are for a new run, and that needs --env too; a run that "
            "exists keeps its settings.",
            "import-policy",
        )
    try:
        folder = find_run(request.run, request.run_dir)
    except UsageProblem as problem:
        remedy = "To make a run for this policy, name its environment: --env ENV."
        raise UsageProblem(f"{problem} {remedy}", problem.option) from problem
    record, recipe = read_run(folder), recorded_recipe(folder)
    restore_bindings(record)
    override_bindings((), ())
    maker = EnvMaker(name=recipe.env, args=recipe.env_args)
    arguments = record.experiment_arguments(
        make_train_env=maker, make_val_env=maker, dataset=DoNothingDataset()
    )
    parts = Parts(
        agent=arguments["agent_type"],
        tstep_encoder=arguments["tstep_encoder_type"],
        traj_encoder=arguments["traj_encoder_type"],
        exploration=arguments["exploration_wrapper_type"],
        bindings={},
    )
    agent = build_agent(parts, maker, arguments["max_seq_len"])
    remedy = f"A run that fits is made by: amago-run import-policy {request.file} NAME --env ENV."
    _load(agent, saved, facts, request.file, remedy)
    checkpoints = Checkpointer(folder, folder.name)
    replaced = checkpoints.latest_policy.with_name(REPLACED)
    if checkpoints.latest_policy.is_file() and not replaced.exists():
        shutil.copyfile(checkpoints.latest_policy, replaced)
    checkpoints.save_latest(agent.state_dict())
    return folder, agent


def _into_new_run(request: Import, saved: SavedPolicy, facts: Sequence[Fact]) -> tuple[Path, BaseAgent]:
    """Into a run that is made for it: sizes from the file, everything else by default or as given."""
    folder = request.run_dir / request.run
    if (folder / RUN_FILE).exists():
        remedy = "leave --env out to put the policy there, or choose another name."
        raise UsageProblem(f"the run {folder} exists: {remedy}", "RUN")
    assert request.env is not None
    maker = resolve_environment(request.env, request.env_args)
    env_facts = inspect_environment(maker)
    recipe = Recipe(
        env=maker.name,
        env_args=dict(maker.args),
        max_seq_len=request.max_seq_len or env_facts.max_seq_len,
        **_choices(request.file, facts),
    )
    parts = choose_parts(recipe, env_facts)
    apply_bindings({**parts.bindings, **_bindings(facts)}, request.gin_files, request.assignments)
    assert recipe.max_seq_len is not None
    agent = build_agent(parts, maker, recipe.max_seq_len)
    remedy = "Give the settings of the run that wrote it with --set or --gin, and its environment with --env."
    _load(agent, saved, facts, request.file, remedy)
    make_room(folder, overwrite=False)
    experiment = build_experiment(
        Request(folder=folder, recipe=recipe, changes={}), recipe, parts, maker, env_facts
    )
    # What makes the folder a run comes last.
    Checkpointer(folder, folder.name).save_latest(agent.state_dict())
    write_config_text(experiment)
    write_run(experiment, seed=recipe.seed, env=maker())
    return folder, agent


def _choices(file: Path, facts: Sequence[Fact]) -> dict[str, Any]:
    """The recipe's fields that the file decides."""
    chosen: dict[str, Any] = {}
    for fact in facts:
        if fact.name == "kind" and fact.part in _CHOICES:
            if fact.value == UNKNOWN:
                raise UsageProblem(
                    f"the {fact.part} in {file} is of a kind that amago-run does not know. Build the Experiment "
                    "in a script of your own and call load_checkpoint_from_path(FILE, is_accelerate_state=False) "
                    "after start().",
                    "FILE",
                )
            chosen[_CHOICES[fact.part]] = fact.value
        elif fact.part == "memory" and fact.name in ("d_model", "d_hidden"):
            chosen["memory_size"] = fact.value
        elif fact.part == "memory" and fact.name == "n_layers":
            chosen["memory_layers"] = fact.value
    return chosen


def _bindings(facts: Sequence[Fact]) -> dict[str, Any]:
    """gin settings that give the agent the sizes in the file."""
    bindings = {key: value for fact in facts for key, value in fact.binding.items()}
    for fact in facts:
        if fact.name == "num_critics" and fact.value == 1:
            assert fact.setting is not None
            bindings[f"{fact.setting}_td"] = 1
    return bindings


def _load(agent: BaseAgent, saved: SavedPolicy, facts: Sequence[Fact], file: Path, remedy: str) -> None:
    """Loads the weights strictly; says in words and in names what does not fit."""
    own = agent.state_dict()
    names = _differing_names(saved.weights, own)
    if not names:
        agent.load_state_dict(saved.weights, strict=True)
        return
    unlike = differences(facts, facts_of(own))
    words = [
        f"{fact.part}{'' if fact.name == 'kind' else ' ' + fact.name}: {fact.value} in the file, {other.value} in "
        "the run" + (f", which needs {fact.remedy}" if fact.remedy else "")
        for fact, other in unlike
    ]
    if any(fact.setting is None and fact.name != "discounts" for fact, _ in unlike):
        words.append("what it sees and does is the environment's, so it was trained in another one")
    raise UsageProblem(f"{file} does not fit: {'; '.join([*words, *names])}. {remedy}", "FILE")


def _differing_names(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """The first few names that only one side has, or that have different shapes, in words."""
    missing = [name for name in own if name not in found]
    unexpected = [name for name in found if name not in own]
    reshaped = [
        f"{name} ({_shape(found[name])} in the file, {_shape(own[name])} in the run)"
        for name in own
        if name in found and found[name].shape != own[name].shape
    ]
    said = {"missing from the file": missing, "in the file alone": unexpected, "of another shape": reshaped}
    return [f"{len(names)} {what}: {_some(names)}" for what, names in said.items() if names]


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
