"""Run folders: find a run by its name, check the folder of a new one, read the recipe of an old one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amago.cli.options import UsageProblem
from amago.cli.recipe import QUICKSTART_NAME, Recipe
from amago.envs.registry import did_you_mean

# Modules of amago.experiment are imported inside, and this name is repeated: `--help` must not wait for torch.
RUN_FILE = "run.json"


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


def require_run_folder(folder: Path) -> None:
    """Makes the folder of a run, or checks that it contains nothing but a run.

    Raises:
        UsageProblem: the folder contains other files, or cannot be created.
    """
    from amago.experiment.run_folder import RUN_CONTENTS

    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise UsageProblem(f"the folder {folder} cannot be created: {error}", "--run-dir") from error
    if RUN_FILE not in names and not names <= RUN_CONTENTS:
        raise UsageProblem(
            f"{folder} contains other files than a run: choose another --run-name.", "--run-name"
        )


def clear_run_folder(folder: Path, *, overwrite: bool) -> None:
    """Deletes the run in `folder` before its collectors and its learner start.

    Raises:
        FileExistsError: there is a run, and `overwrite` is False.
        RunInUseError: a process writes the run.
    """
    from amago.experiment.run_folder import RunLock, clear_folder, is_to_be_continued

    lock = RunLock(folder)
    lock.acquire()
    try:
        is_to_be_continued(folder, folder.name, resume=False, overwrite=overwrite)
        if overwrite:
            clear_folder(folder, with_buffer=True)
    finally:
        lock.release()


@contextmanager
def problems_named(folder: Path) -> Iterator[None]:
    """Turns the errors with which an Experiment refuses the folder of a run into `UsageProblem`s."""
    from amago.experiment.run_folder import RunInUseError

    try:
        yield
    except FileExistsError as error:
        remedy = (
            "continue it with --resume (or --auto-resume, which also starts a new run), replace it with "
            "--overwrite, or choose another --run-name."
        )
        raise UsageProblem(f"the run {folder} exists: {remedy}", "--run-name") from error
    except RunInUseError as error:
        raise UsageProblem(f"{error}.", "--run-name") from error


def has_checkpoint(folder: Path) -> bool:
    """Whether the run in `folder` can be resumed."""
    from amago.experiment.checkpointer import Checkpointer

    return bool(Checkpointer(folder, folder.name).epochs())


def has_recipe(folder: Path) -> bool:
    """Whether the run in `folder` was started by amago-run, and not by a script."""
    path = folder / RUN_FILE
    return path.is_file() and "recipe" in (json.loads(path.read_text()).get("environment") or {})


def recorded_recipe(folder: Path) -> Recipe:
    """The recipe in the run's run.json.

    Raises:
        UsageProblem: there is no run in `folder`, or one that was not started by this version of amago-run.
        UntrustedNameError: its environment is in a module that is not trusted.
    """
    from amago.experiment.trusted import require_trusted_module

    path = folder / RUN_FILE
    if not path.is_file():
        raise UsageProblem(f"there is no run in {folder}.", "--run-name")
    recipe = (json.loads(path.read_text()).get("environment") or {}).get("recipe")
    if recipe is None:
        remedy = "build its Experiment in your own script to evaluate or resume it."
        raise UsageProblem(f"{folder} was not trained by amago-run: {remedy}", "RUN")
    try:
        recorded = Recipe(**recipe)
    except TypeError as error:
        raise UsageProblem(f"{folder} was trained by another version of amago-run: {error}", "RUN") from error
    if module := str(recorded.env).rpartition(":")[0]:
        require_trusted_module(module, recorded.env)
    return recorded
