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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from amago.envs.vector import SplitVectorEnv, VectorEnv
from amago.experiment.advice import (
    warn_of_no_data,
    warn_of_no_test,
    warn_of_no_validation,
    warn_without_updates,
)
from amago.experiment.callbacks import Callback, Counters
from amago.experiment.checkpointer import Checkpointer, load_training_state
from amago.experiment.collector import Collector, make_recorder, make_training_recorder
from amago.experiment.config import ExperimentConfig
from amago.experiment.environments import make_eval_envs, make_train_envs
from amago.experiment.evaluator import (
    Evaluator,
    histories_from_stats,
    require_same_spaces,
    stats_from_histories,
)
from amago.experiment.learner import Learner, make_adamw, threads_for
from amago.experiment.progress import ProgressDisplay
from amago.experiment.random_streams import RandomStreams
from amago.experiment.rollout import ActingPolicy
from amago.experiment.run_folder import METRICS_FILE, SUMMARY_FILE, open_folder
from amago.experiment.run_json import readable_config, write_config_text, write_run
from amago.experiment.saved_policies import read_saved_policy
from amago.experiment.schedule import is_due
from amago.experiment.shared_run import CollectorSlot, SharedRun, add_counts, read_policy_progress
from amago.experiment.status import StatusWriter
from amago.experiment.stop_signals import RunStopped, StopRequested, StopSignals
from amago.experiment.summary import RETURN_METRIC, Evaluation, Summary, draw_learning_curve, summary_of
from amago.experiment.training_state import (
    EpochProgress,
    RunState,
    check_run_id,
    collector_states,
    cut_metrics_after,
    load_unsharded_policy,
    restore_training_state,
    saved_seed,
    training_state,
)
from amago.loading import BatchLoader, DiskTrajDataset
from amago.tracking import JsonlTracker, MetricLogger, TensorboardTracker, TimeBreakdown, WandbTracker
from amago.tracking.tensorboard import require_tensorboard
from amago.tracking.time_breakdown import rates
from amago.tracking.wandb import require_wandb_login
from amago.utils import amago_warning, get_constant_schedule_with_warmup

if TYPE_CHECKING:
    from accelerate import Accelerator

    from amago.envs import AMAGOEnv

