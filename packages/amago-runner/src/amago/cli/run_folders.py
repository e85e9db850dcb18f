"""Run folders: find a run by name, prepare the folder of a new one, read the recipe and weights of an old one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from amago.cli.options import UsageProblem
from amago.cli.recipe import QUICKSTART_NAME, Recipe
from amago.envs.registry import did_you_mean

RUN_FILE = "run.json"
# A run that was stopped before run.json was written contains only these.
_WRITTEN_BEFORE_RUN_FILE = {"buffer", "ckpts", "metrics.jsonl", "wandb_logs"}


def default_run_name(env: str | None) -> str:
    """The environment's name without characters that folder names cannot have; "quickstart" for None."""
    return QUICKSTART_NAME if env is None else re.sub(r"[/\\:]", "-", env)


def find_run(run: str, run_dir: Path) -> Path:
    """The folder of a run, given its name or its path.

    Raises:
        UsageProblem: there is no such run; suggests the most similar name.
    """
    for folder in (run_dir / run, Path(run)):
        if (folder / RUN_FILE).is_file():
            return folder
    names = sorted(path.parent.name for path in run_dir.glob(f"*/{RUN_FILE}"))
    hint = did_you_mean(run, names) or f" Runs in {run_dir}: {', '.join(names) or 'none'}."
    raise UsageProblem(f"there is no run {run!r} in {run_dir}, and {run!r} is not a run folder.{hint}", "RUN")


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Makes the empty folder of a new run; deletes an existing run if `overwrite` is set.

    Raises:
        UsageProblem: a run exists and `overwrite` is not set, or the folder contains other files or cannot be
            created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise UsageProblem(f"the folder {folder} cannot be created: {error}", "--run-dir") from error
    if not names:
        return
    if RUN_FILE not in names and not names <= _WRITTEN_BEFORE_RUN_FILE:
        raise UsageProblem(
            f"{folder} contains other files than a run: choose another --run-name.", "--run-name"
        )
    if not overwrite:
        remedy = "continue it with --resume, replace it with --overwrite, or choose another --run-name."
        raise UsageProblem(f"the run {folder} exists: {remedy}", "--run-name")
    shutil.rmtree(folder)
    folder.mkdir()


def recorded_recipe(folder: Path) -> Recipe:
    """The recipe in the run's run.json.

    Raises:
        UsageProblem: there is no run in `folder`, or one that was not started by this version of amago-run, or its
            environment is in a module that is not trusted.
    """
    from amago.experiment.trusted import UntrustedNameError, require_trusted_module

    path = folder / RUN_FILE
    if not path.is_file():
        raise UsageProblem(f"there is no run in {folder}.", "--run-name")
    recipe = (json.loads(path.read_text()).get("environment") or {}).get("recipe")
    if recipe is None:
        remedy = "build its Experiment in your own script to evaluate or resume it."
        raise UsageProblem(f"{folder} was not trained by amago-run: {remedy}", "RUN")
    try:
        recorded = Recipe(**recipe)
        if module := str(recorded.env).rpartition(":")[0]:
            require_trusted_module(module, recorded.env)
        return recorded
    except TypeError as error:
        raise UsageProblem(f"{folder} was trained by another version of amago-run: {error}", "RUN") from error
    except UntrustedNameError as error:
        raise UsageProblem(str(error), "RUN") from error
