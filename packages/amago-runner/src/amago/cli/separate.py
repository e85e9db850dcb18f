"""Collecting and learning in separate processes: the collector of a run, and how both are told what to do.

The learner is `train_run` with mode "learn". A collector takes its settings from run.json once the learner has
written it, and from its own options before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from amago.cli.build import RunPlan, bind_gin, build_experiment, plan_recorded_run, plan_run, switch_mode
from amago.cli.environments import named_module
from amago.cli.options import UsageProblem, option_name
from amago.cli.recipe import FIXED_WHEN_RESUMED
from amago.cli.run_folders import RUN_FILE, recorded_recipe
from amago.experiment import Callback, Experiment
from amago.experiment.run_json import read_run
from amago.experiment.trusted import trusting

# Settings that each collector may have for itself. Its seed is drawn, so --seed is the learner's or an error.
_OWN_SETTINGS = {"actors"}


def collect_run(
    folder: Path,
    changes: Mapping[str, Any],
    *,
    gin_files: Sequence[Path] = (),
    assignments: Sequence[str] = (),
    log_to_wandb: bool = False,
    callbacks: Sequence[Callback] = (),
    console: Console,
) -> None:
    """Collects for the run in `folder` until it is stopped; arguments as of `train_run`."""
    with trusting(*named_module(changes)):
        plan = plan_collector(folder, changes, gin_files, assignments)
    experiment = build_collector(plan, folder, log_to_wandb=log_to_wandb, callbacks=callbacks)
    try:
        experiment.start()
        index = 0 if experiment.slot is None else experiment.slot.index
        console.print(f"Collector {index} of {folder}. Stop it with Ctrl-C.", highlight=False)
        experiment.learn()
    finally:
        experiment.close()


def plan_collector(
    folder: Path, changes: Mapping[str, Any], gin_files: Sequence[Path] = (), assignments: Sequence[str] = ()
) -> RunPlan:
    """The plan of a collector, with gin bound: the run's own if it has been started, else that of the options.

    Raises:
        UsageProblem: an option differs from the run's in what learner and collectors must have in common.
    """
    if not (folder / RUN_FILE).is_file():
        plan = plan_run(changes, gin_files)
        bind_gin(plan.gin, gin_files, assignments)
        return plan
    recorded = recorded_recipe(folder)
    wanted = recorded.updated(**changes)
    if "env" in changes:
        wanted = wanted.updated(env=plan_run(changes).maker.name)
    for setting in set(FIXED_WHEN_RESUMED) - _OWN_SETTINGS:
        old, new = getattr(recorded, setting), getattr(wanted, setting)
        if new != old:
            raise UsageProblem(
                f"the learner has {old!r}, so a collector cannot have {new!r}: leave it out.",
                option_name(setting),
            )
    bind_gin(read_run(folder), gin_files, assignments)
    return plan_recorded_run(wanted)


def build_collector(
    plan: RunPlan, folder: Path, *, log_to_wandb: bool = False, callbacks: Sequence[Callback] = ()
) -> Experiment:
    """The collecting Experiment of a plan, not started."""
    # The learner evaluates once more at the end, so the rate of learning is not a collector's matter.
    plan = dataclasses.replace(plan, recipe=plan.recipe.updated(lr_end=1.0))
    experiment = build_experiment(plan, folder, log_to_wandb=log_to_wandb, callbacks=callbacks)
    return switch_mode(experiment, "collect")
