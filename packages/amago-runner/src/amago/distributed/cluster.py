"""ClusterLaunch: a learner and its collectors as actors of a Ray cluster, without a folder in common.

The learner runs on the node of the launcher, where the run's folder is. Collectors run on any node, each in a
temporary folder. What would pass through a shared folder passes through Ray's object store:

    launcher -> collectors   the file of the latest policy, once per epoch and node
    collectors -> launcher   after each round: trajectory files, the totals of the collector, metrics, status

The launcher writes what arrives into the run's folder, so the learner and `amago-run watch` see the same files as
beside local collectors. A node that is lost takes with it the rounds that its collectors had not delivered; they
start again on other nodes, with the exploration and the totals of their last delivered round.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from amago.distributed.launch import END_SECONDS, MAX_EARLY_EXITS, RestartPolicy, last_lines
from amago.distributed.ratio import step_budget
from amago.experiment import Experiment
from amago.experiment.checkpointer import write_json
from amago.experiment.run_folder import METRICS_FILE
from amago.experiment.run_json import RUN_FILE
from amago.experiment.shared_run import (
    Collected,
    CollectorSlot,
    PolicyProgress,
    progress_file,
    read_collected,
    read_policy_progress,
    write_collected,
)
from amago.experiment.status import read_status, status_file, write_status
from amago.hindsight import atomic_file
from amago.loading.replay_buffer import get_path_to_trajs

_RUN = "run"
_FILES_OF_POLICY = Path("ckpts") / "latest" / "policy.pt"


class CollectorMaker(Protocol):
    """Makes the Experiment of a collector; is pickled and sent to the nodes."""

    def record(self) -> str:
        """What the nodes need to know of the run; called on the learner's node once it has written run.json."""

    def __call__(self, record: str, folder: Path) -> Experiment:
        """The collecting Experiment, not started, whose run folder is `folder` and whose files are its buffer."""


@dataclass
class Round:
    """What a collector delivers.

    Attributes:
        files: Trajectory files by name, as bytes.
        totals: All that the collector has collected.
        metrics: Lines for metrics.jsonl.
        status: The collector's status.
    """

    files: dict[str, NDArray[np.uint8]]
    totals: Collected
    metrics: str
    status: dict[str, Any] | None


class CollectorActor:
    """A collector on any node of the cluster; keeps its episodes from round to round.

    Args:
        make: Makes the Experiment.
        record: What `CollectorMaker.record` returned.
        index: Index of the collector's slot; only the first one evaluates.
        totals: What was delivered from this slot before.
    """

    def __init__(self, make: CollectorMaker, record: str, index: int, totals: Collected) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="amago-collector-")
        self._folder = Path(self._scratch.name) / _RUN
        write_collected(totals, self._folder, 0)
        self._experiment = make(record, self._folder)
        if index > 0:
            self._experiment.val_interval = None
        self._experiment.start()
        self._metrics_read = 0

    def collect(
        self, policy: NDArray[np.uint8] | None, progress: PolicyProgress | None, others: Collected
    ) -> Round:
        """Collects one round.

        Args:
            policy: The file of the learner's latest policy; None before the learner has written it.
            progress: Its epoch.
            others: What the other collectors have collected, for the axes of metrics.
        """
        if policy is not None and progress is not None:
            path = self._folder / _FILES_OF_POLICY
            path.parent.mkdir(parents=True, exist_ok=True)
            policy.tofile(path)
            write_json(progress._asdict(), progress_file(self._folder), indent=None)
        write_collected(others, self._folder, "others")
        self._experiment.shared.collect_round(self._experiment)
        slot = self._experiment.slot
        assert slot is not None
        status = read_status(self._folder)
        return Round(
            files=self._take_files(),
            totals=slot.totals(self._experiment),
            metrics=self._take_metrics(),
            status=status[0] if status else None,
        )

    def _take_files(self) -> dict[str, NDArray[np.uint8]]:
        """The finished trajectory files, which are deleted."""
        assert self._experiment.dataset is not None
        folder = self._experiment.dataset.save_new_trajs_to
        assert folder is not None
        files = {}
        for path in folder.iterdir():
            if not path.name.startswith("."):
                files[path.name] = np.fromfile(path, np.uint8)
                path.unlink()
        return files

    def _take_metrics(self) -> str:
        """The lines that were logged since the last call."""
        with (self._folder / METRICS_FILE).open() as file:
            file.seek(self._metrics_read)
            text = file.read()
            self._metrics_read = file.tell()
        return text


