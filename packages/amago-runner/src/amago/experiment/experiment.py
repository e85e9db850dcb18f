"""Experiment: the one entry point of a training run.

It wires parts that each stand alone: rollouts (`rollout.py`), updates (`learner.py`), evaluation
(`evaluate.py`), checkpoints (`checkpoint.py`), schedules (`schedule.py`), random streams (`randomness.py`) and
the description of the run (`run_file.py`). Its arguments are the fields of `ExperimentArguments`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gin
import torch
from torch.optim import Optimizer

from amago.agent import BaseAgent, Batch
from amago.distributed.accelerate import Processes, make_accelerator
from amago.envs.metrics import EpisodeStats, ReturnHistory, SpecialMetricHistory
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import VectorEnv
from amago.experiment.building import (
    build_dataset,
    build_environments,
    build_recorder,
    build_trackers,
    spaces_of,
    spaces_without_vector_env,
)
from amago.experiment.callbacks import Counters
from amago.experiment.checkpoint import (
    CheckpointFolder,
    TrainingState,
    load_policy,
    load_training_state,
)
from amago.experiment.config import ExperimentArguments
from amago.experiment.evaluate import evaluate
from amago.experiment.learner import Learner, make_adamw
from amago.experiment.randomness import RandomStreams
from amago.experiment.rollout import Rollout
from amago.experiment.run_file import write_config_text, write_run
from amago.experiment.schedule import is_due
from amago.loading.batches import BatchLoader
from amago.tracking import MultiTracker, WandbTracker
from amago.utils import AmagoWarning, amago_warning, count_params

if TYPE_CHECKING:
    from accelerate import Accelerator

    from amago.envs import AMAGOEnv

_POLL_SECONDS = 1.0


@gin.configurable(module="amago.experiment")
class Experiment(ExperimentArguments):
    """Trains an agent: collects with it, updates it on what was collected, evaluates it, epoch by epoch.

    The constructor only checks its arguments, which remain attributes that can be edited until `start()`
    builds everything. `learn()` then runs the epochs. See `ExperimentArguments` for the arguments.

    Attributes:
        counters: epochs, environment steps and gradient steps so far.
        processes: the processes that train together.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counters = Counters()
        self.started = False
        self._train_rollout: Rollout | None = None
        self._val_envs: VectorEnv | None = None
        self._recorder: TrajectoryRecorder | None = None
        self._loader: BatchLoader | None = None
        self._tracker = MultiTracker([])
        self._reset_due = False
        self._batches_seen = 0
        self._steps_before: dict[str, int] = {}

    # -- building

    def start(self) -> None:
        """Checks the arguments and builds environments, agent, optimizer, dataset and trackers.

        Raises:
            ValueError, TypeError: an argument, as edited since construction, is not valid.
            RuntimeError: the experiment is started already.
            FileNotFoundError: `resume` is set and there is no checkpoint.
        """
        if self.started:
            raise RuntimeError(f"the experiment {self.run_name!r} is started already")
        self.validate()
        self.processes = Processes(make_accelerator())
        if not self.processes.is_main:
            self.has_dset_edit_rights = False
        self._checkpoints = CheckpointFolder(self.run_dir, self.run_name)
        resumed = self._find_training_state() if self.resume else None
        seed = self._choose_seed(resumed)
        self._streams = RandomStreams(self.processes.share(seed), self.processes.rank, self.DEVICE)
        self.init_dsets()
        self.init_envs()
        self.init_model()
        if resumed is not None:
            self._restore(resumed, is_resume=True)
        self.init_logger(None if resumed is None else resumed.state.get("wandb_run_id"))
        self.started = True
        if self.processes.is_main and self._describes_run():
            write_run(self, seed=self._streams.seed, specs=self._spaces.as_json())
            write_config_text(self)
        self._say(self._summary())
        self._notify("on_start")

    def init_dsets(self) -> None:
        """Makes the dataset if none was given, and configures it."""
        self.dataset = build_dataset(self)
        self.dataset.configure_from_experiment(self)

    def init_envs(self) -> None:
        """Makes the training environments, if this process ever collects."""
        if not self._ever_collects():
            self._spaces = spaces_without_vector_env(self)
            return
        assert self.dataset is not None
        train_envs = build_environments(self, self.make_train_env, self._streams, training=True)
        self._recorder = build_recorder(self, self._streams, self.dataset.save_new_trajs_to)
        self._spaces = spaces_of(train_envs)
        self._train_envs = train_envs

    def init_model(self) -> None:
        """Builds the agent, its optimizer and the parts that use them."""
        with self._streams.initialising():
            agent = self.agent_type(
                obs_space=self._spaces.observation,
                rl2_space=self._spaces.rl2,
                action_space=self._spaces.action,
                max_seq_len=self.max_seq_len,
                tstep_encoder_type=self.tstep_encoder_type,
                traj_encoder_type=self.traj_encoder_type,
            )
        self._agent = agent.to(self.DEVICE)
        self._learner = Learner(
            self._agent,
            self.init_optimizer(self._agent),
            self.processes,
            lr_warmup_steps=self.lr_warmup_steps,
            grad_clip=self.grad_clip,
            batches_per_update=self.batches_per_update,
            autocast=self._autocast,
            compile_loss=self.DEVICE.type == "cuda" if self.compile == "auto" else bool(self.compile),
            max_nonfinite=self.max_nonfinite_updates,
            bad_batch_dir=self.run_dir / "nonfinite",
        )
        if self._ever_collects():
            self._train_rollout = Rollout(
                self._agent,
                self._train_envs,
                device=self.DEVICE,
                autocast=self._autocast,
                recorder=self._recorder,
            )

    def init_optimizer(self, policy: BaseAgent) -> Optimizer:
        """AdamW over the trainable parameters; override for another optimizer."""
        return make_adamw(policy.trainable_params, self.learning_rate, self.l2_coeff, self.DEVICE)

    def init_logger(self, wandb_run_id: str | None = None) -> None:
        """Opens metrics.jsonl and, if asked for, wandb; in the main process only."""
        if self.processes.is_main:
            self._tracker = MultiTracker(build_trackers(self, wandb_run_id))

    # -- properties

    @property
    def DEVICE(self) -> torch.device:
        """Where the agent is."""
        return self.processes.device

    @property
    def accelerator(self) -> Accelerator:
        """The accelerate object that places the processes."""
        return self.processes.accelerator

    @property
    def policy(self) -> BaseAgent:
        """The agent, without any wrapper around it."""
        return self._agent

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._learner.optimizer

    @property
    def epoch(self) -> int:
        """The epoch in progress, from 0."""
        return self.counters.epoch

    @property
    def _autocast(self) -> bool:
        return self.mixed_precision == "bf16"

    def _describes_run(self) -> bool:
        """Whether this process writes run.json: collectors leave the learner's alone."""
        return self.always_save_latest or self.ckpt_interval is not None

    def _ever_collects(self) -> bool:
        first = max(self.start_collecting_at_epoch, 0)
        return self.train_timesteps_per_epoch > 0 and first < self.epochs

    # -- the loop

    def learn(self) -> None:
        """Runs the epochs that are left.

        In each: read the latest policy, evaluate, collect, let the dataset clean up, update, save; each part as
        its interval or starting epoch says. A last checkpoint follows the last epoch.

        Raises:
            RuntimeError: `start()` was not called, or the dataset stayed empty for `data_timeout` seconds.
            NonFiniteUpdateError: too many updates in a row were not finite.
        """
        self._require_started("learn()")
        while self.counters.epoch < self.epochs:
            epoch = self.counters.epoch
            self._notify("on_epoch_start", epoch)
            began = time.perf_counter()
            if self.always_load_latest:
                self.read_latest_policy()
            if is_due(epoch, self.val_interval):
                self.evaluate_val()
            if epoch >= self.start_collecting_at_epoch and self.train_timesteps_per_epoch > 0:
                self.collect_new_training_data()
            self._end_collection()
            if epoch >= self.start_learning_at_epoch and self._wait_until_ready():
                self._learn_epoch(epoch)
            last = epoch + 1 >= self.epochs
            if is_due(epoch, self.ckpt_interval) or (last and self.ckpt_interval is not None):
                self.save_checkpoint()
            if self.always_save_latest:
                self.write_latest_policy()
            self._say(f"epoch {epoch}: {time.perf_counter() - began:.1f} s, {self._progress_text()}")
            self._notify("on_epoch_end", epoch)
            self.counters.epoch += 1
        self._notify("on_end")

    def collect_new_training_data(self) -> None:
        """Runs the training environments for `train_timesteps_per_epoch` steps per actor."""
        self._require_started("collect_new_training_data()")
        rollout, epoch = self._train_rollout, self.counters.epoch
        if rollout is None:
            raise RuntimeError("this experiment was started as one that never collects")
        forced = epoch > 0 and is_due(epoch, self.force_reset_train_envs_every)
        if not rollout.started or self._reset_due or forced:
            rollout.reset(seed=self._streams.env_seed(epoch))
            self._reset_due = False
        rollout.stats = EpisodeStats()
        steps = self.train_timesteps_per_epoch
        self._notify("on_rollout_start", "train", steps * self.parallel_actors * self.processes.count)
        with self._streams.acting(epoch):
            rollout.run(timesteps=steps, sample=self.sample_actions_train, progress=self._progress("train"))
        if self._recorder is not None:
            self._recorder.flush()
        self._count_steps_by_name(rollout)
        self._report("train", rollout.stats)

    def _end_collection(self) -> None:
        """Lets the dataset clean up, once every process has written what it collected."""
        assert self.dataset is not None
        self.processes.wait()
        metrics = self.dataset.on_end_of_collection(self)
        if metrics:
            self.log(metrics, "dataset")
        self.processes.wait()

    def _wait_until_ready(self) -> bool:
        """Whether the dataset can be drawn from; waits if nobody in this process will ever fill it."""
        assert self.dataset is not None
        began, told = time.monotonic(), 0.0
        while not self.processes.share(self.dataset.ready_for_training):
            if self._ever_collects() and math.isfinite(self.start_collecting_at_epoch):
                return False
            waited = time.monotonic() - began
            if waited >= self.data_timeout:
                raise RuntimeError(
                    f"nothing to learn from after {waited:.0f} s ({self.dataset.get_description()}), and this "
                    "process collects nothing: put data there, start a collector, or lower "
                    "start_collecting_at_epoch"
                )
            if waited >= told:
                self._say(f"waiting for data: {self.dataset.get_description()}")
                told = 2 * waited + 10
            self._notify("on_waiting_for_data", waited)
            time.sleep(min(_POLL_SECONDS, max(0.0, self.data_timeout - waited)))
        return True

    def _learn_epoch(self, epoch: int) -> None:
        """`train_batches_per_epoch` batches through the learner."""
        assert self.dataset is not None
        if self._loader is None:
            self._loader = BatchLoader(
                self.dataset,
                batch_size=self.batch_size,
                batches_per_epoch=self.train_batches_per_epoch,
                workers=self.dloader_workers,
                device=self.DEVICE,
                seed=self._streams.seed,
                rank=self.processes.rank,
            )
        self._notify("on_learning_start", self.train_batches_per_epoch)
        self._agent.train()
        with self._streams.learning(epoch):
            for batch in self._loader.epoch(epoch):
                log_step = self._batches_seen % self.log_interval == 0
                updated, metrics = self._learner.train_batch(batch, log_step)
                self._batches_seen += 1
                self._read_learner_counters()
                if log_step:
                    self.log(metrics, "train-update")
                self._notify("on_batch", updated)
            self._learner.finish()
        self._read_learner_counters()
        self._notify("on_learning_end")

    def train_step(self, batch: Batch, log_step: bool) -> dict[str, Any]:
        """Trains on one batch outside of `learn`; steps the optimizer every `batches_per_update` calls.

        Returns:
            The update metrics if `log_step`, else nothing.
        """
        self._require_started("train_step()")
        self._agent.train()
        _, metrics = self._learner.train_batch(batch.to(self.DEVICE), log_step)
        self._read_learner_counters()
        return dict(metrics)

    # -- evaluation

    def evaluate_val(self) -> dict[str, float]:
        """Evaluates for `val_timesteps_per_epoch` steps per actor and logs under `val/`; returns the metrics."""
        self._require_started("evaluate_val()")
        if self._val_envs is None:
            self._val_envs = build_environments(self, self.make_val_env, self._streams, training=False)
        steps = self.val_timesteps_per_epoch
        stats = self._evaluate("val", self._val_envs, self.counters.epoch, timesteps=steps)
        return self._report("val", stats)

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
            make_test_env: makes one environment, or a list with one function per actor.
            timesteps: most steps per actor. None: as many as `episodes` need; without `episodes`,
                `val_timesteps_per_epoch`.
            render: render the environments after every step.
            save_trajs_to: folder for the whole episodes that finish, in the format of `save_trajs_as`.
            episodes: stop once so many episodes are counted. Each actor contributes the same number, since the
                first ones to finish would tend to be the short ones.

        Returns:
            The metrics by name, without those that no finished episode backs.
        """
        self._require_started("evaluate_test()")
        if timesteps is None and episodes is None:
            timesteps = self.val_timesteps_per_epoch
        envs = build_environments(self, make_test_env, self._streams, training=False)
        recorder = None
        if save_trajs_to is not None:
            recorder = TrajectoryRecorder(
                envs.num_envs,
                save_to=Path(save_trajs_to).expanduser(),
                save_as=self.save_trajs_as,
                save_len=math.inf,
                max_seq_len=self.max_seq_len,
                stagger=False,
                rng=self._streams.recorder(),
            )
        try:
            stats = self._evaluate(
                "test",
                envs,
                self._streams.next_test(),
                timesteps=timesteps,
                episodes=None if episodes is None else math.ceil(episodes / self.processes.count),
                render=render,
                recorder=recorder,
            )
        finally:
            if recorder is not None:
                recorder.close()
            envs.close()
        return self._report("test", stats)

    def interact(
        self,
        envs: VectorEnv,
        timesteps: int | None,
        hidden_state: Any = None,
        render: bool = False,
        save_on_done: bool = False,
        episodes: int | None = None,
        sample: bool = True,
    ) -> tuple[Any, EpisodeStats]:
        """Acts in environments of the caller's, from a reset.

        Args:
            envs: a vector environment, see `amago.envs.vector.make_vector_env`.
            timesteps: most steps per actor; None for no limit.
            hidden_state: to begin with; None for a blank one.
            render: render after every step.
            save_on_done: write the episodes that finish to where the dataset keeps new trajectories.
            episodes: episodes to count, evenly over the actors; None for no limit.
            sample: draw actions from the policy; False takes its mode.

        Returns:
            The hidden state after the last step, and the finished episodes.
        """
        self._require_started("interact()")
        assert self.dataset is not None
        recorder = (
            build_recorder(self, self._streams, self.dataset.save_new_trajs_to) if save_on_done else None
        )
        rollout = Rollout(self._agent, envs, device=self.DEVICE, autocast=self._autocast, recorder=recorder)
        rollout.reset()
        if hidden_state is not None:
            rollout.hidden_state = hidden_state
        with self._streams.evaluating(self._streams.next_test()):
            rollout.run(timesteps=timesteps, episodes=episodes, sample=sample, render=render)
        if recorder is not None:
            recorder.close()
        return rollout.hidden_state, rollout.stats

    def _evaluate(
        self, section: str, envs: VectorEnv, index: int, *, timesteps: int | None, **options: Any
    ) -> EpisodeStats:
        total = None if timesteps is None else timesteps * self.parallel_actors * self.processes.count
        self._notify("on_rollout_start", section, total)
        with self._streams.evaluating(index):
            return evaluate(
                self._agent,
                envs,
                device=self.DEVICE,
                autocast=self._autocast,
                seed=self._streams.eval_seed(index),
                timesteps=timesteps,
                sample=self.sample_actions_val,
                progress=self._progress(section),
                **options,
            )

    # -- checkpoints

    def save_checkpoint(self) -> None:
        """Writes the training state and the weights of this epoch, so that `resume` can go on after it.

        Unfinished training episodes are written as they are, and environments are reset before the next
        collection: a resumed run, which has to reset them, then repeats what this one does.
        """
        self._require_started("save_checkpoint()")
        assert self.dataset is not None
        rollout, epoch = self._train_rollout, self.counters.epoch
        if self._recorder is not None and rollout is not None and rollout.started:
            self._recorder.cut()
            self._recorder.flush()
        self._reset_due = True
        own = {
            "exploration": [] if rollout is None else rollout.vector_env.exploration_state(),
            "recorder": None if self._recorder is None else self._recorder.state_dict(),
        }
        every_process = self.processes.gather(own)
        if self.processes.is_main:
            state = {
                "seed": self._streams.seed,
                "counters": self.counters.as_dict(),
                "batches_seen": self._batches_seen,
                "dataset": self.dataset.state_dict(),
                "processes": every_process,
                "wandb_run_id": self._wandb_run_id(),
            }
            policy, optimizer = self._agent.state_dict(), self.optimizer.state_dict()
            self._checkpoints.save(epoch, TrainingState(policy, optimizer, state))
            if self.keep_checkpoints is not None:
                self._checkpoints.prune(self.keep_checkpoints)
        self.processes.wait()
        self._notify("on_checkpoint", epoch)

    def load_checkpoint(self, epoch: int, resume_training_state: bool = True) -> None:
        """Loads what was saved after `epoch`.

        Args:
            epoch: of the checkpoint.
            resume_training_state: go on with the epoch after it, optimizer, counters and all; False loads only
                the weights.
        """
        if resume_training_state:
            self.load_checkpoint_from_path(self._checkpoints.training_state(epoch))
        else:
            path = self._checkpoints.policy_weights(epoch)
            self.load_checkpoint_from_path(path, is_accelerate_state=False)

    def load_checkpoint_from_path(self, path: str | Path, is_accelerate_state: bool = True) -> None:
        """Loads a training state or weights from anywhere.

        Args:
            path: a folder of `training_states/`, or a file of weights.
            is_accelerate_state: whether it is a training state.

        Raises:
            FileNotFoundError, ValueError: there is none, or of another format.
        """
        self._require_started("load_checkpoint_from_path()")
        path = Path(path).expanduser()
        if is_accelerate_state:
            self._restore(load_training_state(path, self.DEVICE), is_resume=True)
        else:
            self._agent.load_state_dict(load_policy(path, self.DEVICE))
            self._agent.on_checkpoint_loaded(is_resume=False)

    def write_latest_policy(self) -> None:
        """Replaces `ckpts/latest/policy.pt`, in the main process only."""
        self._require_started("write_latest_policy()")
        if self.processes.is_main:
            self._checkpoints.save_latest(self._agent.state_dict())

    def read_latest_policy(self) -> None:
        """Loads `ckpts/latest/policy.pt`; warns and keeps the weights if there is none yet."""
        self._require_started("read_latest_policy()")
        try:
            weights = load_policy(self._checkpoints.latest_policy, self.DEVICE)
        except FileNotFoundError as error:
            amago_warning(f"going on with the weights at hand: {error}")
            return
        self._agent.load_state_dict(weights)
        self._agent.on_checkpoint_loaded(is_resume=False)

    def delete_buffer_from_disk(self) -> None:
        """Deletes the dataset's stored trajectories, protected ones excepted."""
        self._require_started("delete_buffer_from_disk()")
        assert self.dataset is not None
        if self.processes.is_main:
            self.dataset.delete()
        self.processes.wait()

    def _find_training_state(self) -> TrainingState:
        """The newest checkpoint of the run."""
        epochs = self._checkpoints.epochs()
        if not epochs:
            raise FileNotFoundError(
                f"resume is set, but {self.run_dir} has no training state: start the run without resume"
            )
        return load_training_state(self._checkpoints.training_state(epochs[-1]), self.DEVICE)

    def _choose_seed(self, resumed: TrainingState | None) -> int:
        if resumed is None:
            return RandomStreams(self.seed, 0, self.DEVICE).seed
        saved: int = resumed.state["seed"]
        if self.seed is not None and self.seed != saved:
            raise ValueError(
                f"seed is {self.seed}, but the run to resume has {saved}: leave it out or make them agree"
            )
        return saved

    def _restore(self, saved: TrainingState, *, is_resume: bool) -> None:
        """Goes back to a checkpoint, and on to the epoch after it."""
        assert self.dataset is not None
        state = saved.state
        self._agent.load_state_dict(saved.policy)
        self.optimizer.load_state_dict(saved.optimizer)
        self.counters = Counters(**state["counters"])
        self.counters.epoch += 1
        self._steps_before = dict(self.counters.env_steps_by_name)
        self._batches_seen = state["batches_seen"]
        self._learner.gradient_steps = self.counters.gradient_steps
        self._learner.skipped_updates = self.counters.skipped_updates
        if self.has_dset_edit_rights:
            aside = self.env_mode == "sync" and self._ever_collects()
            self.dataset.load_state_dict(state["dataset"], move_later_files_aside=aside)
        self._restore_process(state["processes"])
        self._reset_due = True
        self._agent.on_checkpoint_loaded(is_resume=is_resume)

    def _restore_process(self, every_process: list[dict[str, Any]]) -> None:
        """Exploration and recorder of this process, if the checkpoint has as many processes."""
        if len(every_process) != self.processes.count:
            amago_warning(
                f"the checkpoint is of {len(every_process)} processes, this run has {self.processes.count}: "
                "exploration starts anew"
            )
            return
        own = every_process[self.processes.rank]
        if self._train_rollout is not None and own["exploration"]:
            self._train_rollout.vector_env.load_exploration_state(own["exploration"])
        if self._recorder is not None and own["recorder"] is not None:
            self._recorder.load_state_dict(own["recorder"])

    # -- metrics

    def log(self, metrics_dict: Mapping[str, Any], key: str) -> None:
        """Logs metrics under the section `key`, with the axes that say how far the run is."""
        axes = {
            "total_frames": self.counters.env_steps,
            **{f"total_frames-{name}": steps for name, steps in self.counters.env_steps_by_name.items()},
            "Epoch": self.counters.epoch,
            "gradient_steps": self.counters.gradient_steps,
        }
        self._tracker.log(metrics_dict, section=key, axes=axes)
        self._notify("on_metrics", key, metrics_dict)

    def policy_metrics(
        self, returns: Iterable[ReturnHistory], specials: Iterable[SpecialMetricHistory]
    ) -> dict[str, float]:
        """The metrics of episodes that were gathered as histories."""
        stats = EpisodeStats()
        for history in returns:
            for name, scores in history.data.items():
                stats.returns.setdefault(name, []).extend(scores)
        for special in specials:
            for name, metrics in special.data.items():
                for metric, values in metrics.items():
                    stats.specials.setdefault(name, {}).setdefault(metric, []).extend(values)
        return stats.to_metrics()

    def _report(self, section: str, stats: EpisodeStats) -> dict[str, float]:
        """Metrics over the episodes of all processes; logged unless no episode finished."""
        together = EpisodeStats()
        for each in self.processes.gather(stats):
            together.merge(each)
        metrics = together.to_metrics()
        self._notify("on_rollout_end", section, metrics)
        if metrics:
            self.log(metrics, section)
        return metrics

    def _progress(self, section: str) -> Callable[[int], None]:
        """What a rollout calls after every step: counts, and tells the callbacks."""
        listeners = [callback.on_rollout_step for callback in self.callbacks]
        counters, processes, training = self.counters, self.processes.count, section == "train"

        def progress(env_steps: int) -> None:
            env_steps *= processes
            if training:
                counters.env_steps += env_steps
            for listener in listeners:
                listener(self, section, env_steps)

        return progress

    def _count_steps_by_name(self, rollout: Rollout) -> None:
        totals = dict(self._steps_before)
        for each in self.processes.gather(rollout.steps_by_env_name):
            for name, steps in each.items():
                totals[name] = totals.get(name, 0) + steps
        self.counters.env_steps_by_name = totals

    def _read_learner_counters(self) -> None:
        self.counters.gradient_steps = self._learner.gradient_steps
        self.counters.skipped_updates = self._learner.skipped_updates

    def _wandb_run_id(self) -> str | None:
        ids = [tracker.run_id for tracker in self._tracker.trackers if isinstance(tracker, WandbTracker)]
        return ids[0] if ids else None

    # -- odds and ends

    def close(self) -> None:
        """Ends worker processes, writes what is pending and closes the trackers; may be called again."""
        if not self.started:
            return
        if self._recorder is not None:
            self._recorder.close()
        for envs in (getattr(self, "_train_envs", None), self._val_envs):
            if envs is not None:
                envs.close()
        if self._loader is not None:
            self._loader.close()
        self._tracker.close()

    def _notify(self, hook: str, *details: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *details)

    def _require_started(self, what: str) -> None:
        if not self.started:
            raise RuntimeError(f"call start() before {what}")

    def _say(self, text: str) -> None:
        if self.verbose and self.processes.is_main:
            print(text, flush=True)

    def _summary(self) -> str:
        assert self.dataset is not None
        return "\n".join(
            [
                f"run {self.run_name} in {self.run_dir} on {self.DEVICE}, seed {self._streams.seed}",
                f"  {self.agent_type.__name__} with {self.tstep_encoder_type.__name__} and "
                f"{self.traj_encoder_type.__name__}: {count_params(self._agent):,} trainable parameters",
                f"  {self.dataset.get_description()}",
            ]
        )

    def _progress_text(self) -> str:
        counters = self.counters
        return f"{counters.env_steps:,} steps and {counters.gradient_steps:,} updates so far"


__all__ = ["AmagoWarning", "Experiment"]
