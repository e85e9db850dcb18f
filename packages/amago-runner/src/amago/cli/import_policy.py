"""`amago-run import-policy`: makes a saved policy the latest policy of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from amago.agent import BaseAgent
from amago.cli.build import bind_gin, build_agent, build_experiment, plan_run
from amago.cli.evaluate import rebuilt_experiment
from amago.cli.options import UsageProblem
from amago.cli.run_folders import RUN_FILE, find_run, problems_named, require_run_folder
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.saved_policies import load_saved_policy, read_saved_policy
from amago.utils import count_params


def import_policy(
    file: Path,
    run: str,
    run_dir: Path,
    changes: Mapping[str, Any],
    *,
    gin_files: Sequence[Path],
    assignments: Sequence[str],
    console: Console,
) -> Path:
    """Makes the weights in `file` the latest policy of a run; returns the run's folder.

    Args:
        file: the saved policy.
        run, run_dir: name or folder of the run, and the folder of all runs.
        changes: settings of a new run, with its environment as "env"; empty for an existing run.
        gin_files, assignments: further settings of a new run.

    Raises:
        UsageProblem: the file holds no weights, there is no such run, or its agent has other parameters. Nothing
            was changed.
    """
    if "env" not in changes and (changes or gin_files or assignments):
        raise UsageProblem("settings are for a new run, which needs its environment: --env ENV.", "--env")
    try:
        weights = read_saved_policy(file)
        if "env" in changes:
            folder = run_dir / run
            agent = _import_into_new_run(folder, file, weights, changes, gin_files, assignments)
        else:
            folder = find_run(run, run_dir)
            agent = _import_into_existing_run(folder, file, weights)
    except (ValueError, FileNotFoundError) as error:
        raise UsageProblem(str(error), "POLICY") from error
    console.print(
        f"The latest policy of {folder} is now that of {file}: {count_params(agent):,} trainable parameters. "
        f"Evaluate it with [bold]amago-run eval {run}[/].",
        highlight=False,
    )
    return folder


def _import_into_existing_run(folder: Path, file: Path, weights: Mapping[str, Tensor]) -> BaseAgent:
    with rebuilt_experiment(folder) as experiment:
        agent = experiment.policy
        load_saved_policy(agent, weights, file)
        Checkpointer(folder, folder.name).save_latest(agent.state_dict())
        return agent


def _import_into_new_run(
    folder: Path,
    file: Path,
    weights: Mapping[str, Tensor],
    changes: Mapping[str, Any],
    gin_files: Sequence[Path],
    assignments: Sequence[str],
) -> BaseAgent:
    if (folder / RUN_FILE).exists():
        remedy = "leave out --env and the other settings, or choose another name."
        raise UsageProblem(f"the run {folder} exists: {remedy}", "RUN")
    plan = plan_run(changes, gin_files)
    bind_gin(plan.gin, gin_files, assignments)
    load_saved_policy(build_agent(plan), weights, file)  # Fails before anything is written.
    require_run_folder(folder)
    experiment = build_experiment(plan, folder)
    try:
        with problems_named(folder):
            experiment.start()
        load_saved_policy(experiment.policy, weights, file)
        experiment.write_latest_policy()
        return experiment.policy
    finally:
        experiment.close()
