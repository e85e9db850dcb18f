"""Experiment: a training run, from its arguments to its checkpoints.

Experiment is composed of objects that can be used without it: `Collector`, `Learner`, `Evaluator`, `Checkpointer`,
`MetricLogger` and `BatchLoader`. It creates them in its `init_*` methods and calls them in `learn`. Subclasses may
override any public method.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gin
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from amago.agent import BaseAgent, Batch
from amago.distributed import fsdp
from amago.distributed.processes import Processes, make_accelerator
from amago.envs.env_utils import available_cores
from amago.envs.metrics import ReturnHistory, SpecialMetricHistory
from amago.envs.vector import SplitVectorEnv, VectorEnv, make_split_vector_env, make_vector_env
from amago.experiment.callbacks import Callback, Counters
from amago.experiment.checkpointer import (
    Checkpointer,
    TrainingState,
    load_training_state,
    read_state,
)
from amago.experiment.collector import Collector, make_recorder, make_training_recorder
from amago.experiment.config import ExperimentConfig
from amago.experiment.evaluator import (
    Evaluator,
    histories_from_stats,
    require_same_spaces,
    stats_from_histories,
)
from amago.experiment.learner import Learner, make_adamw
from amago.experiment.progress import ProgressDisplay
from amago.experiment.random_streams import RandomStreams
from amago.experiment.rollout import ActingPolicy
from amago.experiment.run_folder import (
    METRICS_FILE,
    RUN_FILE,
    SUMMARY_FILE,
    RunIdentity,
    RunInUseError,
    RunLock,
    clear_folder,
    is_to_be_continued,
    new_identity,
)
from amago.experiment.run_json import installed_versions, read_run, write_config_text, write_run
from amago.experiment.saved_policies import check_saved_optimizer, load_saved_policy, read_saved_policy
from amago.experiment.schedule import is_due
from amago.experiment.shared_run import (
    CollectorSlot,
    LearnerWatch,
    read_collected,
    read_policy_progress,
    write_policy_progress,
)
from amago.experiment.status import StatusWriter
from amago.experiment.stop_signals import RunStopped, StopSignals
from amago.experiment.summary import RETURN_METRIC, Evaluation, Summary, draw_learning_curve, summary_of
from amago.loading import BatchLoader, DiskTrajDataset
from amago.loading.replay_buffer import get_path_to_trajs
from amago.tracking import JsonlTracker, MetricLogger, TensorboardTracker, TimeBreakdown, WandbTracker
from amago.tracking.jsonl import cut_metrics
from amago.tracking.tensorboard import require_tensorboard
from amago.tracking.wandb import require_wandb_login
from amago.utils import (
    amago_warning,
    as_readable_json,
    get_constant_schedule_with_warmup,
    gin_as_wandb_config,
)

if TYPE_CHECKING:
    from accelerate import Accelerator

    from amago.envs import AMAGOEnv

DEFAULT_BUFFER_SIZE = 20_000
_POLL_SECONDS = 1.0
# Several processes agree to stop after so many updates, and after each part of an epoch.
_UPDATES_PER_AGREEMENT = 10


class _StopRequested(Exception):
    """A signal in `stop_signals` arrived; raised in all processes at the same point of `learn`."""


@dataclass
class _EpochPart:
    """What the current epoch has done so far, for a checkpoint in the middle of it.

    Attributes:
        evaluated: Whether the validation of this epoch is over.
        timesteps: Timesteps collected per actor.
        collected: Whether the collection of this epoch is over.
        batches: Training batches.
        stops: How often the run was stopped in this epoch. A key of the random streams, so that what follows is
            not a repetition of what was collected before.
    """

    evaluated: bool = False
    timesteps: int = 0
    collected: bool = False
    batches: int = 0
    stops: int = 0


@gin.configurable(module="amago.experiment")
class Experiment(ExperimentConfig):
    """Trains an agent: in each epoch it evaluates, collects data, updates the agent and saves.

    The constructor only checks its arguments, which are documented in `ExperimentConfig` and may be edited as
    attributes until `start()` creates everything. `learn()` then runs the epochs.

    Attributes:
        policy_aclr: The agent, wrapped for data-parallel training if there are several processes.
        optimizer: The optimizer. It, `policy_aclr` and `lr_schedule` may be replaced in `init_model`.
        lr_schedule: The learning-rate schedule.
        train_envs: The training environments; None if the run never collects.
        val_envs: The validation environments; a single one if the run only learns.
        train_dloader: The loader of training batches.
        counters: Progress of the run.
        times: Stopwatch of the main process; logged in every epoch under `time/`.
        started: Whether `start()` has been called.
        run_id: Identity of the run, known from `start()` on; None in a collector that starts before its learner.
        status: Writes the status file of this process.
        slot: The number of this collector and its account of what it collects; None in other processes.
        policy_epoch: Number of epochs that the learner had completed with the latest policy that this process has
            written or read; None if it has not.
    """

    policy_aclr: torch.nn.Module
    optimizer: Optimizer
    lr_schedule: LRScheduler
    train_envs: VectorEnv | SplitVectorEnv | None
    val_envs: VectorEnv
    train_dloader: BatchLoader
    learner: Learner
    evaluator: Evaluator
    collector: Collector | None
    checkpointer: Checkpointer
    streams: RandomStreams

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counters = Counters()
        self.started = False
        self.metric_logger = MetricLogger()
        self.times = TimeBreakdown()
        self.run_id: str | None = None
        self._created = 0.0
        self._display = ProgressDisplay()
        self._evaluation: Evaluation | None = None
        self._wall_mark = 0.0
        self.status = StatusWriter()
        self.slot: CollectorSlot | None = None
        self.policy_epoch: int | None = None
        self._watch: LearnerWatch | None = None
        self._collector_index = 0
        self._rounds = 0
        self._evaluated_epoch: int | None = None
        self._closing = contextlib.ExitStack()
        self._batches_seen = 0
        self._env_steps_before_resume: dict[str, int] = {}
        self._wandb_run_id: str | None = None
        self._part = _EpochPart()
        self._signals: StopSignals | None = None
        self._stopping = False
        self._saved_epoch = -1
        self._validation_return: float | None = None
        self._whole_policy: BaseAgent | None = None  # acts instead of a sharded policy

    def start(self) -> None:
        """Creates dataset, loader, environments, agent, optimizer, checkpoints and loggers.

        Raises:
            ValueError, TypeError: an argument is invalid.
            RuntimeError: the experiment was already started, or `log_to_wandb` is set and nobody is logged in.
            ImportError: the package of a logger that is asked for is not installed.
            FileNotFoundError: `resume` is True and there is no checkpoint.
            FileExistsError: there is a run in the folder, and neither `resume` nor `overwrite` is set.
            RunInUseError: another process, or another Experiment of this one, writes the run's folder.
            ValueError: all checkpoints to resume from are damaged. Of several, damaged ones are passed over.
        """
        if self.started:
            raise RuntimeError(f"the experiment {self.run_name!r} is already started")
        self.validate()
        self.check_loggers()
        if not self.processes.is_main:
            self.has_dset_edit_rights = False
        try:
            resumed = self._open_folder()
            seed = self.processes.share(self._choose_seed(resumed))
            self.streams = RandomStreams(seed, self.processes.rank, self.DEVICE)
            self.init_dsets()
            self.init_dloaders()
            self.init_envs()
            assert self.dataset is not None
            self.dataset.set_env_spaces(self.observation_space, self.rl2_space)
            self.init_model()
            self._compose()
            self.init_checkpoints()
            self.started = True
            if resumed is not None:
                self._check_run_id(resumed)
                self.load_checkpoint(resumed)
                self._cut_metrics(resumed)
            self._join_run()
            self.init_logger()
        except BaseException:
            self.close()
            self.started = False
            raise
        if self.processes.is_main and self._saves_policy():
            assert self.run_id is not None
            self.val_envs.call_async("spaces_as_json")
            write_run(
                self,
                run_id=self.run_id,
                created=self._created,
                seed=self.streams.seed,
                env=self,
                spaces=self.val_envs.call_wait()[0],
            )
            write_config_text(self)
        self._notify("on_start")

    def _open_folder(self) -> int | None:
        """Takes the run's folder and returns the epoch to resume from, None for a new run.

        Every process of the run raises what the main one does, since none may wait for it in vain.
        """
        problem: Exception | None = None
        resumed: int | None = None
        identity: RunIdentity | None = None
        if self.processes.is_main:
            try:
                resumed, identity = self._claim_folder()
            except (OSError, RunInUseError, ValueError) as error:
                problem = error
        problem, resumed, identity = self.processes.share((problem, resumed, identity))
        if problem is not None:
            raise problem
        if identity is not None:
            self.run_id, self._created = identity
        return resumed

    def _claim_folder(self) -> tuple[int | None, RunIdentity | None]:
        """The epoch to resume from and the run's identity; locks the folder, and empties it for a new run.

        A process that only collects or evaluates leaves the folder to the one that learns.
        """
        folder, name, writes = self.run_dir, self.run_name, self._saves_policy()
        if writes:
            lock = RunLock(folder)
            lock.acquire()
            self._closing.callback(lock.release)
            Checkpointer(folder, name).remove_unfinished()
            continued = is_to_be_continued(folder, name, resume=self.resume, overwrite=self.overwrite)
        else:
            continued = is_to_be_continued(folder, name, resume=self.resume, overwrite=True)
        resumed = Checkpointer(folder, name).newest_epoch() if continued else None
        is_read = (folder / RUN_FILE).is_file() and not (writes and self.overwrite)
        record = read_run(folder) if is_read else None
        if writes and not continued and (self.overwrite or record is not None):
            # Without `overwrite`: a run that was stopped before its first checkpoint, started again by "auto".
            clear_folder(folder, with_buffer=self.collects)
            self._warn_of_older_trajectories()
            record = None
        if record is not None:
            return resumed, RunIdentity(record.run_id, record.created)
        return resumed, new_identity() if writes else None

    def _warn_of_older_trajectories(self) -> None:
        """Warns if the run that is replaced left trajectories outside of its folder."""
        folder = self.dataset.save_new_trajs_to if self.dataset is not None else None
        if self.dataset is None and self.dset_root is not None and self.dset_name is not None:
            folder = get_path_to_trajs(Path(self.dset_root), self.dset_name, fifo=True)
        if self.collects and folder is not None and folder.is_dir() and any(folder.iterdir()):
            amago_warning(
                f"the run in {self.run_dir} is replaced, but the trajectories in {folder} stay, since other runs "
                "may use them: the new run also learns from them. Delete them with delete_buffer_from_disk() "
                "before, or use another dset_name."
            )

    def init_dsets(self) -> None:
        """Creates the dataset if none was given, and configures it."""
        if self.dataset is None:
            assert self.dset_root is not None
            assert self.dset_name is not None
            self.dataset = DiskTrajDataset(
                dset_root=Path(self.dset_root).expanduser(),
                dset_name=self.dset_name,
                dset_max_size=self.dset_max_size or DEFAULT_BUFFER_SIZE,
            )
        self.dataset.configure_from_experiment(self)

    def init_dloaders(self) -> None:
        """Creates the loader of training batches; its worker processes start with the first epoch of learning."""
        assert self.dataset is not None
        self.train_dloader = BatchLoader(
            self.dataset,
            batch_size=self.batch_size,
            batches_per_epoch=self.train_batches_per_epoch,
            workers=min(self.dloader_workers, available_cores()),
            device=self.DEVICE,
            seed=self.streams.seed,
            rank=self.processes.rank,
        )
        self._closing.callback(self.train_dloader.close)

    def init_envs(self) -> None:
        """Creates the validation environments and, if the run ever collects, the training environments.

        All worker processes are forked here, before any thread is started. A run that only learns needs the spaces
        of a single environment.
        """
        self.val_envs = self._make_eval_envs(self.make_val_env, only_one=self._only_learns)
        self._closing.callback(lambda: self.val_envs.close())
        self.train_envs = None
        if self.collects:
            self.train_envs = self._make_train_envs()
            self._closing.callback(self.train_envs.close)
            require_same_spaces(self.train_envs, self.val_envs)

    def init_agent(self) -> BaseAgent:
        """Creates the agent; an override may load weights into it and freeze networks, see `amago.finetuning`."""
        return self.agent_type(
            obs_space=self.observation_space,
            rl2_space=self.rl2_space,
            action_space=self.action_space,
            max_seq_len=self.max_seq_len,
            tstep_encoder_type=self.tstep_encoder_type,
            traj_encoder_type=self.traj_encoder_type,
        )

    def init_model(self) -> None:
        """Creates the agent, its optimizer and the learning-rate schedule."""
        with self.streams.initializing():
            agent = self.init_agent()
        agent = agent.to(self.DEVICE)
        if self.fsdp:
            self._whole_policy = copy.deepcopy(agent)
        self.policy_aclr = self.processes.wrap(agent, fsdp=self.fsdp)
        self.optimizer = self.init_optimizer(self.policy)
        self.lr_schedule = get_constant_schedule_with_warmup(self.optimizer, self.lr_warmup_steps)

    def _compose(self) -> None:
        """Creates the objects that learn, evaluate and collect with what `init_model` and `init_envs` made."""
        self.learner = Learner(
            self.policy_aclr,
            self.optimizer,
            self.processes,
            lr_schedule=self.lr_schedule,
            grad_clip=self.grad_clip,
            batches_per_update=self.batches_per_update,
            autocast=self._autocast,
            compile_loss=self._compile_loss,
            max_nonfinite=self.max_nonfinite_updates,
            bad_batch_dir=self.run_dir / "nonfinite",
        )
        acting = ActingPolicy(self._whole_policy or self.policy, device=self.DEVICE, autocast=self._autocast)
        self.evaluator = Evaluator(acting, self.streams)
        self.collector = None
        if self.train_envs is not None:
            recorder = make_training_recorder(self, self.train_envs, self.streams, self.processes)
            self.collector = Collector(acting, self.train_envs, recorder, self.streams, times=self.times)
            self._closing.callback(self.collector.close)

    def init_optimizer(self, policy: BaseAgent) -> Optimizer:
        """Creates the optimizer: AdamW over the trainable parameters of `policy`."""
        return make_adamw(policy.trainable_params, self.learning_rate, self.l2_coeff, self.DEVICE)

    def init_checkpoints(self) -> None:
        """Creates the checkpointer of the run's folder."""
        self.checkpointer = Checkpointer(
            self.run_dir,
            self.run_name,
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_best=self.keep_best,
        )

    def check_loggers(self) -> None:
        """Checks, before anything is written, that the main process can use the loggers that are asked for.

        Raises:
            ImportError: wandb or tensorboard is not installed.
            RuntimeError: `log_to_wandb` is set and nobody is logged in.
        """
        problem: Exception | None = None
        if self.processes.is_main:
            try:
                if self.log_to_wandb:
                    require_wandb_login()
                if self.log_to_tensorboard:
                    require_tensorboard()
            except (ImportError, RuntimeError) as error:
                problem = error
        problem = self.processes.share(problem)  # no process waits for one that has failed
        if problem is not None:
            raise problem

    def init_logger(self) -> None:
        """Opens `metrics.jsonl` and the loggers that are asked for, in the main process only."""
        if not self.processes.is_main:
            return
        metrics_file = self.run_dir / METRICS_FILE
        self.metric_logger = MetricLogger([JsonlTracker(metrics_file)])
        self._closing.callback(self.metric_logger.close)
        if self.log_to_tensorboard:
            self.metric_logger.trackers.append(
                TensorboardTracker(self.run_dir / "tensorboard", history=metrics_file)
            )
        if self.log_to_wandb:
            self.metric_logger.trackers.append(
                WandbTracker(
                    project=self.wandb_project,
                    entity=self.wandb_entity,
                    group=self.wandb_group_name,
                    name=self.run_name,
                    config=self._wandb_config(),
                    log_dir=self.run_dir / "wandb_logs",
                    run_id=self._wandb_run_id,
                )
            )

    def _wandb_config(self) -> dict[str, Any]:
        """gin settings as "Selector.parameter", arguments as "Experiment.argument", and versions of packages."""
        arguments = {
            f"Experiment.{field.name}": as_readable_json(getattr(self, field.name))
            for field in fields(self)
            if field.name not in ("callbacks", "resume")
        }
        seed = {"Experiment.seed": self.streams.seed}
        return {**gin_as_wandb_config(), **arguments, **seed, "packages": installed_versions()}

    def learn(self) -> None:
        """Runs the remaining epochs.

        Each epoch loads the latest policy, evaluates, collects, lets the dataset delete old data, updates and
        saves; each part as its interval or starting epoch says. A checkpoint is also saved after the last epoch,
        and at the end, or when the run is stopped by Ctrl-C, its summary and its learning curve.

        Signals in `stop_signals` end it after the running step, with a checkpoint from which `resume` continues in
        the middle of the epoch. They are handled in the main thread only, and as before when `learn` is over.

        Raises:
            RunStopped: a signal arrived; the experiment is closed.
            RuntimeError: `start()` was not called, or the dataset was not ready within `data_timeout` seconds.
            NonFiniteUpdateError: too many consecutive updates were not finite.
        """
        self._require_started("learn()")
        first_epoch = self.epoch
        self._wall_mark = time.perf_counter()
        self.times.start()
        if self.role == "learner" and self.always_save_latest:
            self._publish_policy(self.epoch)  # Collectors act with it until the first epoch is over.
        status, stopped = "finished", ""
        with StopSignals(self.stop_signals) as self._signals:
            try:
                while self.epoch < self.epochs:
                    if self.always_load_latest:
                        with self.times.measure("checkpoint"):
                            self.follow_learner()
                    self._run_epoch(self.epoch)
                    self.counters.epoch += 1
                    self._part = _EpochPart()
                    self._end_if_stopped()
            except _StopRequested:
                status, stopped = "stopped", self._save_unfinished_epoch()
            except (KeyboardInterrupt, SystemExit):
                status = "stopped"
                raise
            except BaseException:
                status = "failed"
                raise
            finally:
                received = self._signals.received or signal.SIGTERM  # another process received one
                self._signals = None
                self._display.close()
                self._count_wall_seconds()
                self._wall_mark = 0.0
                is_new = self.epoch > first_epoch or not (self.run_dir / SUMMARY_FILE).is_file()
                if self._saves_policy() and status != "failed" and is_new:
                    self.write_summary(status=status)
        if status == "stopped":
            self.close()
            if self.processes.is_main:
                print(
                    f"{self.run_name} stopped by {received.name} in epoch {self.epoch}. {stopped}.",
                    file=sys.stderr,
                )
            raise RunStopped(received)
        self._warn_without_updates()
        if self.role == "learner":
            self._count_collected()
        self._notify("on_end")

    def _run_epoch(self, epoch: int) -> None:
        """Runs what is left of an epoch: all of it, unless a signal stopped the run in the middle of it."""
        part = self._part
        before = replace(self.counters)
        self._notify("on_epoch_start", epoch)
        if not part.evaluated and self._evaluates_in(epoch):
            with self.times.measure("evaluation"):
                # A subclass may return nothing.
                self._validation_return = (self.evaluate_val() or {}).get(RETURN_METRIC)
        part.evaluated = True
        if not part.collected:
            if epoch >= self.start_collecting_at_epoch and self.train_timesteps_per_epoch > part.timesteps:
                self.collect_new_training_data()
            self._end_collection()
        part.collected = True
        if epoch >= self.start_learning_at_epoch:
            if self._wait_until_ready():
                self._learn_epoch(epoch)
            else:
                self._warn_of_no_data()
        self._log_epoch(before)
        is_last = epoch + 1 >= self.epochs
        with self.times.measure("checkpoint"):
            if is_due(epoch, self.ckpt_interval) or (is_last and self.ckpt_interval is not None):
                self.save_checkpoint()
            if self.always_save_latest:
                self._publish_policy(epoch + 1)
        self._notify("on_epoch_end", epoch)

    def _save_unfinished_epoch(self) -> str:
        """Writes a checkpoint of what the running epoch has done; returns a message for the user."""
        self.learner.finish()
        self._copy_learner_counters()
        if self.ckpt_interval is None or not self._saves_policy():
            return "It writes no checkpoints"
        if self._part != _EpochPart() or self._saved_epoch != self.epoch - 1:
            self._stopping = True
            self.save_checkpoint()
            if self.always_save_latest:
                self._publish_policy(self.epoch)
        return f"The checkpoint of epoch {self._saved_epoch} is written: resume continues it"

    def _has_signal(self) -> bool:
        """Whether this process received a signal in `stop_signals` during `learn`."""
        return self._signals is not None and self._signals.received is not None

    def _end_if_stopped(self) -> None:
        """Raises _StopRequested in all processes if one of them has received a signal; all have to call this."""
        stop = self._has_signal()
        if self._signals is not None and self.processes.count > 1:
            stop = bool(self.processes.any(torch.tensor([stop], device=self.DEVICE)))
        if stop:
            raise _StopRequested

    def write_summary(
        self,
        metrics: Mapping[str, float] | None = None,
        eval_episodes: int | None = None,
        *,
        status: str = "finished",
    ) -> Summary | None:
        """Writes `summary.json` and `learning_curve.png`; `learn()` does so at its end.

        Args:
            metrics: Metrics of an evaluation after training, from `evaluate_test`. Defaults to those of the last
                evaluation during training.
            eval_episodes: Number of its episodes.
            status: "finished", or "stopped" before the last epoch.

        Returns:
            The summary; None in processes other than the main one.
        """
        self._require_started("write_summary()")
        if not self.processes.is_main:
            return None
        evaluation = self._evaluation
        if metrics is not None:
            evaluation = Evaluation(metrics, eval_episodes, self.counters.env_steps)
        summary = summary_of(self, evaluation, status)
        summary.save(self.run_dir)
        draw_learning_curve(self.run_dir)
        return summary

    def _log_epoch(self, before: Counters) -> None:
        """Logs the time breakdown, rates and counters of the epoch; `before` are the counters at its start.

        Called before the epoch's checkpoint, so that a run resumed from that has them. The checkpoint's time is
        therefore in the breakdown of the next epoch.
        """
        times, now = self.times.take(), self.counters
        collecting = times["environments"] + times["policy"] + times["recording"]
        updating = times["loading"] + times["update"]
        steps, updates = now.env_steps - before.env_steps, now.gradient_steps - before.gradient_steps
        rates = {
            # For a learner, other processes collect all the time.
            "steps_per_second": steps / ((collecting if self.collects else times["total"]) or math.inf),
            "updates_per_second": updates / (updating or math.inf),
        }
        learns = self.start_learning_at_epoch < self.epochs
        # Collectors write to the metrics of the run that they collect for.
        self.log({**times, **rates}, "time" if learns else "time-collector")
        if learns:
            counters = {"gradient_steps": now.gradient_steps, "skipped_updates": now.skipped_updates}
            self.log(counters, "learning")

    def follow_learner(self) -> None:
        """Loads the latest policy if it is a new one, and goes on to the learner's epoch.

        Warns once if the policy is older than `max_policy_age` seconds.
        """
        if self._watch is None:
            self._watch = LearnerWatch(self.run_dir, self.max_policy_age)
        progress = self.processes.share(read_policy_progress(self.run_dir))
        if self._watch.update(progress) or progress is None:
            self.read_latest_policy()
        if progress is not None and self.role == "collector":
            self.counters.epoch = self.policy_epoch = progress.epoch

    def collect_round(self) -> None:
        """One round of a collector: takes the learner's latest policy, evaluates if that is due, and collects."""
        self.follow_learner()
        if self._evaluates_in(self.epoch):
            self.evaluate_val()
        self.collect_new_training_data()

    def collect_new_training_data(self) -> None:
        """Collects `train_timesteps_per_epoch` timesteps per actor and logs under `train/`."""
        if self.collector is None or self.train_envs is None:
            raise RuntimeError(
                "there are no training environments, since this run was started not to collect"
            )
        if self.epoch > 0 and is_due(self.epoch, self.force_reset_train_envs_every):
            self.collector.reset_due = True
        _, (returns, specials) = self.interact(
            self.train_envs,
            self.train_timesteps_per_epoch - self._part.timesteps,
            save_on_done=True,
            sample=self.sample_actions_train,
        )
        self._end_if_stopped()
        self._report("train", returns, specials)

    def evaluate_val(self) -> dict[str, float]:
        """Evaluates in the validation environments and logs under `val/`; returns the metrics."""
        if self._only_learns and self.val_envs.num_envs < self.parallel_actors:
            self.val_envs.close()
            self.val_envs = self._make_eval_envs(self.make_val_env)
        _, (returns, specials) = self.interact(
            self.val_envs, self.val_timesteps_per_epoch, sample=self.sample_actions_val
        )
        self._end_if_stopped()
        return self._report("val", returns, specials)

    def evaluate_test(
        self,
        make_test_env: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
        timesteps: int | None = None,
        render: bool = False,
        save_trajs_to: str | Path | None = None,
        episodes: int | None = None,
    ) -> dict[str, float]:
        """Evaluates in new environments, without exploration, and logs under `test/`.

        Args:
            make_test_env: Function that creates an environment, or a list with one function per actor.
            timesteps: Maximum timesteps per actor. If None there is no limit with `episodes`, and
                `val_timesteps_per_epoch` without.
            render: Render after every step.
            save_trajs_to: Folder for the episodes that finish, in the format of `save_trajs_as`.
            episodes: Number of episodes to count, divided evenly among the actors.

        Returns:
            The metrics by name; empty, with a warning, if no episode finished.

        Raises:
            ValueError: a count below 1, or environments with other spaces than the agent's.
        """
        self._require_started("evaluate_test()")
        for name, count in (("timesteps", timesteps), ("episodes", episodes)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, must be at least 1, or None")
        if timesteps is None and episodes is None:
            timesteps = self.val_timesteps_per_epoch
        if episodes is not None:
            episodes = math.ceil(episodes / self.processes.count)
        saving: dict[str, Any] = {} if save_trajs_to is None else {"save_trajs_to": save_trajs_to}
        envs = self._make_eval_envs(make_test_env)
        try:
            require_same_spaces(self, envs)
            _, (returns, specials) = self.interact(
                envs,
                timesteps,
                render=render,
                episodes=episodes,
                sample=self.sample_actions_val,
                **saving,
            )
        finally:
            envs.close()
        self._end_if_stopped()
        metrics = self._report("test", returns, specials)
        if not metrics and self.processes.is_main:
            amago_warning(
                f"no episode finished within {timesteps} timesteps per actor, so there are no metrics: pass more "
                "timesteps to evaluate_test, or a number of episodes and no limit",
                stacklevel=3,
            )
        return metrics

    def interact(
        self,
        envs: VectorEnv | SplitVectorEnv,
        timesteps: int | None,
        hidden_state: Any = None,
        render: bool = False,
        save_on_done: bool = False,
        episodes: int | None = None,
        sample: bool = True,
        save_trajs_to: str | Path | None = None,
    ) -> tuple[Any, tuple[list[ReturnHistory], list[SpecialMetricHistory]]]:
        """Runs the policy in a vector environment; collection and evaluation go through this method.

        The training environments continue their episodes and always save their trajectories. All others are reset
        first and start with a blank hidden state.

        Args:
            envs: `train_envs`, `val_envs` or any other vector environment, see `make_vector_env`.
            timesteps: Maximum timesteps per actor; None for no limit.
            hidden_state: Initial hidden state of the policy.
            render: Render after every step.
            save_on_done: Save finished episodes in the dataset.
            episodes: Number of episodes to count, divided evenly among the actors; None for no limit.
            sample: Sample actions from the policy; False takes its mode.
            save_trajs_to: Another folder for the finished episodes.

        Returns:
            The final hidden state, and the arguments of `policy_metrics`: returns and special metrics of the
            episodes that finished in this process.
        """
        if self._whole_policy is not None:
            self._whole_policy.load_state_dict(fsdp.whole(self.policy.state_dict()))
        section = "train" if envs is self.train_envs else "val" if envs is self.val_envs else "test"
        total = None if timesteps is None else timesteps * self.parallel_actors * self.processes.count
        self._notify("on_rollout_start", section, total)
        options: dict[str, Any] = {
            "timesteps": timesteps,
            "episodes": episodes,
            "hidden_state": hidden_state,
            "sample": sample,
            "render": render,
            "progress": self._progress(section),
            "stop": self._has_signal,
        }
        if section == "train":
            assert self.collector is not None
            # Several rounds of a collector may fall into one epoch of its learner.
            key = self._stream_key if self.slot is None else self._rounds
            self._rounds += 1
            stats = self.collector.collect(key, **options)
            self._count_env_steps()
            return self.collector.hidden_state, histories_from_stats(stats)
        if isinstance(envs, SplitVectorEnv):
            raise TypeError("envs is a SplitVectorEnv, which only collection supports: pass a VectorEnv")
        index = self.epoch if section == "val" else self.streams.next_test()
        if save_trajs_to is None and save_on_done and self.dataset is not None:
            save_trajs_to = self.dataset.save_new_trajs_to
        recorder = None
        if save_trajs_to is not None:
            rng = self.streams.recorder()
            recorder = make_recorder(self, envs.num_envs, save_trajs_to, rng, whole_episodes=True)
        try:
            final_state, stats = self.evaluator.evaluate(envs, index, recorder=recorder, **options)
            return final_state, histories_from_stats(stats)
        finally:
            if recorder is not None:
                recorder.close()

    def train_step(self, batch: Batch, log_step: bool) -> dict[str, Any]:
        """Trains on one batch; the optimizer steps once per `batches_per_update` calls.

        Args:
            batch: Training batch, on any device.
            log_step: Compute the metrics.

        Returns:
            The update metrics if `log_step`, else an empty dictionary.
        """
        if not self.policy.training:
            self.policy.train()
        metrics = self.learner.train_batch(batch.to(self.DEVICE), log_step)
        self._copy_learner_counters()
        return dict(metrics)

    def log(self, metrics_dict: Mapping[str, Any], key: str) -> None:
        """Logs metrics under the section `key`, over the axes of `x_axis_metrics`."""
        self.metric_logger.log(metrics_dict, section=key, axes=self.x_axis_metrics())
        self._notify("on_metrics", key, metrics_dict)

    def x_axis_metrics(self) -> dict[str, Any]:
        """Values of the x axes that metrics are logged over; timesteps are those of all collectors together."""
        env_steps, by_name = self.counters.env_steps, self.counters.env_steps_by_name
        if self.slot is not None:
            collected = read_collected(self.run_dir)
            env_steps, by_name = collected.env_steps, collected.env_steps_by_name
        return {
            "total_frames": env_steps,
            **{f"total_frames-{name}": steps for name, steps in by_name.items()},
            "Epoch": self.counters.epoch,
            "gradient_steps": self.counters.gradient_steps,
        }

    def policy_metrics(
        self, returns: Iterable[ReturnHistory], specials: Iterable[SpecialMetricHistory]
    ) -> dict[str, float]:
        """Metrics to log of the finished episodes of an evaluation or collection.

        Args:
            returns: Episode returns by environment name.
            specials: Metrics reported by the environments, by environment name.
        """
        return stats_from_histories(returns, specials).to_metrics()

    def save_checkpoint(self) -> None:
        """Saves the training state and the weights of this epoch.

        Unfinished training episodes are written to disk, and the training environments are reset before the next
        collection, as they are in a resumed run.
        """
        assert self.dataset is not None
        own = {"exploration": [], "recorder": None} if self.collector is None else self.collector.state_dict()
        all_processes = self.processes.gather(own)
        self._count_wall_seconds()
        policy, optimizer = fsdp.whole((self.policy.state_dict(), self.optimizer.state_dict()))
        if self.processes.is_main:
            state = {
                "seed": self.streams.seed,
                "run_id": self.run_id,
                "counters": asdict(self.counters),
                "unfinished_epoch": asdict(self._part) if self._stopping else None,
                "validation_return": _finite_or_none(self._validation_return),
                "metrics_bytes": _size(self.run_dir / METRICS_FILE),
                "batches_seen": self._batches_seen,
                "dataset": self.dataset.state_dict(),
                "processes": all_processes,
                "wandb_run_id": self.metric_logger.wandb_run_id,
            }
            contents = TrainingState(policy, optimizer, self.lr_schedule.state_dict(), state)
            self.checkpointer.save(self.epoch, contents)
        self.processes.wait()
        self._saved_epoch = self.epoch
        self._notify("on_checkpoint", self.epoch)

    def load_checkpoint(self, epoch: int, resume_training_state: bool = True) -> None:
        """Loads the checkpoint of `epoch`.

        Args:
            epoch: Epoch of the checkpoint.
            resume_training_state: Restore optimizer, counters and everything else, and continue with the next
                epoch; False loads only the weights.
        """
        if resume_training_state:
            self.load_checkpoint_from_path(self.checkpointer.training_state(epoch))
        else:
            path = self.checkpointer.policy_weights(epoch)
            self.load_checkpoint_from_path(path, is_accelerate_state=False)

    def load_checkpoint_from_path(self, path: str | Path, is_accelerate_state: bool = True) -> None:
        """Loads a training state or weights from any path.

        Args:
            path: Folder in `training_states/`, or a file of weights (see `read_saved_policy`).
            is_accelerate_state: Whether `path` is a training state.

        Raises:
            FileNotFoundError, ValueError: the path does not exist or has another format.
        """
        self._require_started("load_checkpoint_from_path()")
        path = Path(path).expanduser()
        if is_accelerate_state:
            self._restore(load_training_state(path, self.DEVICE))
        else:
            self._load_policy(read_saved_policy(path, self.DEVICE), path)
            self.policy.on_checkpoint_loaded(is_resume=False)

    def write_latest_policy(self) -> None:
        """Writes `ckpts/latest/policy.pt`, in the main process only."""
        weights = fsdp.whole(self.policy.state_dict())
        if self.processes.is_main:
            self.checkpointer.save_latest(weights)

    def read_latest_policy(self) -> None:
        """Loads `ckpts/latest/policy.pt`; warns if there is none yet."""
        try:
            weights = read_saved_policy(self.checkpointer.latest_policy, self.DEVICE)
        except FileNotFoundError as error:
            amago_warning(f"continuing with the current weights: {error}")
            return
        self._load_policy(weights, self.checkpointer.latest_policy)
        self.policy.on_checkpoint_loaded(is_resume=False)

    def delete_buffer_from_disk(self) -> None:
        """Deletes the dataset's trajectories, except protected ones."""
        assert self.dataset is not None
        if self.processes.is_main:
            self.dataset.delete()
        self.processes.wait()

    def close(self) -> None:
        """Writes unfinished trajectories, stops workers and closes loggers; may be called more than once."""
        self._closing.close()

    @functools.cached_property
    def processes(self) -> Processes:
        """The data-parallel processes."""
        return Processes(make_accelerator(self.mixed_precision))

    @property
    def DEVICE(self) -> torch.device:
        """Device of the agent; known before `start()`."""
        return self.processes.device

    @property
    def accelerator(self) -> Accelerator:
        """The accelerate object of this process."""
        return self.processes.accelerator

    @functools.cached_property
    def observation_space(self) -> Any:
        """Observation space of one actor."""
        return self._any_envs.observation_space

    @functools.cached_property
    def rl2_space(self) -> Any:
        """Space of previous reward and action of one actor."""
        return self._any_envs.rl2_space

    @functools.cached_property
    def action_space(self) -> Any:
        """Action space of one actor."""
        return self._any_envs.action_space

    @property
    def policy(self) -> BaseAgent:
        """The agent."""
        if isinstance(self.policy_aclr, BaseAgent):
            return self.policy_aclr
        agent: BaseAgent = self.processes.unwrap(self.policy_aclr)
        return agent

    @property
    def epoch(self) -> int:
        """Current epoch, from 0; a subclass with its own `learn` sets it."""
        return self.counters.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.counters.epoch = epoch

    @property
    def ckpt_dir(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.run_dir / "ckpts"

    @property
    def grad_update_counter(self) -> int:
        """Number of optimizer steps so far; a subclass with its own `train_step` sets it."""
        return self.counters.gradient_steps

    @grad_update_counter.setter
    def grad_update_counter(self, updates: int) -> None:
        self.learner.gradient_steps = self.counters.gradient_steps = updates

    @property
    def hidden_state(self) -> Any:
        """Hidden state of the policy in the training environments."""
        return None if self.collector is None else self.collector.hidden_state

    @hidden_state.setter
    def hidden_state(self, hidden_state: Any) -> None:
        if self.collector is not None:
            self.collector.hidden_state = hidden_state

    @property
    def role(self) -> str | None:
        """What this process does for the run: "both", "learner" or "collector"; None if it does neither."""
        learns = self.start_learning_at_epoch < self.epochs
        if self.collects:
            return "both" if learns else "collector"
        return "learner" if learns else None

    @property
    def interrupted(self) -> bool:
        """Whether a signal waits for the end of the running step; a callback that waits has to return then."""
        return self._has_signal() or bool(getattr(signal.getsignal(signal.SIGINT), "pending", False))

    @property
    def _any_envs(self) -> VectorEnv | SplitVectorEnv:
        return self.val_envs if self.train_envs is None else self.train_envs

    @property
    def _compile_loss(self) -> bool:
        if self.compile == "auto":
            return self.DEVICE.type == "cuda" and not self.fsdp
        return bool(self.compile)

    @property
    def _autocast(self) -> bool:
        return self.mixed_precision == "bf16"

    def _make_train_envs(self) -> VectorEnv | SplitVectorEnv:
        options = self._env_options(role="env")
        options["exploration_wrapper_type"] = self.exploration_wrapper_type
        makers = self.env_makers(self.make_train_env)
        envs: VectorEnv | SplitVectorEnv
        if self.double_buffer:
            envs = make_split_vector_env(makers, **options)
        else:
            envs = make_vector_env(makers, env_mode=self.env_mode, **options)
        self._check_rows(envs)
        return envs

    def _make_eval_envs(
        self, makers: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]], *, only_one: bool = False
    ) -> VectorEnv:
        makers = self.env_makers(makers)
        if only_one:
            makers = makers[:1]
        envs = make_vector_env(makers, env_mode=self.env_mode, **self._env_options(role="eval"))
        if not only_one:
            self._check_rows(envs)
        return envs

    def _env_options(self, role: str) -> dict[str, Any]:
        return {
            "seed": self.streams.seed,
            "rank": self.processes.rank,
            "role": role,
            "mp_context": self.async_env_mp_context,
            "envs_per_worker": self.envs_per_worker,
            "env_timeout": self.env_timeout,
        }

    def _check_rows(self, envs: VectorEnv | SplitVectorEnv) -> None:
        """Raises a ValueError, and closes the environments, unless they have `parallel_actors` rows."""
        actors, rows = self.parallel_actors, envs.num_envs
        if rows == actors:
            return
        envs.close()
        if self.env_mode != "already_vectorized":
            raise ValueError(
                f"env_mode={self.env_mode!r} steps parallel_actors={actors} environments of one row each, but "
                f"theirs step {rows} rows together: for one environment that steps a batch by itself use "
                "env_mode='already_vectorized' and parallel_actors = batched_envs of its AMAGOEnv"
            )
        if rows == 1:
            raise ValueError(
                f"env_mode='already_vectorized' is for one environment that steps parallel_actors={actors} rows "
                "by itself, but this one steps a single row: use env_mode='sync' or 'async', or set batched_envs "
                "of its AMAGOEnv if it does step a batch"
            )
        raise ValueError(
            f"parallel_actors is {actors}, but the environment steps {rows} rows: set parallel_actors={rows}, or "
            "change batched_envs of the AMAGOEnv"
        )

    def _end_collection(self) -> None:
        """Lets the dataset delete old data after every process has written its trajectories."""
        assert self.dataset is not None
        with self.times.measure("waiting"):
            self.processes.wait()
        metrics = dict(self.dataset.on_end_of_collection(self) or {})
        if self.collector is not None:
            refused = self.processes.gather(self.collector.refused_segments)
            metrics["Trajectories Refused (not finite)"] = float(sum(refused))
        if metrics:
            self.log(metrics, "dataset")
        with self.times.measure("waiting"):
            self.processes.wait()

    def _join_run(self) -> None:
        """Takes the number of a collector and announces this process in the run's folder."""
        if self.role is None:
            return
        if self.processes.is_main:
            if self.role == "collector":
                self.slot = CollectorSlot(self.run_dir)
                self._closing.callback(self.slot.release)
                if self.processes.count == 1:
                    self.slot.load_exploration(self)
            index = 0 if self.slot is None else self.slot.index
            self.status.open(self, self.role, index)
            self._closing.callback(self.status.close)
        self._collector_index = self.processes.share(0 if self.slot is None else self.slot.index)

    def _publish_policy(self, epoch: int) -> None:
        """Writes the latest policy, and tells collectors that it is the one after `epoch` epochs."""
        self.write_latest_policy()
        self.policy_epoch = epoch
        if self.processes.is_main:
            write_policy_progress(self.run_dir, epoch)

    def _evaluates_in(self, epoch: int) -> bool:
        """Whether to validate now: of several collectors only the first does, once in an epoch of the learner."""
        if not is_due(epoch, self.val_interval) or self._collector_index > 0:
            return False
        is_repeated = self.role == "collector" and epoch == self._evaluated_epoch
        self._evaluated_epoch = epoch
        return not is_repeated

    def _count_collected(self) -> None:
        """Takes over the timesteps of all collectors; those of a learner that collected before are among them."""
        collected = self.processes.share(read_collected(self.run_dir))
        self.counters.env_steps = max(self.counters.env_steps, collected.env_steps)
        if collected.env_steps_by_name:
            self.counters.env_steps_by_name = collected.env_steps_by_name

    def _wait_until_ready(self) -> bool:
        """Whether the dataset is ready; waits for other processes' data if this run never collects."""
        assert self.dataset is not None
        began = time.monotonic()
        self.times.lap("other")
        while not self.processes.share(self.dataset.ready_for_training):
            if self.collects:
                return False
            self._end_if_stopped()
            waited = time.monotonic() - began
            if waited >= self.data_timeout:
                raise RuntimeError(
                    f"the dataset is not ready after {waited:.0f} s ({self.dataset.get_description()}), and "
                    "this run collects nothing: add data, start a collector, or lower start_collecting_at_epoch"
                )
            self._notify("on_waiting_for_data", waited)
            time.sleep(min(_POLL_SECONDS, max(0.0, self.data_timeout - waited)))
            self.times.lap("waiting")
        if self.role == "learner":
            self._count_collected()
        return True

    def _warn_of_no_data(self) -> None:
        """Says why an epoch of a run that collects could not learn."""
        assert self.dataset is not None
        if not self.processes.is_main:
            return
        reason = f"the dataset is not ready ({self.dataset.get_description()})"
        recorder = self.collector.recorder if self.collector is not None else None
        if recorder is not None and not recorder.saved_files:
            reason = (
                f"no trajectory is finished yet: no episode ended within {self.train_timesteps_per_epoch} "
                f"timesteps per actor, and traj_save_len={self.traj_save_len:g} is longer. Set traj_save_len to "
                f"at most {max(self.train_timesteps_per_epoch, self.max_seq_len)}, which writes longer episodes "
                "in segments, or collect more timesteps per epoch"
            )
        amago_warning(f"an epoch made no updates: {reason}", stacklevel=5)

    def _warn_without_updates(self) -> None:
        """Warns if the run has ended without a single update, unless it was not to learn."""
        updates = self.counters.gradient_steps - self.counters.skipped_updates
        if updates == 0 and self.start_learning_at_epoch < self.epochs and self.processes.is_main:
            skipped = self.counters.skipped_updates
            amago_warning(
                f"the run {self.run_name!r} has ended without an update, so its policy is untrained"
                + (f": all {skipped} updates were skipped because they were not finite" if skipped else ""),
                stacklevel=4,
            )

    def _count_wall_seconds(self) -> None:
        """Adds the time since the last call, or since the start of `learn()`."""
        now = time.perf_counter()
        if self._wall_mark:
            self.counters.wall_seconds += now - self._wall_mark
            self._wall_mark = now

    def _learn_epoch(self, epoch: int) -> None:
        """Trains on `train_batches_per_epoch` batches, less those of this epoch before a stop."""
        done = self._part.batches
        self._notify("on_learning_start", self.train_batches_per_epoch - done)
        self.policy.train()
        self.times.lap("other")
        with self.streams.learning(self._stream_key):
            for batch in itertools.islice(self.train_dloader.epoch(epoch), done, None):
                self.times.lap("loading")
                log_step = self._batches_seen % self.log_interval == 0
                updates_before = self.learner.gradient_steps
                metrics = self.train_step(batch, log_step)
                self.times.lap("update")
                self._batches_seen += 1
                if log_step:
                    self.log(self.processes.mean_metrics(metrics), "train-update")
                self._part.batches += 1
                updated = self.learner.gradient_steps > updates_before
                self._notify("on_batch", updated)
                self.times.lap("other")
                often = self.processes.count == 1 or self.learner.gradient_steps % _UPDATES_PER_AGREEMENT == 0
                if updated and often:
                    self._end_if_stopped()
            self.learner.finish()
            self.times.lap("update")
        self._copy_learner_counters()
        self._notify("on_learning_end")

    def _copy_learner_counters(self) -> None:
        self.counters.gradient_steps = self.learner.gradient_steps
        self.counters.skipped_updates = self.learner.skipped_updates

    def _report(
        self, section: str, returns: list[ReturnHistory], specials: list[SpecialMetricHistory]
    ) -> dict[str, float]:
        """Logs the metrics of the episodes that finished in all processes, if there are any."""
        all_processes = self.processes.gather((returns, specials))
        merged = stats_from_histories(
            [history for each, _ in all_processes for history in each],
            [history for _, each in all_processes for history in each],
        )
        metrics = self.policy_metrics(*histories_from_stats(merged))
        self._notify("on_rollout_end", section, metrics)
        if metrics:
            self.log(metrics, section)
        if section == "val":
            episodes = sum(len(scores) for scores in merged.returns.values())
            self._evaluation = Evaluation(metrics, episodes, self.counters.env_steps)
            if not metrics and self.processes.is_main:
                amago_warning(
                    f"no episode finished in an evaluation of {self.val_timesteps_per_epoch} timesteps per actor, "
                    "so it has no metrics: set val_timesteps_per_epoch to at least the length of an episode",
                    stacklevel=4,
                )
        return metrics

    def _count_env_steps(self) -> None:
        """Adds up the collected timesteps of all processes by environment name."""
        assert self.collector is not None
        totals = dict(self._env_steps_before_resume)
        for steps_by_name in self.processes.gather(self.collector.steps_by_env_name):
            for name, steps in steps_by_name.items():
                totals[name] = totals.get(name, 0) + steps
        self.counters.env_steps_by_name = totals

    def _progress(self, section: str) -> Callable[[int], None]:
        """The function that a rollout calls after every step: counts timesteps and notifies callbacks."""
        listeners = [callback.on_rollout_step for callback in self._all_callbacks()]
        processes = self.processes.count

        def progress(env_steps: int) -> None:
            env_steps *= processes
            if section == "train":
                self.counters.env_steps += env_steps
                self._part.timesteps += 1
            for listener in listeners:
                listener(self, section, env_steps)

        return progress

    @property
    def _stream_key(self) -> int:
        """Key of the random streams of collection and updates: the epoch, and how often it was stopped."""
        return self.epoch + (self._part.stops << 40)

    def _check_run_id(self, epoch: int) -> None:
        """Raises a ValueError if the checkpoint of an epoch belongs to another run than this folder's."""
        path = self.checkpointer.training_state(epoch)
        saved = read_state(path).get("run_id")  # checkpoints of earlier versions have none
        if saved is not None and self.run_id is not None and saved != self.run_id:
            raise ValueError(
                f"{path} is a checkpoint of the run {saved}, but the folder is that of the run {self.run_id}: "
                "move the checkpoint away, restore the run.json that belongs to it, or use another run_name"
            )

    def _cut_metrics(self, epoch: int) -> None:
        """Removes the metrics that were logged after a checkpoint, which the resumed run logs again."""
        if not self.processes.is_main:
            return
        state = read_state(self.checkpointer.training_state(epoch))
        if state.get("metrics_bytes") is not None:
            last_epoch = epoch if state.get("unfinished_epoch") is None else epoch - 1
            cut_metrics(self.run_dir / METRICS_FILE, state["metrics_bytes"], last_epoch)

    def _choose_seed(self, resumed: int | None) -> int:
        if resumed is None:
            return RandomStreams(self.seed, 0, self.DEVICE).seed
        folder = Checkpointer(self.run_dir, self.run_name).training_state(resumed)
        saved: int = read_state(folder)["seed"]
        if self.seed is not None and self.seed != saved:
            raise ValueError(
                f"seed is {self.seed}, but the run to resume has seed {saved}: use that, or None"
            )
        return saved

    def _restore(self, saved: TrainingState) -> None:
        """Restores a training state; training continues with the following epoch, or within an unfinished one."""
        assert self.dataset is not None
        state = saved.state
        self._load_policy(saved.policy, "the training state")
        check_saved_optimizer(self.optimizer, saved.optimizer, "the training state")
        self.optimizer.load_state_dict(fsdp.shard_optimizer_state(saved.optimizer, self.optimizer))
        self.lr_schedule.load_state_dict(saved.lr_schedule)
        self.counters = Counters(**state["counters"])
        self._saved_epoch = self.counters.epoch
        unfinished = state.get("unfinished_epoch")
        self._part = _EpochPart()
        if unfinished is None:
            self.counters.epoch += 1
        else:
            self._part = _EpochPart(**{**unfinished, "stops": unfinished["stops"] + 1})
        self._validation_return = state.get("validation_return")
        self.learner.gradient_steps = self.counters.gradient_steps
        self.learner.skipped_updates = self.counters.skipped_updates
        self._env_steps_before_resume = dict(self.counters.env_steps_by_name)
        self._batches_seen = state["batches_seen"]
        self._wandb_run_id = state.get("wandb_run_id")
        if self.has_dset_edit_rights:
            # Files of other collectors in the same buffer stay.
            later_files_of = _writer_ids(state["processes"]) if self.collects else ()
            self.dataset.load_state_dict(state["dataset"], later_files_of=later_files_of)
        # Otherwise another process could already collect, and its files would be moved aside.
        self.processes.wait()
        if len(state["processes"]) != self.processes.count:
            amago_warning(
                f"the checkpoint has {len(state['processes'])} processes, this run has {self.processes.count}: "
                "exploration schedules start again"
            )
        elif self.collector is not None:
            self.collector.load_state_dict(state["processes"][self.processes.rank])
        self.policy.on_checkpoint_loaded(is_resume=True)

    def _load_policy(self, weights: Mapping[str, Any], source: object) -> None:
        """Loads the weights of a whole policy; `source` is named in errors."""
        load_saved_policy(self.policy, fsdp.shard_model_state(weights, self.policy), source)

    def _saves_policy(self) -> bool:
        """Whether this run owns run.json and checkpoints; False for collectors and runs of no epoch."""
        return self.epochs > 0 and (self.always_save_latest or self.ckpt_interval is not None)

    @property
    def _only_learns(self) -> bool:
        return not self.collects and self.val_interval is None and self.start_learning_at_epoch < self.epochs

    def _notify(self, hook: str, *details: Any) -> None:
        for callback in self._all_callbacks():
            getattr(callback, hook)(self, *details)

    def _all_callbacks(self) -> list[Callback]:
        prints = self.verbose and self.processes.is_main
        own: list[Callback] = [self.status]
        if self.slot is not None:
            own.insert(0, self.slot)
        return [*own, *([self._display] if prints else []), *self.callbacks]

    def _require_started(self, what: str) -> None:
        if not self.started:
            raise RuntimeError(f"call start() before {what}")


def _writer_ids(processes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The writer ids of the recorders in the checkpoint state of all processes."""
    recorders = [each["recorder"] for each in processes if each["recorder"] is not None]
    return {half["writer_id"] for each in recorders for half in each.get("halves", [each])}


def _finite_or_none(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
