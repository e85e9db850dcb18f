"""Experiment: the one entry point of a training run.

It wires parts that each stand alone: rollouts (`rollout.py`), updates (`learner.py`), evaluation
(`evaluate.py`), checkpoints (`checkpoint.py`), schedules (`schedule.py`), random streams (`randomness.py`) and
the description of the run (`run_file.py`). The class comes in layers: its arguments (`config.py`), its parts
(`parts.py`), how it is saved (`checkpointing.py`) and measured (`evaluating.py`), and here how it trains.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import gin

from amago.agent import Batch
from amago.distributed.accelerate import Processes, make_accelerator
from amago.envs.metrics import EpisodeStats
from amago.envs.vector.processes import available_cores
from amago.experiment.checkpoint import CheckpointFolder
from amago.experiment.evaluating import EvaluatedExperiment
from amago.experiment.interrupts import interrupts_held_off
from amago.experiment.randomness import RandomStreams
from amago.experiment.rollout import Rollout
from amago.experiment.run_file import write_config_text, write_run
from amago.experiment.schedule import is_due
from amago.loading import BatchLoader
from amago.utils import count_params

_POLL_SECONDS = 1.0


@gin.configurable(module="amago.experiment")
class Experiment(EvaluatedExperiment):
    """Trains an agent: collects with it, updates it on what was collected, evaluates it, epoch by epoch.

    The constructor only checks its arguments, which remain attributes that can be edited until `start()`
    builds everything. `learn()` then runs the epochs. See `ExperimentArguments` for the arguments.

    Attributes:
        counters: epochs, environment steps and gradient steps so far.
    """

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
                workers=min(self.dloader_workers, available_cores()),
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

    def _count_steps_by_name(self, rollout: Rollout) -> None:
        totals = dict(self._steps_before)
        for each in self.processes.gather(rollout.steps_by_env_name):
            for name, steps in each.items():
                totals[name] = totals.get(name, 0) + steps
        self.counters.env_steps_by_name = totals

    def _read_learner_counters(self) -> None:
        self.counters.gradient_steps = self._learner.gradient_steps
        self.counters.skipped_updates = self._learner.skipped_updates

    def delete_buffer_from_disk(self) -> None:
        """Deletes the dataset's stored trajectories, protected ones excepted."""
        self._require_started("delete_buffer_from_disk()")
        assert self.dataset is not None
        if self.processes.is_main:
            self.dataset.delete()
        self.processes.wait()

    def close(self) -> None:
        """Ends worker processes, writes what is pending and closes the trackers; may be called again."""
        if not self.started:
            return
        # In reverse order, each of them even if one before it fails.
        with contextlib.ExitStack() as stack:
            stack.callback(self._tracker.close)
            if self._loader is not None:
                stack.callback(self._loader.close)
            for envs in (self._val_envs, getattr(self, "_train_envs", None)):
                if envs is not None:
                    stack.callback(envs.close)
            if self._recorder is not None:
                stack.callback(self._recorder.close)
                with interrupts_held_off():
                    self._recorder.cut()

    def _describes_run(self) -> bool:
        """Whether this process writes run.json: collectors leave the learner's alone."""
        return self.always_save_latest or self.ckpt_interval is not None

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
        returns = [f"{name} return {value:.4g}" for name, value in self._latest_return.items()]
        so_far = f"{counters.env_steps:,} steps and {counters.gradient_steps:,} updates so far"
        return ", ".join([so_far, *returns])
