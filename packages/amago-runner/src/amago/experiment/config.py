"""ExperimentConfig: the arguments of an Experiment, their defaults and their validation."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MultipleOf

from amago.envs.arguments import (
    MAY_BE_INFINITE,
    Count,
    Name,
    NonNegative,
    Positive,
    Size,
    check_fields,
)
from amago.envs.exploration import EpsilonGreedy, ExplorationWrapper
from amago.envs.registry import did_you_mean
from amago.experiment.callbacks import Callback

if TYPE_CHECKING:
    from typing_extensions import Self

    from amago.agent import BaseAgent
    from amago.envs import AMAGOEnv
    from amago.loading import RLDataset
    from amago.nets.traj_encoders import TrajEncoder
    from amago.nets.tstep_encoders import TstepEncoder

    EnvMaker = Callable[[], AMAGOEnv]

Epoch = Annotated[float, Ge(0), MultipleOf(1), MAY_BE_INFINITE]
Epochs = Annotated[float, Ge(1), MultipleOf(1), MAY_BE_INFINITE]
MAX_BATCH_SIZE = 2**20
# Arguments that create a DiskTrajDataset when no dataset is given.
DATASET_ARGUMENTS = ("dset_root", "dset_name", "dset_max_size")


class _Required:
    """Default of required arguments that follow optional ones, which Python's syntax does not allow."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Required()


