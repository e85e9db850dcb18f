"""What a run has done, and how it is written to a checkpoint and restored from one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from amago.distributed import fsdp
from amago.experiment.callbacks import Counters
from amago.experiment.checkpointer import Checkpointer, TrainingState, read_state
from amago.experiment.run_folder import METRICS_FILE
from amago.experiment.saved_policies import check_saved_optimizer, load_saved_policy
from amago.experiment.shared_run import finite_or_none
from amago.tracking.jsonl import cut_metrics
from amago.utils import amago_warning

if TYPE_CHECKING:
    from amago.agent import BaseAgent
    from amago.experiment.experiment import Experiment


@dataclass
class EpochProgress:
    """What the current epoch has done so far, for a checkpoint in the middle of it.

    Attributes:
        evaluated: Whether the validation of this epoch is over.
        timesteps: Timesteps collected per actor.
        collected: Whether the collection of this epoch is over.
        batches: Training batches.
        stops: How often the run was stopped in this epoch. It is part of the key of the random streams, so that
            what is collected after a stop does not repeat what was collected before it.
    """

    evaluated: bool = False
    timesteps: int = 0
    collected: bool = False
    batches: int = 0
    stops: int = 0


@dataclass
class RunState:
    """What a checkpoint restores besides networks, counters, dataset and collector.

    Attributes:
        in_epoch: Progress within the current epoch.
        stopping: Whether the next checkpoint is one in the middle of an epoch.
        saved_epoch: Epoch of the last checkpoint; -1 if there is none.
        batches_seen: Training batches of the whole run.
        validation_return: Mean return of the last validation.
        env_steps_by_name: Timesteps of the sessions before this one, by environment name.
        wandb_run_id: The run's ID at Weights & Biases.
    """

    in_epoch: EpochProgress = field(default_factory=EpochProgress)
    stopping: bool = False
    saved_epoch: int = -1
    batches_seen: int = 0
    validation_return: float | None = None
    env_steps_by_name: dict[str, int] = field(default_factory=dict)
    wandb_run_id: str | None = None


def collector_states(experiment: Experiment) -> list[dict[str, Any]]:
    """The state of each process's collector; every process must call this."""
    collector = experiment.collector
    return experiment.processes.gather(
        {"exploration": [], "recorder": None} if collector is None else collector.state_dict()
    )


def training_state(experiment: Experiment, collectors: list[dict[str, Any]]) -> TrainingState | None:
    """The contents of a checkpoint; None in processes other than the main one. Every process must call this.

    Args:
        experiment: The experiment.
        collectors: `collector_states`.
    """
    assert experiment.dataset is not None
    policy, optimizer = fsdp.unsharded((experiment.policy.state_dict(), experiment.optimizer.state_dict()))
    if not experiment.processes.is_main:
        return None
    progress = experiment.run_state
    validation_return = progress.validation_return
    metrics_file = experiment.run_dir / METRICS_FILE
    state = {
        "seed": experiment.streams.seed,
        "run_id": experiment.run_id,
        "counters": asdict(experiment.counters),
        "unfinished_epoch": asdict(progress.in_epoch) if progress.stopping else None,
        "validation_return": None if validation_return is None else finite_or_none(float(validation_return)),
        "metrics_bytes": metrics_file.stat().st_size if metrics_file.exists() else 0,
        "batches_seen": progress.batches_seen,
        "dataset": experiment.dataset.state_dict(),
        "processes": collectors,
        "wandb_run_id": experiment.metric_logger.wandb_run_id,
    }
    return TrainingState(policy, optimizer, experiment.lr_schedule.state_dict(), state)


