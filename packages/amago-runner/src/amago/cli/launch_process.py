"""A process of `amago-run launch`: `python -m amago.cli.launch_process JSON` runs the learner or a collector."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from amago.cli import flush_lines
from amago.cli.run_folders import RUN_FILE
from amago.cli.separate import build_collector, collect_run, plan_collector
from amago.cli.train import train_run
from amago.distributed.ratio import UpdateRatio
from amago.experiment import Callback, Experiment
from amago.experiment.trusted import trust_only


class EndWithLauncher(Callback):
    """Interrupts this process when the launcher has died, which could no longer end it."""

    def __init__(self) -> None:
        self._launcher = os.getppid()

    def check(self) -> None:
        """Raises KeyboardInterrupt if the launcher is no longer this process's parent."""
        if os.getppid() != self._launcher:
            raise KeyboardInterrupt("the launcher has ended")

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        self.check()

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        self.check()

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self.check()

    def on_waiting_for_data(self, experiment: Experiment, seconds: float) -> None:
        self.check()

    def on_waiting_for_learner(self, experiment: Experiment, seconds: float) -> None:
        self.check()


class _RatioInLaunch(UpdateRatio):
    """As `UpdateRatio`; a process that waits also ends with its launcher."""

    def __init__(self, ratio: float, end: EndWithLauncher) -> None:
        super().__init__(ratio)
        self._end = end

    def wait(self, experiment: Experiment, phase: str) -> None:
        self._end.check()
        super().wait(experiment, phase)


def command(role: str, folder: Path, ratio: float | None, **settings: Any) -> list[str]:
    """The command line of a process; `settings` are arguments of `train_run` or `collect_run`, as JSON."""
    spec = {"role": role, "folder": str(folder), "ratio": ratio, **settings}
    return [sys.executable, "-m", "amago.cli.launch_process", json.dumps(spec)]


def main(spec: dict[str, Any]) -> None:
    """Runs what `command` describes."""
    flush_lines()
    # A shell's background job ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    role, folder, ratio = spec.pop("role"), Path(spec.pop("folder")), spec.pop("ratio")
    end = EndWithLauncher()
    callbacks: list[Callback] = [end, *([] if ratio is None else [_RatioInLaunch(ratio, end)])]
    trust_only(spec.pop("trust"))
    spec["gin_files"] = [Path(path) for path in spec["gin_files"]]
    run: Any = collect_run if role == "collector" else train_run
    run(folder, callbacks=callbacks, console=Console(width=100), **spec)


@dataclass(frozen=True)
class ClusterLearner:
    """Runs the learner of a spec in an actor of the cluster; its output goes to `logs/learner.log`.

    Args:
        spec: the JSON of `command`.
        folder: the run's folder, on the actor's node.
    """

    spec: str
    folder: Path

    def __call__(self) -> None:
        (self.folder / "logs").mkdir(exist_ok=True)
        with (
            (self.folder / "logs" / "learner.log").open("a", buffering=1) as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            try:
                main(json.loads(self.spec))
            except BaseException:
                traceback.print_exc()
                raise


@dataclass(frozen=True)
class ClusterCollectorMaker:
    """Makes the collecting Experiment of a run on another node, from what its run.json says.

    Args:
        folder: the run's folder, on the learner's node.
        trust: packages whose code it may name.
    """

    folder: Path
    trust: tuple[str, ...] = ()

    def record(self) -> str:
        """What nodes need to know of the run; called on the learner's node."""
        return (self.folder / RUN_FILE).read_text()

    def __call__(self, record: str, folder: Path) -> Experiment:
        trust_only(self.trust)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(record)
        experiment = build_collector(plan_collector(folder, {}), folder)
        # Actors have threads of their own, so their environments' workers must not be forked from them.
        experiment.async_env_mp_context = experiment.async_env_mp_context or "forkserver"
        return experiment


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