@dataclass(eq=False, repr=False)
class ExperimentConfig:
    """The arguments of an Experiment. Each is an attribute that may be edited until `start()`.

    Args:
        run_name: Name of the run: the name of its folder, and of the run on Weights & Biases.
        ckpt_base_dir: Parent of the run's folder. Defaults to `{dset_root}/{dset_name}`.
        max_seq_len: Length of training sequences and context length of the policy, in transitions.
        dataset: Replay buffer or offline dataset. Defaults to a `DiskTrajDataset` created from `dset_root`,
            `dset_name` and `dset_max_size`.
        tstep_encoder_type: Class of the timestep encoder. This and the next two may be a class, a
            `functools.partial` of one, or any callable that takes the same arguments.
        traj_encoder_type: Class of the trajectory encoder.
        agent_type: Class of the agent.
        val_timesteps_per_epoch: Timesteps per actor of a validation; at least the length of one episode.
        make_train_env: Function that creates a training environment (an AMAGOEnv), called once per actor, or a
            list with one function per actor.
        make_val_env: The same for validation environments.
        parallel_actors: Number of parallel environments per process.
        env_mode: "async" steps the environments in worker processes, "sync" in this process;
            "already_vectorized" takes one environment that steps a batch of `parallel_actors` itself.
        async_env_mp_context: Start method of environment workers: "fork", "spawn" or "forkserver". Defaults to
            "fork" where the platform has it.
        exploration_wrapper_type: Exploration wrapper of training environments. None explores only by sampling
            from the policy.
        sample_actions_train: Sample training actions from the policy; False takes its mode.
        sample_actions_val: The same for evaluation.
        force_reset_train_envs_every: Number of epochs between resets of the training environments, even in the
            middle of an episode. Never if None. They are also reset after each checkpoint, so that a resumed
            run is identical to an uninterrupted one.
        log_to_wandb: Log to Weights & Biases, in addition to `metrics.jsonl` in the run's folder.
        wandb_project: Project on Weights & Biases. Defaults to the environment variable AMAGO_WANDB_PROJECT.
        wandb_entity: User or team on Weights & Biases. Defaults to AMAGO_WANDB_ENTITY.
        wandb_group_name: Group of the run on Weights & Biases.
        verbose: Print what is trained at the start; then show progress bars and the time left, or lines where the
            output is no terminal.
        log_interval: Number of batches between logged update metrics.
        traj_save_len: Maximum length of a trajectory file, in transitions. Longer episodes are split.
        has_dset_edit_rights: Allow this process to delete and move files of the dataset.
        stagger_traj_file_lengths: Draw each file's maximum length uniformly from `traj_save_len` ± `max_seq_len`.
        save_trajs_as: File format of trajectories: "npz", "npz-compressed" or "traj" (safetensors).
        padded_sampling: Allow training sequences to extend past the start ("left"), the end ("right"), both ends
            ("both") or neither end ("none") of a trajectory.
        dloader_workers: Number of processes that load training batches; 0 loads in this process. At most one is
            started per CPU core. Batches do not depend on the number.
        epochs: Number of epochs of `learn()`; may be infinite.
        start_learning_at_epoch: First epoch with gradient updates; infinite for never.
        start_collecting_at_epoch: First epoch with data collection; infinite for never.
        train_timesteps_per_epoch: Timesteps collected per actor and epoch.
        train_batches_per_epoch: Training batches per epoch.
        val_interval: Number of epochs between validations, beginning with epoch 0. Never if None.
        ckpt_interval: Number of epochs between checkpoints, beginning with epoch 0; a checkpoint is also saved
            after the last epoch. Never if None.
        always_save_latest: Write `ckpts/latest/policy.pt` after every epoch.
        always_load_latest: Load `ckpts/latest/policy.pt` before every epoch.
        batch_size: Sequences per batch and process.
        batches_per_update: Number of batches whose gradients are accumulated for one optimizer step.
        learning_rate: Learning rate of AdamW after the warm-up.
        lr_warmup_steps: Number of updates over which the learning rate rises linearly from 0.
        grad_clip: Maximum norm of the gradient.
        l2_coeff: Weight decay of AdamW.
        mixed_precision: "no" or "bf16".
        seed: Seed of all random number generators of the run. Drawn if None.
        resume: Let `start()` continue from the run's last checkpoint. "auto" does so if there is one, and starts a
            new run otherwise, so that a restarted job needs no other arguments.
        compile: Compile the agent's loss with `torch.compile`. "auto" does so on CUDA, where no gain has been
            measured yet, and never on a CPU, where compiling takes a minute or two and the updates are slower.
        envs_per_worker: Environments per worker process. Defaults to an even distribution over the CPU cores.
        env_timeout: Seconds within which a worker process must create, reset or step its environments. No limit
            if None.
        double_buffer: Split the actors into two halves and compute the actions of one half while the
            environments of the other half step, during data collection. Needs `env_mode="async"`.
        overlap_collection: Collect during the updates of an epoch instead of before them: environments in
            worker processes step while the agent learns. This changes the algorithm: updates see only the data
            of earlier epochs, which were collected by the policies at the start of these. An epoch whose
            dataset is not ready, such as the first, collects before it learns.
        callbacks: List of `amago.experiment.Callback` objects.
        dset_root: Parent folder of the DiskTrajDataset that is created if `dataset` is None.
        dset_name: Name of that dataset.
        dset_max_size: Maximum number of trajectory files in that dataset. Defaults to 20,000.
        data_timeout: Seconds that a run which does not collect waits for its dataset to become ready.
        max_nonfinite_updates: Number of consecutive updates with a non-finite loss or gradient, each of which is
            skipped, after which the run stops with a NonFiniteUpdateError.
        keep_last: Number of checkpoints to keep, the newest; older ones are deleted, training state and weights,
            unless one of the next two arguments keeps them. All are kept if None.
        keep_every: Never delete the checkpoints of epochs that are multiples of this number.
        keep_best: Number of checkpoints to keep with the highest mean return of the last validation before them.
        stop_signals: Signals on which `learn()` writes a checkpoint after the running step, closes the experiment
            and raises RunStopped, which ends the program with the exit status 128 + the signal's number. A second
            signal ends it at once.
        env_description: JSON-serializable description of the environment for `run.json`.
        log_to_tensorboard: Log to TensorBoard event files in `tensorboard/` of the run's folder.
        overwrite: Let `start()` replace a run of the same name: its files are deleted, and the trajectories in
            `buffer/` of its folder if this run collects; protected trajectories and other files stay.
        max_policy_age: Seconds without a new policy of the learner, after which a collector warns once.
        fsdp: Shard the trajectory encoder over the processes of a data-parallel run (FSDP2): its parameters,
            gradients and optimizer state. For models that do not fit a GPU whole; not with `compile=True`.
        threads: Threads of torch in this process until `close()`, for an agent on a CPU. "auto" is 1 if its layers
            are small, for which several threads take longer than one, else torch's own number, at most
            that of the available cores.
    """

    run_name: Name
    ckpt_base_dir: str | os.PathLike[str] | None = None
    max_seq_len: Size = REQUIRED
    dataset: RLDataset | None = None
    tstep_encoder_type: Callable[..., TstepEncoder] = REQUIRED
    traj_encoder_type: Callable[..., TrajEncoder] = REQUIRED
    agent_type: Callable[..., BaseAgent] = REQUIRED
    val_timesteps_per_epoch: Count = REQUIRED
    make_train_env: EnvMaker | Sequence[EnvMaker] = REQUIRED
    make_val_env: EnvMaker | Sequence[EnvMaker] = REQUIRED
    parallel_actors: Size = 12
    env_mode: Literal["async", "sync", "already_vectorized"] = "async"
    async_env_mp_context: Literal["fork", "spawn", "forkserver"] | None = None
    exploration_wrapper_type: Callable[..., ExplorationWrapper] | None = EpsilonGreedy
    sample_actions_train: bool = True
    sample_actions_val: bool = True
    force_reset_train_envs_every: Epochs | None = None
    log_to_wandb: bool = False
    wandb_project: str | None = None
    wandb_entity: str | None = None
    wandb_group_name: str | None = None
    verbose: bool = True
    log_interval: Annotated[int, Ge(1)] = 300
    traj_save_len: Annotated[float, Gt(0), MultipleOf(1), MAY_BE_INFINITE] = 1e10
    has_dset_edit_rights: bool = True
    stagger_traj_file_lengths: bool = True
    save_trajs_as: Literal["npz", "npz-compressed", "traj"] = "npz"
    padded_sampling: Literal["none", "both", "left", "right"] = "none"
    dloader_workers: Count = 6
    epochs: Epoch = 1000
    start_learning_at_epoch: Epoch = 0
    start_collecting_at_epoch: Epoch = 0
    train_timesteps_per_epoch: Count = 1000
    train_batches_per_epoch: Annotated[int, Ge(1)] = 1000
    val_interval: Epochs | None = 20
    ckpt_interval: Epochs | None = 50
    always_save_latest: bool = True
    always_load_latest: bool = False
    batch_size: Annotated[int, Ge(1), Le(MAX_BATCH_SIZE)] = 24
    batches_per_update: Size = 1
    learning_rate: Positive = 1e-4
    lr_warmup_steps: Count = 500
    grad_clip: Annotated[float, Gt(0), MAY_BE_INFINITE] = 1.0
    l2_coeff: NonNegative = 1e-3
    mixed_precision: Literal["no", "bf16"] = "no"
    _: KW_ONLY
    seed: Count | None = None
    resume: bool | Literal["auto"] = False
    compile: bool | Literal["auto"] = "auto"
    envs_per_worker: Size | None = None
    env_timeout: Annotated[float, Ge(0.001)] | None = 600.0
    double_buffer: bool = False
    overlap_collection: bool = False
    callbacks: Sequence[Callback] = ()
    dset_root: str | os.PathLike[str] | None = None
    dset_name: Name | None = None
    dset_max_size: Annotated[int, Ge(1)] | None = None
    data_timeout: Annotated[float, Ge(0), MAY_BE_INFINITE] = 600.0
    max_nonfinite_updates: Annotated[int, Ge(1)] = 10
    keep_last: Annotated[int, Ge(1)] | None = 20
    keep_every: Annotated[int, Ge(1)] | None = None
    keep_best: Count = 1
    stop_signals: Sequence[str] = ("SIGTERM", "SIGINT", "SIGUSR1")
    env_description: Mapping[str, Any] | None = None
    log_to_tensorboard: bool = False
    overwrite: bool = False
    max_policy_age: Annotated[float, Ge(0), MAY_BE_INFINITE] = 600.0
    fsdp: bool = False
    threads: Size | Literal["auto"] = "auto"

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        """Rejects unknown arguments with the nearest valid name."""
        known = inspect.signature(cls.__init__).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            for name in arguments:
                if name not in known:
                    raise TypeError(f"{cls.__name__} has no argument {name!r}.{did_you_mean(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    @property
    def run_dir(self) -> Path:
        """The run's folder, `{ckpt_base_dir}/{run_name}`."""
        if self.ckpt_base_dir is not None:
            base = Path(self.ckpt_base_dir)
        elif self.dset_root is not None and self.dset_name is not None:
            base = Path(self.dset_root) / self.dset_name
        else:
            raise ValueError("ckpt_base_dir is None: set the folder in which the run's folder is created")
        return base.expanduser() / self.run_name

    @property
    def collects(self) -> bool:
        """Whether any epoch of the run collects training data."""
        return self.train_timesteps_per_epoch > 0 and self.start_collecting_at_epoch < self.epochs

    @property
    def learns(self) -> bool:
        """Whether any epoch of the run updates the agent."""
        return self.start_learning_at_epoch < self.epochs

    @property
    def only_learns(self) -> bool:
        """Whether the run learns, but neither collects nor evaluates."""
        return self.learns and not self.collects and self.val_interval is None

    @property
    def role(self) -> str | None:
        """What this process does for the run: "both", "learner" or "collector"; None if it does neither."""
        if self.collects:
            return "both" if self.learns else "collector"
        return "learner" if self.learns else None

    @property
    def saves_policy(self) -> bool:
        """Whether this run owns run.json and checkpoints; False for collectors and runs of no epoch."""
        return self.epochs > 0 and (self.always_save_latest or self.ckpt_interval is not None)

    def env_makers(self, makers: EnvMaker | Sequence[EnvMaker]) -> list[EnvMaker]:
        """Returns one function per environment; repeats a single function and returns a list unchanged."""
        return [makers] * self._num_makers if callable(makers) else list(makers)

    @property
    def _num_makers(self) -> int:
        return 1 if self.env_mode == "already_vectorized" else self.parallel_actors

    def validate(self) -> None:
        """Checks types and ranges of all arguments.

        Raises:
            ValueError, TypeError: names the argument, its value and the accepted values.
        """
        missing = [field.name for field in fields(self) if getattr(self, field.name) is REQUIRED]
        if missing:
            raise TypeError(f"{type(self).__name__} is missing the arguments {', '.join(missing)}")
        self._validate_types()
        check_fields(self)
        self._validate_folders_and_dataset()
        self._validate_combinations()
        self._validate_env_makers()

    def _validate_folders_and_dataset(self) -> None:
        if Path(self.run_name).name != self.run_name:
            raise ValueError(
                f"run_name is {self.run_name!r}, must name a folder: not empty and without slashes"
            )
        if self.dataset is None and (self.dset_root is None or self.dset_name is None):
            raise ValueError(
                "dataset is None: pass a dataset, e.g. dataset=DiskTrajDataset(dset_root=..., dset_name=..., "
                "dset_max_size=...), or dset_root and dset_name"
            )
        if self.dataset is not None and (
            isinstance(self.dataset, type) or not hasattr(self.dataset, "sample_random_trajectory")
        ):
            raise TypeError(f"dataset is {self.dataset!r}, must be an instance of RLDataset")
        ignored = [name for name in DATASET_ARGUMENTS if getattr(self, name) is not None]
        if self.dataset is not None and ignored:
            given = ", ".join(f"{name}={getattr(self, name)!r}" for name in ignored)
            raise ValueError(
                f"dataset and {given} are both given: pass one or the other. The parent of the run's folder is "
                "ckpt_base_dir."
            )
        if self.resume and self.overwrite:
            raise ValueError(
                f"resume is {self.resume!r} and overwrite is True: continue the run or replace it, not both"
            )
        _ = self.run_dir

    def _validate_combinations(self) -> None:
        known = [each.name for each in signal.Signals if each.name not in ("SIGKILL", "SIGSTOP")]
        for name in self.stop_signals:
            if name not in known:
                raise ValueError(
                    f"stop_signals contains {name!r}, must be names of signals.{did_you_mean(str(name), known)}"
                )
        if self.traj_save_len < self.max_seq_len:
            raise ValueError(
                f"traj_save_len is {self.traj_save_len!r}, less than max_seq_len ({self.max_seq_len}): no file "
                f"could hold a full training sequence. Set it to at least {self.max_seq_len}."
            )
        if self.val_interval is not None and self.val_timesteps_per_epoch == 0:
            raise ValueError(
                f"val_timesteps_per_epoch is 0 and val_interval {self.val_interval}: no episode would be played. "
                "Set it to at least the length of an episode, or val_interval to None for no validation."
            )
        if self.fsdp and self.compile is True:
            raise ValueError(
                "fsdp and compile are both True: a sharded model cannot be compiled; set one to False"
            )
        if self.double_buffer and (self.env_mode != "async" or self.parallel_actors < 2):
            raise ValueError(
                "double_buffer is True, which needs env_mode='async' and at least 2 parallel_actors, not "
                f"env_mode={self.env_mode!r} and {self.parallel_actors!r}"
            )

        if self.overlap_collection:
            self._validate_overlap()

    def _validate_overlap(self) -> None:
        if self.double_buffer:
            raise ValueError(
                "overlap_collection and double_buffer are both True: environments step either during updates or "
                "during the actions of the other half; set one to False"
            )
        if self.role in ("collector", "learner"):
            names = ("train_timesteps_per_epoch", "start_collecting_at_epoch", "start_learning_at_epoch")
            given = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            raise ValueError(
                f"overlap_collection is True, but this run is only a {self.role} ({given}), so nothing overlaps: "
                "set it to False, or let one process collect and learn"
            )

    def _validate_types(self) -> None:
        from amago.agent import BaseAgent
        from amago.nets.traj_encoders import TrajEncoder
        from amago.nets.tstep_encoders import TstepEncoder

        _check_factory("tstep_encoder_type", self.tstep_encoder_type, TstepEncoder)
        _check_factory("traj_encoder_type", self.traj_encoder_type, TrajEncoder)
        _check_factory("agent_type", self.agent_type, BaseAgent)
        if self.exploration_wrapper_type is not None:
            _check_factory("exploration_wrapper_type", self.exploration_wrapper_type, ExplorationWrapper)
        if not isinstance(self.callbacks, Sequence) or not all(
            isinstance(callback, Callback) for callback in self.callbacks
        ):
            raise TypeError(
                f"callbacks is {self.callbacks!r}, must be a list of instances of amago.experiment.Callback"
            )

    def _validate_env_makers(self) -> None:
        for name in ("make_train_env", "make_val_env"):
            makers = getattr(self, name)
            if callable(makers):
                continue
            if not isinstance(makers, Sequence) or not all(callable(maker) for maker in makers):
                raise TypeError(
                    f"{name} is {makers!r}, must be a function that returns an AMAGOEnv, or a list of them"
                )
            if len(makers) != self._num_makers:
                raise ValueError(
                    f"{name} is a list of {len(makers)} functions, must have {self._num_makers}: one per actor "
                    f"(parallel_actors={self.parallel_actors}, env_mode={self.env_mode!r})"
                )


def _check_factory(name: str, value: Any, base: type) -> None:
    """Checks that `value` creates instances of `base`: a subclass or another callable."""
    is_valid = issubclass(value, base) if isinstance(value, type) else callable(value)
    if not is_valid or isinstance(value, base):
        raise TypeError(
            f"{name} is {value!r}, must be a subclass of {base.__module__}.{base.__name__} (not an instance), a "
            "functools.partial of one, or a function that returns an instance"
        )