def restore_training_state(experiment: Experiment, saved: TrainingState) -> None:
    """Restores a training state; training continues with the following epoch, or within an unfinished one."""
    assert experiment.dataset is not None
    state = saved.state
    load_unsharded_policy(experiment.policy, saved.policy, "the training state")
    check_saved_optimizer(experiment.optimizer, saved.optimizer, "the training state")
    experiment.optimizer.load_state_dict(fsdp.shard_optimizer_state(saved.optimizer, experiment.optimizer))
    experiment.lr_schedule.load_state_dict(saved.lr_schedule)
    _restore_progress(experiment, state)
    # Files of other collectors in the same buffer stay. Without edit rights a dataset moves no files.
    later_files_of = _writer_ids(state["processes"]) if experiment.collects else ()
    experiment.dataset.load_state_dict(state["dataset"], later_files_of=later_files_of)
    # Otherwise another process could already collect, and its files would be moved to `newer_than_checkpoint`.
    experiment.processes.barrier()
    if len(state["processes"]) != experiment.processes.count:
        amago_warning(
            f"the checkpoint has {len(state['processes'])} processes, this run has {experiment.processes.count}: "
            "exploration schedules start again"
        )
    elif experiment.collector is not None:
        experiment.collector.load_state_dict(state["processes"][experiment.processes.rank])
    experiment.policy.on_checkpoint_loaded(is_resume=True)


def _restore_progress(experiment: Experiment, state: Mapping[str, Any]) -> None:
    counters = experiment.counters = Counters(**state["counters"])
    experiment.learner.gradient_steps = counters.gradient_steps
    experiment.learner.skipped_updates = counters.skipped_updates
    progress, unfinished = experiment.run_state, state.get("unfinished_epoch")
    progress.saved_epoch = counters.epoch
    if unfinished is None:
        counters.epoch += 1
        progress.in_epoch = EpochProgress()
    else:
        progress.in_epoch = EpochProgress(**{**unfinished, "stops": unfinished["stops"] + 1})
    progress.validation_return = state.get("validation_return")
    progress.env_steps_by_name = dict(counters.env_steps_by_name)
    progress.batches_seen = state["batches_seen"]
    progress.wandb_run_id = state.get("wandb_run_id")


def load_unsharded_policy(policy: BaseAgent, weights: Mapping[str, Any], source: object) -> None:
    """Loads unsharded weights into a policy that may be sharded; `source` is named in errors."""
    load_saved_policy(policy, fsdp.shard_model_state(weights, policy), source)


def saved_seed(checkpointer: Checkpointer, epoch: int, seed: int | None) -> int:
    """The seed of the run to resume; raises a ValueError if `seed` is given and another one."""
    saved: int = read_state(checkpointer.training_state(epoch))["seed"]
    if seed is not None and seed != saved:
        raise ValueError(f"seed is {seed}, but the run to resume has seed {saved}: use that, or None")
    return saved


def check_run_id(checkpointer: Checkpointer, epoch: int, run_id: str | None) -> None:
    """Raises a ValueError if the checkpoint of an epoch belongs to another run than its folder."""
    path = checkpointer.training_state(epoch)
    saved = read_state(path).get("run_id")  # checkpoints of earlier versions have none
    if saved is not None and run_id is not None and saved != run_id:
        raise ValueError(
            f"{path} is a checkpoint of the run {saved}, but the folder is that of the run {run_id}: "
            "move the checkpoint away, restore the run.json that belongs to it, or use another run_name"
        )


def cut_metrics_after(checkpointer: Checkpointer, epoch: int) -> None:
    """Removes the metrics that were logged after a checkpoint, which the resumed run logs again."""
    state = read_state(checkpointer.training_state(epoch))
    if state.get("metrics_bytes") is not None:
        last_epoch = epoch if state.get("unfinished_epoch") is None else epoch - 1
        cut_metrics(checkpointer.folder.parent / METRICS_FILE, state["metrics_bytes"], last_epoch)


def _writer_ids(processes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The writer ids of the recorders in the checkpoint state of all processes."""
    recorders = [each["recorder"] for each in processes if each["recorder"] is not None]
    return {half["writer_id"] for each in recorders for half in each.get("halves", [each])}