class LearnerActor:
    """The learner, in the main thread of a process on the launcher's node."""

    def pid(self) -> int:
        """The process, to interrupt it."""
        return os.getpid()

    def run(self, learn: Callable[[], None]) -> None:
        """Runs `learn`."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        learn()


@dataclass
class _Collector:
    slot: CollectorSlot
    totals: Collected
    actor: Any = None
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


class ClusterLaunch:
    """Runs a learner and collectors as actors of a Ray cluster; see `amago.distributed.launch.Launch`.

    Args:
        learn: Runs the learner to its end; called in an actor on this node.
        make_collector: Makes the collectors' Experiments.
        folder: The run's folder, on this node.
        collectors: Number of collectors, each of which takes one CPU of a node.
        round_steps: Timesteps of a collector's round.
        report: Receives messages for the user.
        ratio: Updates per timestep; collectors wait between rounds. None for no limit.
        address: Address of the cluster, or "auto"; None for $RAY_ADDRESS, or a new one on this machine.
    """

    def __init__(
        self,
        learn: Callable[[], None],
        make_collector: CollectorMaker,
        *,
        folder: Path,
        collectors: int,
        round_steps: int,
        report: Callable[[str], None],
        ratio: float | None = None,
        address: str | None = None,
    ) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._temporary = None if self._address else _folder_of_local_cluster()
        self._ray = import_ray()
        self._learn, self._make_collector = learn, make_collector
        self._folder = folder
        self._count = collectors
        self._round_steps = round_steps
        self._report = report
        self._ratio = ratio
        self._learner: Any = None
        self._learner_pid = 0
        self._done: Any = None
        self._collectors: dict[int, _Collector] = {}
        self._pending: dict[Any, int] = {}  # rounds that are running: collector by object reference
        self._progress: PolicyProgress | None = None
        self._policy: Any = None
        self._record: Any = None

    def start(self) -> None:
        """Connects to the cluster and starts the learner; collectors start once it has written run.json."""
        options: dict[str, Any] = {"address": self._address}
        if self._temporary is not None:
            options = {"num_cpus": self._count + 1, "include_dashboard": False, "_temp_dir": self._temporary}
        self._ray.init(**options, log_to_driver=False, logging_level="ERROR")
        scheduling = importlib.import_module("ray.util.scheduling_strategies")
        here = self._ray.get_runtime_context().get_node_id()
        on_this_node = scheduling.NodeAffinitySchedulingStrategy(here, soft=False)
        gpus = next(node["Resources"].get("GPU", 0) for node in self._ray.nodes() if node["NodeID"] == here)
        learner = self._ray.remote(LearnerActor)
        self._learner = learner.options(
            num_cpus=1, num_gpus=min(1, gpus), scheduling_strategy=on_this_node
        ).remote()
        self._learner_pid = self._ray.get(self._learner.pid.remote())
        self._done = self._learner.run.remote(self._learn)

    def poll(self, seconds: float) -> int | None:
        """Takes what collectors deliver and lets them go on; the exit status once the launch is over."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._record is None and (self._folder / RUN_FILE).is_file():
                self._start_collectors()
            self._look_for_policy()
            self._begin_rounds()
            # Short waits, since the policy and the ratio change without a message.
            ready, _ = self._ray.wait([self._done, *self._pending], timeout=min(left, 0.1))
            for reference in ready:
                if reference == self._done:
                    return self._end_of_learner()
                self._receive(reference)
            if self._record is not None and not self._collectors:
                self._report("No collector is left.")
                return 1
        return None

    def stop(self) -> None:
        """Interrupts the learner, which then saves and ends, and leaves the cluster."""
        if self._ray.is_initialized():
            self._end_actors()
            self._ray.shutdown()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _end_actors(self) -> None:
        for collector in self._collectors.values():
            self._ray.kill(collector.actor)
            status_file(self._folder, "collector", collector.slot.index).unlink(missing_ok=True)
            collector.slot.release()
        self._collectors.clear()
        if self._done is not None and not self._ray.wait([self._done], timeout=0)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._learner_pid, signal.SIGINT)
            self._ray.wait([self._done], timeout=END_SECONDS)
        if self._learner is not None:
            self._ray.kill(self._learner)
        with contextlib.suppress(OSError):
            (self._folder / "status").rmdir()

    def _start_collectors(self) -> None:
        self._record = self._ray.put(self._make_collector.record())
        for _ in range(self._count):
            slot = CollectorSlot(self._folder)
            self._collectors[slot.index] = collector = _Collector(slot, slot.earlier)
            self._start_actor(collector)

    def _start_actor(self, collector: _Collector) -> None:
        index = collector.slot.index
        actor = self._ray.remote(CollectorActor).options(num_cpus=1, scheduling_strategy="SPREAD")
        collector.actor = actor.remote(self._make_collector, self._record, index, collector.totals)

    def _look_for_policy(self) -> None:
        """Puts a new policy into the object store, from which each node fetches it once."""
        progress = read_policy_progress(self._folder)
        if progress is not None and progress != self._progress:
            self._policy = self._ray.put(np.fromfile(self._folder / _FILES_OF_POLICY, np.uint8))
            self._progress = progress

    def _begin_rounds(self) -> None:
        busy = set(self._pending.values())
        for index, collector in self._collectors.items():
            if index in busy or not self._may_collect():
                continue
            others = read_collected(self._folder)
            others.env_steps -= collector.totals.env_steps
            for name, steps in collector.totals.env_steps_by_name.items():
                others.env_steps_by_name[name] -= steps
            reference = collector.actor.collect.remote(self._policy, self._progress, others)
            self._pending[reference] = index

    def _may_collect(self) -> bool:
        if self._ratio is None:
            return True
        budget = step_budget(self._folder, self._ratio, self._round_steps)
        return budget > len(self._pending) * self._round_steps

    def _receive(self, reference: Any) -> None:
        """Writes what a round has delivered into the run's folder; replaces a collector that was lost."""
        collector = self._collectors[self._pending.pop(reference)]
        try:
            delivered: Round = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._replace(collector, error)
            return
        buffer = get_path_to_trajs(self._folder.parent, self._folder.name, fifo=True)
        buffer.mkdir(parents=True, exist_ok=True)
        for name, content in delivered.files.items():
            with atomic_file(buffer / name, fsync=False) as file:
                file.write(content.data)
        collector.totals = delivered.totals
        write_collected(delivered.totals, self._folder, collector.slot.index)
        with (self._folder / METRICS_FILE).open("a") as metrics:
            metrics.write(delivered.metrics)
        if delivered.status is not None:
            status = {**delivered.status, "index": collector.slot.index, "time": time.time()}
            write_status(status, status_file(self._folder, "collector", collector.slot.index))

    def _replace(self, collector: _Collector, error: Exception) -> None:
        index = collector.slot.index
        self._ray.kill(collector.actor)
        if collector.restarts.should_restart():
            first_line = str(error).strip().partition("\n")[0]
            self._report(
                f"collector {index} was lost with the round that it was collecting, and starts again on a node "
                f"that has room ({type(error).__name__}: {first_line})."
            )
            self._start_actor(collector)
            return
        self._report(f"collector {index} was lost {MAX_EARLY_EXITS} times in a row and is given up: {error}")
        status_file(self._folder, "collector", index).unlink(missing_ok=True)
        collector.slot.release()
        del self._collectors[index]

    def _end_of_learner(self) -> int:
        try:
            self._ray.get(self._done)
        except self._ray.exceptions.RayError as error:
            log = self._folder / "logs" / "learner.log"
            lines = last_lines(log) if log.is_file() else str(error)
            self._report(f"The learner ended with {type(error).__name__}.\n{lines}")
            return 1
        return 0


def _folder_of_local_cluster() -> str:
    """A temporary folder for all that a cluster on this machine writes, and a token for its processes."""
    folder = tempfile.mkdtemp(prefix="ray-")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        # Otherwise Ray would write a token to the home folder.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    return folder


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("a cluster needs Ray: pip install 'amago-runner[ray]'") from error
