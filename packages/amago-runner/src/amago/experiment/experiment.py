"""Experiment: a training run, from its arguments to its checkpoints.

Experiment is composed of objects that can be used without it: `Collector`, `Learner`, `Evaluator`, `Checkpointer`,
`MetricLogger` and `BatchLoader`. It creates them in its `init_*` methods and calls them in `learn`. Subclasses may
override any public method.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
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
from amago.experiment.callbacks import Callback, Counters, ProgressPrinter
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
from amago.experiment.random_streams import RandomStreams
from amago.experiment.rollout import ActingPolicy
from amago.experiment.run_json import write_config_text, write_run
from amago.experiment.saved_policies import load_saved_policy, read_saved_policy
from amago.experiment.schedule import is_due
from amago.loading import BatchLoader, DiskTrajDataset
from amago.tracking import JsonlTracker, MetricLogger, TensorboardTracker, WandbTracker
from amago.utils import amago_warning, get_constant_schedule_with_warmup, gin_as_wandb_config

if TYPE_CHECKING:
    from accelerate import Accelerator

    from amago.envs import AMAGOEnv

DEFAULT_BUFFER_SIZE = 20_000
_POLL_SECONDS = 1.0


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
        started: Whether `start()` has been called.
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
        self._printer = ProgressPrinter()
        self._closing = contextlib.ExitStack()
        self._batches_seen = 0
        self._env_steps_before_resume: dict[str, int] = {}
        self._wandb_run_id: str | None = None
        self._whole_policy: BaseAgent | None = None  # acts instead of a sharded policy

    def start(self) -> None:
        """Creates dataset, loader, environments, agent, optimizer, checkpoints and loggers.

        Raises:
            ValueError, TypeError: an argument is invalid.
            RuntimeError: the experiment was already started.
            FileNotFoundError: `resume` is set and there is no checkpoint.
        """
        if self.started:
            raise RuntimeError(f"the experiment {self.run_name!r} is already started")
        self.validate()
        if not self.processes.is_main:
            self.has_dset_edit_rights = False
        resumed = Checkpointer(self.run_dir, self.run_name).newest_epoch() if self.resume else None
        seed = self.processes.share(self._choose_seed(resumed))
        self.streams = RandomStreams(seed, self.processes.rank, self.DEVICE)
        try:
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
                self.load_checkpoint(resumed)
            self.init_logger()
        except BaseException:
            self.close()
            self.started = False
            raise
        if self.processes.is_main and self._saves_policy():
            write_run(self, seed=self.streams.seed, env=self)
            write_config_text(self)
        self._notify("on_start")

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

    def init_model(self) -> None:
        """Creates the agent, its optimizer and the learning-rate schedule."""
        with self.streams.initializing():
            agent = self.agent_type(
                obs_space=self.observation_space,
                rl2_space=self.rl2_space,
                action_space=self.action_space,
                max_seq_len=self.max_seq_len,
                tstep_encoder_type=self.tstep_encoder_type,
                traj_encoder_type=self.traj_encoder_type,
            )
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
            self.collector = Collector(acting, self.train_envs, recorder, self.streams)
            self._closing.callback(self.collector.close)

    def init_optimizer(self, policy: BaseAgent) -> Optimizer:
        """Creates the optimizer: AdamW over the trainable parameters of `policy`."""
        return make_adamw(policy.trainable_params, self.learning_rate, self.l2_coeff, self.DEVICE)

    def init_checkpoints(self) -> None:
        """Creates the checkpointer of the run's folder."""
        self.checkpointer = Checkpointer(self.run_dir, self.run_name, self.keep_checkpoints)
        if self.processes.is_main and self._saves_policy():
            self.checkpointer.remove_unfinished()

    def init_logger(self) -> None:
        """Opens `metrics.jsonl` and the loggers that are asked for, in the main process only."""
        if not self.processes.is_main:
            return
        self.metric_logger = MetricLogger([JsonlTracker(self.run_dir / "metrics.jsonl")])
        self._closing.callback(self.metric_logger.close)
        if self.log_to_tensorboard:
            self.metric_logger.trackers.append(TensorboardTracker(self.run_dir / "tensorboard"))
        if self.log_to_wandb:
            self.metric_logger.trackers.append(
                WandbTracker(
                    project=self.wandb_project,
                    entity=self.wandb_entity,
                    group=self.wandb_group_name,
                    name=self.run_name,
                    config=gin_as_wandb_config(),
                    log_dir=self.run_dir / "wandb_logs",
                    run_id=self._wandb_run_id,
                )
            )

    def learn(self) -> None:
        """Runs the remaining epochs.

        Each epoch loads the latest policy, evaluates, collects, lets the dataset delete old data, updates and
        saves; each part as its interval or starting epoch says. A checkpoint is also saved after the last epoch.

        Raises:
            RuntimeError: `start()` was not called, or the dataset was not ready within `data_timeout` seconds.
            NonFiniteUpdateError: too many consecutive updates were not finite.
        """
        self._require_started("learn()")
        while self.epoch < self.epochs:
            epoch = self.epoch
            self._notify("on_epoch_start", epoch)
            if self.always_load_latest:
                self.read_latest_policy()
            if is_due(epoch, self.val_interval):
                self.evaluate_val()
            if epoch >= self.start_collecting_at_epoch and self.train_timesteps_per_epoch > 0:
                self.collect_new_training_data()
            self._end_collection()
            if epoch >= self.start_learning_at_epoch and self._wait_until_ready():
                self._learn_epoch(epoch)
            is_last = epoch + 1 >= self.epochs
            if is_due(epoch, self.ckpt_interval) or (is_last and self.ckpt_interval is not None):
                self.save_checkpoint()
            if self.always_save_latest:
                self.write_latest_policy()
            self._notify("on_epoch_end", epoch)
            self.counters.epoch += 1
        self._notify("on_end")

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
            self.train_timesteps_per_epoch,
            save_on_done=True,
            sample=self.sample_actions_train,
        )
        self._report("train", returns, specials)

    def evaluate_val(self) -> dict[str, float]:
        """Evaluates in the validation environments and logs under `val/`; returns the metrics."""
        if self._only_learns and self.val_envs.num_envs < self.parallel_actors:
            self.val_envs.close()
            self.val_envs = self._make_eval_envs(self.make_val_env)
        _, (returns, specials) = self.interact(
            self.val_envs, self.val_timesteps_per_epoch, sample=self.sample_actions_val
        )
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
        metrics = self._report("test", returns, specials)
        if not metrics:
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
        }
        if section == "train":
            assert self.collector is not None
            stats = self.collector.collect(self.epoch, **options)
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
        """Values of the x axes that metrics are logged over."""
        return {
            "total_frames": self.counters.env_steps,
            **{f"total_frames-{name}": steps for name, steps in self.counters.env_steps_by_name.items()},
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
        policy, optimizer = fsdp.whole((self.policy.state_dict(), self.optimizer.state_dict()))
        if self.processes.is_main:
            state = {
                "seed": self.streams.seed,
                "counters": asdict(self.counters),
                "batches_seen": self._batches_seen,
                "dataset": self.dataset.state_dict(),
                "processes": all_processes,
                "wandb_run_id": self.metric_logger.wandb_run_id,
            }
            contents = TrainingState(policy, optimizer, self.lr_schedule.state_dict(), state)
            self.checkpointer.save(self.epoch, contents)
        self.processes.wait()
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
        self.processes.wait()
        metrics = self.dataset.on_end_of_collection(self)
        if metrics:
            self.log(metrics, "dataset")
        self.processes.wait()

    def _wait_until_ready(self) -> bool:
        """Whether the dataset is ready; waits for other processes' data if this run never collects."""
        assert self.dataset is not None
        began = time.monotonic()
        while not self.processes.share(self.dataset.ready_for_training):
            if self.collects:
                return False
            waited = time.monotonic() - began
            if waited >= self.data_timeout:
                raise RuntimeError(
                    f"the dataset is not ready after {waited:.0f} s ({self.dataset.get_description()}), and "
                    "this run collects nothing: add data, start a collector, or lower start_collecting_at_epoch"
                )
            self._notify("on_waiting_for_data", waited)
            time.sleep(min(_POLL_SECONDS, max(0.0, self.data_timeout - waited)))
        return True

    def _learn_epoch(self, epoch: int) -> None:
        """Trains on `train_batches_per_epoch` batches."""
        self._notify("on_learning_start", self.train_batches_per_epoch)
        self.policy.train()
        with self.streams.learning(epoch):
            for batch in self.train_dloader.epoch(epoch):
                log_step = self._batches_seen % self.log_interval == 0
                updates_before = self.learner.gradient_steps
                metrics = self.train_step(batch, log_step)
                self._batches_seen += 1
                if log_step:
                    self.log(self.processes.mean_metrics(metrics), "train-update")
                self._notify("on_batch", self.learner.gradient_steps > updates_before)
            self.learner.finish()
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
            for listener in listeners:
                listener(self, section, env_steps)

        return progress

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
        """Restores a training state; training continues with the following epoch."""
        assert self.dataset is not None
        state = saved.state
        self._load_policy(saved.policy, "the training state")
        self.optimizer.load_state_dict(fsdp.shard_optimizer_state(saved.optimizer, self.optimizer))
        self.lr_schedule.load_state_dict(saved.lr_schedule)
        self.counters = Counters(**state["counters"])
        self.counters.epoch += 1
        self.learner.gradient_steps = self.counters.gradient_steps
        self.learner.skipped_updates = self.counters.skipped_updates
        self._env_steps_before_resume = dict(self.counters.env_steps_by_name)
        self._batches_seen = state["batches_seen"]
        self._wandb_run_id = state.get("wandb_run_id")
        if self.has_dset_edit_rights:
            # In the other modes, other processes may write to the buffer.
            move_later_files_aside = self.env_mode == "sync" and self.collects
            self.dataset.load_state_dict(state["dataset"], move_later_files_aside=move_later_files_aside)
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
        return [*([self._printer] if prints else []), *self.callbacks]

    def _require_started(self, what: str) -> None:
        if not self.started:
            raise RuntimeError(f"call start() before {what}")
