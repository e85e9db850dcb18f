"""What an Experiment is made of, and how each part is built from its arguments.

`ExperimentParts` adds the parts to the arguments; `CheckpointedExperiment` saves and restores them; `Experiment`
runs them. Subclasses of Experiment override the `init_...` methods to build something else.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from amago.agent import BaseAgent
from amago.distributed.accelerate import Processes
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
from amago.experiment.checkpoint import CheckpointFolder
from amago.experiment.config import ExperimentArguments
from amago.experiment.learner import Learner, make_adamw
from amago.experiment.randomness import RandomStreams
from amago.experiment.rollout import Rollout
from amago.loading import BatchLoader
from amago.tracking import MultiTracker

if TYPE_CHECKING:
    from accelerate import Accelerator


class ExperimentParts(ExperimentArguments):
    """The parts, which exist once `start()` has built them.

    Attributes:
        counters: epochs, environment steps and gradient steps so far.
        started: whether the parts exist.
        processes: the processes that train together.
    """

    processes: Processes
    _checkpoints: CheckpointFolder
    _streams: RandomStreams

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
        self._latest_return: dict[str, float] = {}
        self._batches_seen = 0
        self._steps_before: dict[str, int] = {}

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
        # Drawn, so that runs may share a buffer, but in the order of ranks, by which files are sampled.
        first_writer = self.processes.share(secrets.randbelow(4096 - self.processes.count))
        writer_id = f"{first_writer + self.processes.rank:03x}"
        save_to = self.dataset.save_new_trajs_to
        first_number = secrets.randbelow(1 << 16)  # of 2^20; runs that drew the same writer still differ
        self._recorder = build_recorder(
            self, self._streams, save_to, writer_id=writer_id, first_number=first_number
        )
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
                double_buffer=self._double_buffer,
            )

    def init_optimizer(self, policy: BaseAgent) -> Optimizer:
        """AdamW over the trainable parameters; override for another optimizer."""
        return make_adamw(policy.trainable_params, self.learning_rate, self.l2_coeff, self.DEVICE)

    def init_logger(self, wandb_run_id: str | None = None) -> None:
        """Opens metrics.jsonl and, if asked for, wandb; in the main process only."""
        if self.processes.is_main:
            self._tracker = MultiTracker(build_trackers(self, wandb_run_id))

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

    @property
    def _double_buffer(self) -> bool | None:
        """As rollouts take it: with a seed nothing may depend on the clock."""
        return False if self.double_buffer is None and self.seed is not None else self.double_buffer

    def _ever_collects(self) -> bool:
        first = max(self.start_collecting_at_epoch, 0)
        return self.train_timesteps_per_epoch > 0 and first < self.epochs

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

    def _notify(self, hook: str, *details: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *details)

    def _require_started(self, what: str) -> None:
        if not self.started:
            raise RuntimeError(f"call start() before {what}")

    def _say(self, text: str) -> None:
        if self.verbose and self.processes.is_main:
            print(text, flush=True)
