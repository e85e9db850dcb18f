"""Files by which the learner and the collectors of a run, each in a process of its own, know of each other.

    {run folder}/
        ckpts/latest/progress.json   epoch of the learner when it wrote the policy beside this file
        collectors/{n}.json          what collector n has collected in all its sessions, and its exploration
        collectors/{n}.lock          held by the running collector n

All files appear atomically. Processes need nothing else in common, so they start, stop and return in any order.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from amago.experiment.callbacks import Callback
from amago.experiment.checkpointer import read_json, write_json
from amago.experiment.schedule import is_due
from amago.hindsight import atomic_file
from amago.utils import amago_warning

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment

_SECONDS_BETWEEN_WRITES = 1.0


class PolicyProgress(NamedTuple):
    """What the learner says of its latest policy.

    Attributes:
        epoch: Epochs that the learner had completed, which is the epoch that collectors are in.
        time: When the policy was written, in unix seconds of the learner's clock.
    """

    epoch: int
    time: float


def progress_file(run_dir: Path) -> Path:
    """The file of `PolicyProgress`."""
    return run_dir / "ckpts" / "latest" / "progress.json"


def write_policy_progress(run_dir: Path, epoch: int) -> None:
    """Tells collectors that the latest policy is that of a learner with `epoch` completed epochs."""
    write_json(PolicyProgress(epoch, time.time())._asdict(), progress_file(run_dir), indent=None)


def read_policy_progress(run_dir: Path) -> PolicyProgress | None:
    """What the learner says of its latest policy; None if there is no learner yet."""
    content = read_json(progress_file(run_dir))
    return None if content is None else PolicyProgress(**content)


class LearnerWatch:
    """A collector's view of its learner; complains once when no new policy has appeared for long.

    Args:
        run_dir: The run's folder.
        max_age: Seconds without a new policy, after which a collector complains.

    Attributes:
        progress: Progress of the policy that the collector acts with; None if it has seen none.
    """

    def __init__(self, run_dir: Path, max_age: float) -> None:
        self.progress: PolicyProgress | None = None
        self._run_dir = run_dir
        self._max_age = max_age
        self._since = time.monotonic()
        self._told = False

    def update(self, progress: PolicyProgress | None) -> bool:
        """Takes note of what `read_policy_progress` returned; whether the policy is another one than before."""
        is_new = progress != self.progress
        if is_new:
            self.progress = progress
            # The learner's clock is used once per policy: it may differ from ours.
            age = 0.0 if progress is None else max(0.0, time.time() - progress.time)
            self._since, self._told = time.monotonic() - age, False
        age = time.monotonic() - self._since
        if self.progress is not None and age > self._max_age and not self._told:
            self._told = True
            amago_warning(
                f"the latest policy in {self._run_dir} is {age:.0f} s old (epoch {self.progress.epoch}), so this "
                "collector acts with an old one: the learner has ended, or its epochs take longer than "
                f"max_policy_age={self._max_age:g} s"
            )
        return is_new


@dataclass(kw_only=True)
class Collected:
    """What a collector has collected, in all sessions.

    Attributes:
        env_steps: Timesteps of all actors.
        env_steps_by_name: The same for each environment name, up to the last round.
        exploration: State of exploration after the last round, which the next session continues.
    """

    env_steps: int = 0
    env_steps_by_name: dict[str, int] = field(default_factory=dict)
    exploration: list[Any] = field(default_factory=list)


def collected_file(run_dir: Path, index: int | str) -> Path:
    """The file in which collector `index` keeps what it has collected."""
    return run_dir / "collectors" / f"{index}.json"


def write_collected(totals: Collected, run_dir: Path, index: int | str, *, fsync: bool = False) -> None:
    """Writes the totals of collector `index`; with `fsync` they survive a power failure."""
    path = collected_file(run_dir, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, fsync=fsync) as file:
        file.write(json.dumps(asdict(totals)).encode())


def read_collected(run_dir: Path) -> Collected:
    """The sum over all collectors of a run, also those that have ended; without exploration."""
    total = Collected()
    for path in sorted((run_dir / "collectors").glob("*.json")):
        content = read_json(path)
        if content is not None:
            total.env_steps += content["env_steps"]
            add_counts(total.env_steps_by_name, content["env_steps_by_name"])
    return total


def add_counts(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    """Adds `counts` to `totals`, key by key."""
    for name, count in counts.items():
        totals[name] = totals.get(name, 0) + count


class CollectorSlot(Callback):
    """The slot of a running collector, and the totals of what it collects.

    A collector takes the first slot that no running process holds, and continues the totals of the collector that
    held it before. The lock of a slot is released when its process dies.

    Args:
        run_dir: The run's folder.

    Attributes:
        index: Index of the slot, from 0.
        earlier: Totals of the slot before this session.
    """

    def __init__(self, run_dir: Path) -> None:
        (run_dir / "collectors").mkdir(parents=True, exist_ok=True)
        for index in itertools.count():
            self._lock = FileLock(run_dir / "collectors" / f"{index}.lock", thread_local=False)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                continue
            break
        self.index = index
        self._run_dir = run_dir
        self._next_write = 0.0
        content = read_json(collected_file(run_dir, index)) or {}
        self.earlier = Collected(**content)
        self._exploration = self.earlier.exploration

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        if section == "train" and time.monotonic() >= self._next_write:
            self.write(experiment)

    def on_rollout_end(self, experiment: Experiment, section: str, metrics: Mapping[str, float]) -> None:
        if section == "train" and experiment.train_envs is not None:
            self._exploration = experiment.train_envs.exploration_state()
            self.write(experiment, fsync=True)

    def write(self, experiment: Experiment, *, fsync: bool = False) -> None:
        """Writes what was collected up to now; with `fsync` it survives a power failure."""
        self._next_write = time.monotonic() + _SECONDS_BETWEEN_WRITES
        write_collected(self.totals(experiment), self._run_dir, self.index, fsync=fsync)

    def totals(self, experiment: Experiment) -> Collected:
        """Totals of the slot up to now."""
        by_name = dict(self.earlier.env_steps_by_name)
        add_counts(by_name, experiment.counters.env_steps_by_name)
        return Collected(
            env_steps=self.earlier.env_steps + experiment.counters.env_steps,
            env_steps_by_name=by_name,
            exploration=self._exploration,
        )

    def load_exploration(self, experiment: Experiment) -> None:
        """Lets the environments continue the exploration of the session before."""
        if not self.earlier.exploration or experiment.train_envs is None:
            return
        try:
            experiment.train_envs.load_exploration_state(self.earlier.exploration)
        except ValueError as error:
            amago_warning(f"collector {self.index} explores from the start of its schedule: {error}")

    def release(self) -> None:
        """Releases the slot; its totals stay on record."""
        self._lock.release()


class SharedRun:
    """The part of one process in a run whose learner and collectors are processes of their own.

    Attributes:
        slot: The slot of this collector; None in other processes.
        policy_epoch: Number of epochs that the learner had completed with the latest policy that this process has
            written or read; None if it has not.
    """

    def __init__(self) -> None:
        self.slot: CollectorSlot | None = None
        self.policy_epoch: int | None = None
        self._collector_index = 0
        self._watch: LearnerWatch | None = None
        self._evaluated_epoch: int | None = None
        self._rounds = 0

    def join(self, experiment: Experiment, on_close: Callable[[Callable[[], None]], object]) -> None:
        """Takes a slot if this is a collector, and announces this process in the run's folder.

        Args:
            experiment: The experiment, with its environments.
            on_close: Called with functions that release the slot and remove the announcement.
        """
        if experiment.role is None:
            return
        processes = experiment.processes
        if processes.is_main:
            if experiment.role == "collector":
                self.slot = CollectorSlot(experiment.run_dir)
                on_close(self.slot.release)
                if processes.count == 1:
                    self.slot.load_exploration(experiment)
            experiment.status.open(experiment, experiment.role, 0 if self.slot is None else self.slot.index)
            on_close(experiment.status.close)
        self._collector_index = processes.broadcast_from_main(0 if self.slot is None else self.slot.index)

    def publish_policy(self, experiment: Experiment, epoch: int) -> None:
        """Writes the latest policy, and tells collectors that it is the one after `epoch` epochs."""
        experiment.write_latest_policy()
        self.policy_epoch = epoch
        if experiment.processes.is_main:
            write_policy_progress(experiment.run_dir, epoch)

    def follow_learner(self, experiment: Experiment) -> None:
        """Loads the latest policy if it is a new one, and goes on to the learner's epoch.

        Warns once if the policy is older than `max_policy_age` seconds.
        """
        if self._watch is None:
            self._watch = LearnerWatch(experiment.run_dir, experiment.max_policy_age)
        progress = experiment.processes.broadcast_from_main(read_policy_progress(experiment.run_dir))
        if self._watch.update(progress) or progress is None:
            experiment.read_latest_policy()
        if progress is not None and experiment.role == "collector":
            experiment.epoch = self.policy_epoch = progress.epoch

    def collect_round(self, experiment: Experiment) -> None:
        """One round of a collector: takes the learner's latest policy, evaluates if that is due, and collects."""
        self.follow_learner(experiment)
        if self.evaluates_in(experiment, experiment.epoch):
            experiment.evaluate_val()
        experiment.collect_new_training_data()

    def evaluates_in(self, experiment: Experiment, epoch: int) -> bool:
        """Whether to validate now: of several collectors only the first does, once in an epoch of the learner."""
        if not is_due(epoch, experiment.val_interval) or self._collector_index > 0:
            return False
        is_repeated = experiment.role == "collector" and epoch == self._evaluated_epoch
        self._evaluated_epoch = epoch
        return not is_repeated

    def next_round(self) -> int:
        """The number of a collection, from 0; several rounds of a collector may fall into one epoch."""
        self._rounds += 1
        return self._rounds - 1

    def count_collected(self, experiment: Experiment) -> None:
        """Takes over the timesteps of all collectors; those of a learner that collected before are among them."""
        collected = experiment.processes.broadcast_from_main(read_collected(experiment.run_dir))
        counters = experiment.counters
        counters.env_steps = max(counters.env_steps, collected.env_steps)
        if collected.env_steps_by_name:
            counters.env_steps_by_name = collected.env_steps_by_name

    def env_steps(self, experiment: Experiment) -> tuple[int, Mapping[str, int]]:
        """Timesteps of all collectors together, in total and by environment name."""
        counted = experiment.counters if self.slot is None else read_collected(experiment.run_dir)
        return counted.env_steps, counted.env_steps_by_name


def finite_or_none(number: float | None) -> float | None:
    """The number, or None where JSON has none."""
    return number if number is not None and math.isfinite(number) else None
