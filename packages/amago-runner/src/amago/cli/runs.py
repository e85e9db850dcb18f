"""The folders of runs: finding one by name, and making room for a new one without losing an old one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from amago.cli.options import UsageProblem, suggestion
from amago.cli.recipes import QUICKSTART_NAME, Recipe

RUN_FILE = "run.json"
# What a run that was stopped while it started may have left.
_WRITTEN_FIRST = {"buffer", "ckpts", "metrics.jsonl", "wandb_logs"}


def default_run_name(env: str | None) -> str:
    """What a run is called that was given no name: as its environment, with what a folder cannot hold replaced."""
    return QUICKSTART_NAME if env is None else re.sub(r"[/\\:]", "-", env)


def find_run(run: str, run_dir: Path) -> Path:
    """The folder of a run that is given by name or by path.

    Raises:
        UsageProblem: there is no such run; the nearest name is suggested.
    """
    for folder in (run_dir / run, Path(run)):
        if (folder / RUN_FILE).is_file():
            return folder
    known = sorted(path.parent.name for path in run_dir.glob(f"*/{RUN_FILE}"))
    hint = suggestion(run, known) or f" In {run_dir} are: {', '.join(known) or 'none'}."
    raise UsageProblem(f"{run!r} is no run in {run_dir} and no folder of one.{hint}", "RUN")


def make_room(folder: Path, *, overwrite: bool) -> None:
    """Makes sure that a new run can begin in `folder`: it is absent or empty, or an old run to be replaced.

    Raises:
        UsageProblem: something is there and `overwrite` is off, or what is there is no run.
    """
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if not names:
        return
    is_run = RUN_FILE in names or names <= _WRITTEN_FIRST
    if overwrite and is_run:
        shutil.rmtree(folder)
        return
    if is_run:
        remedy = "continue it with --resume, replace it with --overwrite, or choose another --run-name."
        raise UsageProblem(f"the run {folder} exists: {remedy}", "--run-name")
    raise UsageProblem(f"{folder} holds something that is no run: choose another --run-name.", "--run-name")


def recorded_recipe(folder: Path) -> Recipe:
    """The recipe that `train` noted in the run's run.json.

    Raises:
        UsageProblem: there is no run in `folder`, or one that this command did not start.
    """
    path = folder / RUN_FILE
    if not path.is_file():
        raise UsageProblem(f"{folder} holds no run.", "--run-name")
    environment = json.loads(path.read_text()).get("environment") or {}
    if "recipe" not in environment:
        remedy = "build its Experiment in your own script to evaluate or resume it."
        raise UsageProblem(f"{folder} was not trained by amago-run: {remedy}", "RUN")
    return Recipe(**environment["recipe"])