DEFAULT_BUFFER_SIZE = 20_000
_POLL_SECONDS = 1.0
# Several processes agree to stop after so many updates, and after each part of an epoch.
_UPDATES_PER_AGREEMENT = 10


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
        shared: State that a learner and its collectors share.
        run_state: State that checkpoints restore in addition to networks, counters, dataset and collector.
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
        self.shared = SharedRun()
        self.run_state = RunState()
        self._closing = contextlib.ExitStack()
        self._signals: StopSignals | None = None
        self._acting_copy: BaseAgent | None = None  # acts instead of a sharded policy, or of one that learns

    def start(self) -> None:
        """Creates dataset, loader, environments, agent, optimizer, checkpoints and loggers.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an argument is invalid, or all checkpoints to resume from are damaged. If only some are
                damaged, the newest undamaged one is loaded.
            RuntimeError: the experiment was already started, or `log_to_wandb` is set without a login.
            ImportError: the package of a requested logger is not installed.
            FileNotFoundError: `resume` is True and there is no checkpoint.
            FileExistsError: there is a run in the folder, and neither `resume` nor `overwrite` is set.
            RunInUseError: another process, or another Experiment of this process, uses the run's folder.
        """
        if self.started:
            raise RuntimeError(f"the experiment {self.run_name!r} is already started")
        self.validate()
        self.check_loggers()
        if not self.processes.is_main:
            self.has_dset_edit_rights = False
        try:
            resumed, identity = open_folder(self, self.processes, self._closing.callback)
            if identity is not None:
                self.run_id, self._created = identity
            self._init_streams(resumed)
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
                check_run_id(self.checkpointer, resumed, self.run_id)
                self.load_checkpoint(resumed)
                if self.processes.is_main:
                    cut_metrics_after(self.checkpointer, resumed)
            self.shared.join(self, self._closing.callback)
            self.init_logger()
        except BaseException:
            self.close()
            self.started = False
            raise
        if self.processes.is_main and self.saves_policy:
            assert self.run_id is not None
            self.val_envs.call_async("spaces_as_json")
            write_run(
                self,
                run_id=self.run_id,
                created=self._created,
                seed=self.streams.seed,
                env=self,
                spaces=self.val_envs.call_wait()[0],
                env_names=self.val_envs.env_names,
            )
            write_config_text(self)
        self._notify("on_start")

    def _init_streams(self, resumed: int | None) -> None:
        seed = self.seed
        if resumed is not None:
            seed = saved_seed(Checkpointer(self.run_dir, self.run_name), resumed, seed)
        seed = self.processes.broadcast_from_main(RandomStreams(seed, 0, self.DEVICE).seed)
        self.streams = RandomStreams(seed, self.processes.rank, self.DEVICE)

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
        self.val_envs = make_eval_envs(self, self.make_val_env, self.streams, only_one=self.only_learns)
        self._closing.callback(lambda: self.val_envs.close())
        self.train_envs = None
        if self.collects:
            self.train_envs = make_train_envs(self, self.streams)
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
        if self.fsdp or self.overlap_collection:
            self._acting_copy = copy.deepcopy(agent)
        self.policy_aclr = self.processes.wrap(agent, fsdp=self.fsdp)
        self.optimizer = self.init_optimizer(self.policy)
        self.lr_schedule = get_constant_schedule_with_warmup(self.optimizer, self.lr_warmup_steps)

    def _compose(self) -> None:
        """Creates the objects that learn, evaluate and collect with what `init_model` and `init_envs` made."""
        self._set_threads()
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
        acting = ActingPolicy(self._acting_copy or self.policy, device=self.DEVICE, autocast=self._autocast)
        self.evaluator = Evaluator(acting, self.streams)
        self.collector = None
        if self.train_envs is not None:
            recorder = make_training_recorder(self, self.train_envs, self.streams, self.processes)
            self.collector = Collector(acting, self.train_envs, recorder, self.streams, times=self.times)
            self._closing.callback(self.collector.close)

    def _set_threads(self) -> None:
        threads = self.threads
        if threads == "auto":
            threads = threads_for(self.policy, self.batch_size * self.max_seq_len)
        if self.DEVICE.type == "cpu":
            self._closing.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)

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
        """Checks, before anything is written, that the main process can use the requested loggers.

        Raises:
            ImportError: wandb or tensorboard is not installed.
            RuntimeError: `log_to_wandb` is set without a login to Weights & Biases.
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
        problem = self.processes.broadcast_from_main(problem)  # no process waits for one that has failed
        if problem is not None:
            raise problem

    def init_logger(self) -> None:
        """Opens `metrics.jsonl` and the requested loggers, in the main process only."""
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
                    config=readable_config(self, self.streams.seed),
                    log_dir=self.run_dir / "wandb_logs",
                    run_id=self.run_state.wandb_run_id,
                )
            )

    def learn(self) -> None:
        """Runs the remaining epochs.

        Each epoch loads the latest policy, evaluates, collects, lets the dataset delete old data, updates and
        saves, depending on the intervals and starting epochs of these parts. A checkpoint is also saved after the
        last epoch. When the run ends or is stopped, its summary and its learning curve are written.

        Signals in `stop_signals` end the run after the running step, with a checkpoint from which `resume`
        continues in the middle of the epoch. They are handled in the main thread only; afterwards the previous
        handlers are restored.

        Raises:
            RunStopped: a signal was received; the experiment is closed.
            RuntimeError: `start()` was not called, or the dataset was not ready within `data_timeout` seconds.
            NonFiniteUpdateError: too many consecutive updates were not finite.
        """
        self._require_started("learn()")
        first_epoch = self.epoch
        self._wall_mark = time.perf_counter()
        self.times.start()
        if self.role == "learner" and self.always_save_latest:
            # Collectors act with it until the first epoch is over.
            self.shared.publish_policy(self, self.epoch)
        status, stopped = "finished", ""
        with StopSignals(self.stop_signals) as self._signals:
            try:
                while self.epoch < self.epochs:
                    if self.always_load_latest:
                        with self.times.measure("checkpoint"):
                            self.shared.follow_learner(self)
                    self._run_epoch(self.epoch)
                    self.counters.epoch += 1
                    self.run_state.in_epoch = EpochProgress()
                    self._end_if_stopped()
            except StopRequested:
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
                if self.saves_policy and status != "failed" and is_new:
                    self.write_summary(status=status)
        if status == "stopped":
            self.close()
            if self.processes.is_main:
                print(
                    f"{self.run_name} stopped by {received.name} in epoch {self.epoch}. {stopped}.",
                    file=sys.stderr,
                )
            raise RunStopped(received)
        warn_without_updates(self)
        if self.role == "learner":
            self.shared.count_collected(self)
        self._notify("on_end")

    def _run_epoch(self, epoch: int) -> None:
        """Runs what is left of an epoch: all of it, unless a signal stopped the run in the middle of it."""
        part = self.run_state.in_epoch
        before = replace(self.counters)
        self._notify("on_epoch_start", epoch)
        if not part.evaluated and self.shared.evaluates_in(self, epoch):
            with self.times.measure("evaluation"):
                # A subclass may return nothing.
                self.run_state.validation_return = (self.evaluate_val() or {}).get(RETURN_METRIC)
        part.evaluated = True
        overlaps = self._overlaps(epoch)
        if overlaps:
            self._learn_and_collect(epoch)
            self._end_collection()
        elif not part.collected:
            if epoch >= self.start_collecting_at_epoch and self.train_timesteps_per_epoch > part.timesteps:
                if self.role == "collector":
                    self._wait_for_learner()
                self.collect_new_training_data()
            self._end_collection()
        part.collected = True
        if epoch >= self.start_learning_at_epoch and not overlaps:
            if self._wait_until_ready():
                self._learn_epoch(epoch)
            else:
                warn_of_no_data(self)
        self._log_epoch(before, overlaps)
        is_last = epoch + 1 >= self.epochs
        with self.times.measure("checkpoint"):
            if is_due(epoch, self.ckpt_interval) or (is_last and self.ckpt_interval is not None):
                self.save_checkpoint()
            if self.always_save_latest:
                self.shared.publish_policy(self, epoch + 1)
        self._notify("on_epoch_end", epoch)

    def _save_unfinished_epoch(self) -> str:
        """Writes a checkpoint of what the running epoch has done; returns a message for the user."""
        self.learner.finish()
        self._copy_learner_counters()
        if self.ckpt_interval is None or not self.saves_policy:
            return "It writes no checkpoints"
        if self.run_state.in_epoch != EpochProgress() or self.run_state.saved_epoch != self.epoch - 1:
            self.run_state.stopping = True
            self.save_checkpoint()
            if self.always_save_latest:
                self.shared.publish_policy(self, self.epoch)
        return f"The checkpoint of epoch {self.run_state.saved_epoch} is written: resume continues it"

    def _has_signal(self) -> bool:
        """Whether this process received a signal in `stop_signals` during `learn`."""
        return self._signals is not None and self._signals.received is not None

    def _end_if_stopped(self) -> None:
        """Raises StopRequested in all processes if one of them has received a signal; all have to call this."""
        stop = self._has_signal()
        if self._signals is not None and self.processes.count > 1:
            stop = bool(self.processes.any(torch.tensor([stop], device=self.DEVICE)))
        if stop:
            raise StopRequested

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

    def _log_epoch(self, before: Counters, overlaps: bool) -> None:
        """Logs the time breakdown, rates and counters of the epoch; `before` are the counters at its start.

        Called before the epoch's checkpoint, so that a run resumed from that has them. The checkpoint's time is
        therefore in the breakdown of the next epoch.
        """
        seconds, now = self.times.take(), self.counters
        env_steps, updates = now.env_steps - before.env_steps, now.gradient_steps - before.gradient_steps
        per_second = rates(
            seconds, env_steps=env_steps, updates=updates, collects=self.collects, overlaps=overlaps
        )
        # Collectors write to the metrics of the run that they collect for.
        self.log({**seconds, **per_second}, "time" if self.learns else "time-collector")
        if self.learns:
            counters = {"gradient_steps": now.gradient_steps, "skipped_updates": now.skipped_updates}
            self.log(counters, "learning")

    def collect_new_training_data(self) -> None:
        """Collects `train_timesteps_per_epoch` timesteps per actor and logs under `train/`."""
        if self.collector is None or self.train_envs is None:
            raise RuntimeError(
                "there are no training environments, since this run was started not to collect"
            )
        self._reset_train_envs_if_due()
        _, (returns, specials) = self.interact(
            self.train_envs,
            self.train_timesteps_per_epoch - self.run_state.in_epoch.timesteps,
            save_on_done=True,
            sample=self.sample_actions_train,
        )
        self._end_if_stopped()
        self.run_state.in_epoch.timesteps = 0  # the next call collects as many again
        self._report("train", returns, specials)

    def _reset_train_envs_if_due(self) -> None:
        if self.epoch > 0 and is_due(self.epoch, self.force_reset_train_envs_every):
            assert self.collector is not None
            self.collector.reset_due = True

    def evaluate_val(self) -> dict[str, float]:
        """Evaluates in the validation environments and logs under `val/`; returns the metrics."""
        if self.only_learns and self.val_envs.num_envs < self.parallel_actors:
            self.val_envs.close()
            self.val_envs = make_eval_envs(self, self.make_val_env, self.streams)
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
            save_trajs_to: Folder in which finished episodes are saved, in the format of `save_trajs_as`.
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
        envs = make_eval_envs(self, make_test_env, self.streams)
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
        if not metrics:
            warn_of_no_test(self, timesteps)
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

        The training environments continue their episodes and always save their trajectories. All other
        environments are reset first.

        Args:
            envs: `train_envs`, `val_envs` or any other vector environment, see `make_vector_env`.
            timesteps: Maximum timesteps per actor; None for no limit.
            hidden_state: Initial hidden state of the policy. If None, the training environments continue with
                theirs and all others start with a new one.
            render: Render after every step.
            save_on_done: Save finished episodes in the dataset.
            episodes: Number of episodes to count, divided evenly among the actors; None for no limit.
            sample: Sample actions from the policy; False takes its mode.
            save_trajs_to: Folder in which finished episodes are saved instead.

        Returns:
            The final hidden state, and the arguments of `policy_metrics`: returns and special metrics of the
            episodes that finished in this process.
        """
        section = "train" if envs is self.train_envs else "val" if envs is self.val_envs else "test"
        self._begin_rollout(section, timesteps)
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
            key = self._stream_key if self.slot is None else self.shared.next_round()
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

    def _begin_rollout(self, section: str, timesteps: int | None) -> None:
        """Copies the current weights into the acting copy, if there is one, and notifies callbacks."""
        if self._acting_copy is not None:
            self._acting_copy.load_state_dict(fsdp.unsharded(self.policy.state_dict()))
        total = None if timesteps is None else timesteps * self.parallel_actors * self.processes.count
        self._notify("on_rollout_start", section, total)

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
        env_steps, by_name = self.shared.env_steps(self)
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
        collectors = collector_states(self)
        self._count_wall_seconds()
        contents = training_state(self, collectors)
        if contents is not None:
            self.checkpointer.save(self.epoch, contents)
        self.processes.barrier()
        self.run_state.saved_epoch = self.epoch
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
            restore_training_state(self, load_training_state(path, self.DEVICE))
        else:
            load_unsharded_policy(self.policy, read_saved_policy(path, self.DEVICE), path)
            self.policy.on_checkpoint_loaded(is_resume=False)

    def write_latest_policy(self) -> None:
        """Writes `ckpts/latest/policy.pt`, in the main process only."""
        weights = fsdp.unsharded(self.policy.state_dict())
        if self.processes.is_main:
            self.checkpointer.save_latest(weights)

    def read_latest_policy(self) -> None:
        """Loads `ckpts/latest/policy.pt`; warns if there is none yet."""
        try:
            weights = read_saved_policy(self.checkpointer.latest_policy, self.DEVICE)
        except FileNotFoundError as error:
            amago_warning(f"continuing with the current weights: {error}")
            return
        load_unsharded_policy(self.policy, weights, self.checkpointer.latest_policy)
        self.policy.on_checkpoint_loaded(is_resume=False)

    def delete_buffer_from_disk(self) -> None:
        """Deletes the dataset's trajectories, except protected ones."""
        assert self.dataset is not None
        if self.processes.is_main:
            self.dataset.delete()
        self.processes.barrier()

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
        """Current epoch, counted from 0. A subclass with its own `learn` sets it."""
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
        """Number of optimizer steps so far. A subclass with its own `train_step` sets it."""
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
    def slot(self) -> CollectorSlot | None:
        """Number and step counts of this collector; None in other processes."""
        return self.shared.slot

    @property
    def policy_epoch(self) -> int | None:
        """Epoch of the latest policy that this process has written or read; None if there is none."""
        return self.shared.policy_epoch

    @property
    def interrupted(self) -> bool:
        """Whether a signal is pending until the running step ends. A callback that waits must return then."""
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

    def _end_collection(self) -> None:
        """Lets the dataset delete old data after every process has written its trajectories."""
        assert self.dataset is not None
        with self.times.measure("waiting"):
            self.processes.barrier()
        metrics = dict(self.dataset.on_end_of_collection(self) or {})
        if self.collector is not None:
            refused = self.processes.gather(self.collector.refused_segments)
            metrics["Trajectories Refused (not finite)"] = float(sum(refused))
        if metrics:
            self.log(metrics, "dataset")
        with self.times.measure("waiting"):
            self.processes.barrier()

    def _wait_until_ready(self) -> bool:
        """Whether the dataset is ready; waits for other processes' data if this run never collects."""
        assert self.dataset is not None
        began = time.monotonic()
        self.times.lap("other")
        while not self.processes.broadcast_from_main(self.dataset.ready_for_training):
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
            self.shared.count_collected(self)
        return True

    def _wait_for_learner(self) -> None:
        """Waits while the dataset is overfull: only the learner deletes, and without one the disk would fill up.

        A learner that goes on ends the wait too, since its dataset may be larger than this one says.
        """
        assert self.dataset is not None
        began = time.monotonic()
        progress = read_policy_progress(self.run_dir)
        self.times.lap("other")
        while self.processes.broadcast_from_main(
            self.dataset.is_overfull and read_policy_progress(self.run_dir) == progress
        ):
            self._end_if_stopped()
            self._notify("on_waiting_for_learner", time.monotonic() - began)
            time.sleep(_POLL_SECONDS)
        self.times.lap("waiting")

    def _count_wall_seconds(self) -> None:
        """Adds the time since the last call, or since the start of `learn()`."""
        now = time.perf_counter()
        if self._wall_mark:
            self.counters.wall_seconds += now - self._wall_mark
            self._wall_mark = now

    def _overlaps(self, epoch: int) -> bool:
        """Whether what is left of an epoch collects during its updates, not before them."""
        part = self.run_state.in_epoch
        assert self.dataset is not None
        return (
            self.overlap_collection
            and epoch >= max(self.start_collecting_at_epoch, self.start_learning_at_epoch)
            and not part.collected
            and part.timesteps < self.train_timesteps_per_epoch
            and part.batches < self.train_batches_per_epoch
            and self.processes.broadcast_from_main(self.dataset.ready_for_training)
        )

    def _learn_and_collect(self, epoch: int) -> None:
        """As `collect_new_training_data` and `_learn_epoch`, but with the steps between the updates."""
        assert self.collector is not None
        self._reset_train_envs_if_due()
        timesteps = self.train_timesteps_per_epoch - self.run_state.in_epoch.timesteps
        self._begin_rollout("train", timesteps)
        collect = functools.partial(
            self.collector.collect_between,
            epoch=self._stream_key,
            timesteps=timesteps,
            sample=self.sample_actions_train,
            progress=self._progress("train"),
            stop=self._has_signal,
        )
        with contextlib.suppress(StopRequested):
            self._learn_epoch(epoch, collect)
        self._count_env_steps()
        self._end_if_stopped()
        self._report("train", *histories_from_stats(self.collector.stats))

    def _learn_epoch(
        self, epoch: int, collect: Callable[[Iterator[Batch], int], Generator[Batch]] | None = None
    ) -> None:
        """Trains on `train_batches_per_epoch` batches, less those of this epoch before a stop.

        Args:
            epoch: Epoch of the batches.
            collect: Yields the batches and collects between them; it is told their number.
        """
        done = self.run_state.in_epoch.batches
        self._notify("on_learning_start", self.train_batches_per_epoch - done)
        self.policy.train()
        self.times.lap("other")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.streams.learning(self._stream_key))
            if collect is None:
                batches: Iterator[Batch] = itertools.islice(self.train_dloader.epoch(epoch), done, None)
            else:
                loaded = self.train_dloader.epoch(epoch, only_files_of_now=True)
                self.processes.barrier()  # until all have listed the files
                collecting = collect(
                    itertools.islice(loaded, done, None), self.train_batches_per_epoch - done
                )
                batches = stack.enter_context(contextlib.closing(collecting))
            for batch in batches:
                self.times.lap("loading")
                log_step = self.run_state.batches_seen % self.log_interval == 0
                updates_before = self.learner.gradient_steps
                metrics = self.train_step(batch, log_step)
                self.times.lap("update")
                self.run_state.batches_seen += 1
                if log_step:
                    self.log(self.processes.mean_metrics(metrics), "train-update")
                self.run_state.in_epoch.batches += 1
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
            if not metrics:
                warn_of_no_validation(self)
        return metrics

    def _count_env_steps(self) -> None:
        """Adds up the collected timesteps of all processes by environment name."""
        assert self.collector is not None
        totals = dict(self.run_state.env_steps_by_name)
        for steps_by_name in self.processes.gather(self.collector.steps_by_env_name):
            add_counts(totals, steps_by_name)
        self.counters.env_steps_by_name = totals

    def _progress(self, section: str) -> Callable[[int], None]:
        """The function that a rollout calls after every step: counts timesteps and notifies callbacks."""
        listeners = [callback.on_rollout_step for callback in self._all_callbacks()]
        processes = self.processes.count

        def progress(env_steps: int) -> None:
            env_steps *= processes
            if section == "train":
                self.counters.env_steps += env_steps
                self.run_state.in_epoch.timesteps += 1
            for listener in listeners:
                listener(self, section, env_steps)

        return progress

    @property
    def _stream_key(self) -> int:
        """Key of the random streams of collection and updates: the epoch, and how often it was stopped."""
        return self.epoch + (self.run_state.in_epoch.stops << 40)

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
