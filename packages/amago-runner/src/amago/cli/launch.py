"""`amago-run launch`: a learner and several collectors in one command, with one table of all of them."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from amago.cli.build import (
    bind_gin,
    build_agent,
    build_experiment,
    plan_recorded_run,
    plan_run,
    switch_mode,
    warn_of_unused_settings,
)
from amago.cli.environments import named_module
from amago.cli.launch_process import command
from amago.cli.options import UsageProblem
from amago.cli.report import Summary, show_summary
from amago.cli.run_folders import (
    clear_run_folder,
    has_checkpoint,
    problems_named,
    recorded_recipe,
    require_run_folder,
)
from amago.distributed.launch import Launch, LocalLaunch
from amago.experiment.progress import speed_text
from amago.experiment.run_folder import PICTURE_FILE
from amago.experiment.run_json import read_run
from amago.experiment.shared_run import read_collected, read_policy_progress
from amago.experiment.status import read_status, remove_dead

_LINES = 20
_POLL_SECONDS = 0.5


def launch_run(
    folder: Path,
    changes: Mapping[str, Any],
    *,
    gin_files: Sequence[Path],
    assignments: Sequence[str],
    resume: bool | str,
    overwrite: bool,
    log_to_wandb: bool,
    log_to_tensorboard: bool,
    collectors: int,
    ratio: float | None,
    cluster: bool,
    address: str | None,
    trust: Sequence[str],
    console: Console,
) -> int:
    """Trains the run in `folder` with a learner and collectors in processes of their own.

    Args:
        folder, changes, gin_files, assignments, resume, overwrite: as of `train_run`.
        log_to_wandb, log_to_tensorboard: as of `train_run`.
        collectors: number of collectors.
        ratio: updates per environment step; None for no limit.
        cluster: run on a Ray cluster; `address` is its address.
        trust: packages whose code the run folder may name.

    Returns:
        The exit status: 0 if the learner finished, 130 after Ctrl-C, else 1.

    Raises:
        UsageProblem: a setting cannot be used; nothing was started.
    """
    if ratio is not None and not ratio > 0:
        raise UsageProblem(f"{ratio} is not above 0.", "--ratio")
    if cluster:
        _require_ray()
    is_resumed = resume is True or (resume == "auto" and has_checkpoint(folder))
    plan = (
        plan_recorded_run(recorded_recipe(folder), gin_files) if is_resumed else plan_run(changes, gin_files)
    )
    bind_gin(read_run(folder) if is_resumed else plan.gin, gin_files, assignments)
    agent = build_agent(plan)  # A wrong setting ends here, and not in every process.
    warn_of_unused_settings(assignments, agent, console)
    if plan.facts.kind == "offline":
        raise UsageProblem("an offline dataset needs no collectors: use train.", "ENV")
    switch_mode(build_experiment(plan, folder), "learn")
    if not is_resumed:
        require_run_folder(folder)
        with problems_named(folder):
            clear_run_folder(folder, overwrite=overwrite or resume == "auto")
    trust = [*trust, *named_module(changes)]
    settings: dict[str, Any] = {
        "trust": trust,
        "changes": dict(changes),
        "gin_files": [str(path.resolve()) for path in gin_files],
        "assignments": list(assignments),
    }
    learner = command(
        *("learner", folder.resolve(), ratio),
        **{
            **settings,
            "resume": resume,
            "overwrite": False,
            "log_to_wandb": log_to_wandb,
            "log_to_tensorboard": log_to_tensorboard,
            "only_learn": True,
        },
    )
    launch: Launch
    report = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    if cluster:
        from amago.cli.launch_process import ClusterCollectorMaker, ClusterLearner
        from amago.distributed.cluster import ClusterLaunch

        launch = ClusterLaunch(
            ClusterLearner(learner[-1], folder.resolve()),
            ClusterCollectorMaker(folder.resolve(), trust=tuple(trust)),
            folder=folder.resolve(),
            collectors=collectors,
            ratio=ratio,
            round_steps=plan.recipe.actors * plan.recipe.timesteps_per_epoch,
            address=address,
            report=report,
        )
    else:
        launch = LocalLaunch(
            learner,
            command("collector", folder.resolve(), ratio, **settings),
            collectors=collectors,
            log_dir=folder / "logs",
            report=report,
        )
    console.print(
        f"Training on [bold]{plan.recipe.env}[/]: a learner and {collectors} collectors with "
        f"{plan.recipe.actors} actors each, {plan.recipe.epochs} epochs. Run folder: {folder}",
        highlight=False,
    )
    try:
        status = watch_launch(launch, LaunchTable(folder, ratio, plan.recipe.epochs), console)
    except ConnectionError as error:
        raise UsageProblem(f"there is no Ray cluster at {address}: {error}", "--address") from error
    finally:
        remove_dead(folder)  # of collectors that were killed
    if status == 0:
        show_summary(console, Summary.load(folder), folder, folder / PICTURE_FILE)
    return status


def _require_ray() -> None:
    from amago.distributed.cluster import import_ray

    try:
        import_ray()
    except ImportError as error:
        raise UsageProblem(str(error), "--cluster") from error


def watch_launch(launch: Launch, table: LaunchTable, console: Console) -> int:
    """Runs a launch until it is over, and shows its table; the exit status."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        launch.start()
        if live is not None:
            live.start()
        while (status := launch.poll(_POLL_SECONDS)) is None:
            if live is not None:
                live.update(table.render(), refresh=True)
            elif (line := table.line_if_due()) is not None:
                console.print(line, highlight=False, soft_wrap=True)
        return status
    except KeyboardInterrupt:
        if live is not None:
            live.stop()
        console.print("Stopping the learner and all collectors. --resume continues from the last checkpoint.")
        return 130
    finally:
        if live is not None:
            live.stop()
        launch.stop()
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class LaunchTable:
    """The figures of all processes of a run, from their status files.

    Args:
        folder: the run's folder.
        ratio: the ratio asked for.
        epochs: length of the run.
    """

    def __init__(self, folder: Path, ratio: float | None, epochs: int) -> None:
        self._folder = folder
        self._ratio = ratio
        self._next_epoch = 0
        self._every = max(1, epochs // _LINES)

    def totals(self) -> dict[str, Any]:
        """Figures of the whole run: sums of rates, ratio, buffer, age of the policy in seconds, mean return."""
        statuses = read_status(self._folder)
        learner = next((status for status in statuses if status["role"] == "learner"), None)
        collectors = [status for status in statuses if status["role"] == "collector"]
        env_steps = read_collected(self._folder).env_steps
        progress = read_policy_progress(self._folder)
        returns = [status["return"] for status in collectors if status["return"] is not None]
        updates = 0 if learner is None else learner["gradient_steps"]
        return {
            "epoch": 0 if learner is None else learner["epoch"],
            "epochs": None if learner is None else learner["epochs"],
            "env_steps": env_steps,
            "updates": updates,
            "steps_per_second": sum(status["steps_per_second"] for status in collectors),
            "updates_per_second": 0.0 if learner is None else learner["updates_per_second"],
            "ratio": updates / env_steps if env_steps else None,
            "buffer": None if learner is None else learner["buffer_files"],
            "policy_age": None if progress is None else max(0.0, time.time() - progress.time),
            "return": sum(returns) / len(returns) if returns else None,
            "statuses": statuses,
        }

    def line(self) -> str:
        """One line for a log file."""
        total = self.totals()
        asked = "" if self._ratio is None else f" of {self._ratio:g}"
        return (
            f"epoch {total['epoch']}/{_text(total['epochs'])}  {total['env_steps']:,} steps  "
            f"{total['updates']:,} updates  {speed_text(total['steps_per_second'])} steps/s  "
            f"{speed_text(total['updates_per_second'])} updates/s  ratio {_text(total['ratio'], '.4g')}{asked}  "
            f"buffer {_text(total['buffer'])}  policy {_text(total['policy_age'], '.0f')} s old  "
            f"return {_text(total['return'], '.4g')}"
        )

    def line_if_due(self) -> str | None:
        """`line` about twenty times in a run."""
        learner = [status for status in read_status(self._folder) if status["role"] == "learner"]
        if not learner or learner[0]["epoch"] < self._next_epoch or learner[0]["phase"] == "starting":
            return None
        self._next_epoch = learner[0]["epoch"] + self._every
        return self.line()

    def render(self) -> RenderableType:
        """The table for a terminal."""
        total = self.totals()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("process", "doing"):
            table.add_column(heading, no_wrap=True)
        for heading in ("epoch", "steps", "steps/s", "updates", "updates/s", "policy", "return"):
            table.add_column(heading, justify="right", no_wrap=True)
        for status in total["statuses"]:
            is_learner = status["role"] == "learner"
            has_policy = not is_learner and status["policy_epoch"] is not None
            behind = status["policy_epoch"] - total["epoch"] if has_policy else ""
            table.add_row(
                "learner" if is_learner else f"collector {status['index']}",
                status["phase"],
                f"{status['epoch']}" + (f"/{status['epochs']}" if status["epochs"] else ""),
                "" if is_learner else f"{status['env_steps']:,}",
                "" if is_learner else speed_text(status["steps_per_second"]),
                f"{status['gradient_steps']:,}" if is_learner else "",
                speed_text(status["updates_per_second"]) if is_learner else "",
                str(behind),
                _text(status["return"], ".4g"),
            )
        return Group(table, self.line())


def _text(value: Any, form: str = "") -> str:
    return "–" if value is None else format(value, form)
