"""The arguments of an Experiment: what they mean, their defaults and what they may be.

`Experiment` inherits these fields, so each stays an attribute that can be edited until `start()`, which checks
them once more.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amago.envs.exploration import EpsilonGreedy, ExplorationWrapper
from amago.experiment.callbacks import Callback

if TYPE_CHECKING:
    from typing_extensions import Self

    from amago.agent import BaseAgent
    from amago.envs import AMAGOEnv
    from amago.loading import RLDataset
    from amago.nets.traj_encoders import TrajEncoder
    from amago.nets.tstep_encoders import TstepEncoder

    EnvMaker = Callable[[], AMAGOEnv]

ENV_MODES = ("async", "sync", "already_vectorized")
SAVE_FORMATS = ("npz", "npz-compressed", "traj")
SAMPLING = ("none", "both", "left", "right")
PRECISIONS = ("no", "bf16")
MP_CONTEXTS = ("fork", "spawn", "forkserver")
# Of the DiskTrajDataset that is made if no dataset is given.
DATASET_ARGUMENTS = ("dset_root", "dset_name", "dset_max_size")


class _Required:
    """Stands in for arguments without a default, which Python does not allow after those with one."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Required()


@dataclass(eq=False, repr=False)
class ExperimentArguments:
    """Every argument of an Experiment.

    Args:
        run_name: name of the run: its folder, and its name on wandb.
        ckpt_base_dir: folder in which the run's folder is made; None means `{dset_root}/{dset_name}`.
        max_seq_len: longest sequence that the agent trains on and remembers, in transitions.
        dataset: where collected data goes and training data comes from; None makes a DiskTrajDataset from
            `dset_root`, `dset_name` and `dset_max_size`.
        tstep_encoder_type, traj_encoder_type, agent_type: classes that `start()` builds the agent from.
        val_timesteps_per_epoch: steps per actor of a validation; enough for at least one episode each.
        make_train_env, make_val_env: a callable that returns an AMAGOEnv, or a list with one per actor.
        parallel_actors: environments stepped together, in each process.
        env_mode: "async" (environments in worker processes), "sync" (in this one) or "already_vectorized"
            (the environment itself steps a batch of `parallel_actors`).
        async_env_mp_context: "fork", "spawn" or "forkserver"; None chooses.
        exploration_wrapper_type: wrapped around each training environment; None explores by sampling alone.
        sample_actions_train, sample_actions_val: draw actions from the policy, or take its mode.
        force_reset_train_envs_every: epochs after which training environments are reset, done or not. They are
            also reset after each checkpoint, which is what makes a resumed run repeat exactly.
        log_to_wandb: also log to Weights and Biases, besides `metrics.jsonl` in the run's folder.
        wandb_project, wandb_entity: None reads AMAGO_WANDB_PROJECT and AMAGO_WANDB_ENTITY.
        wandb_group_name: group of the run on wandb.
        verbose: print what is built and how it goes.
        log_interval: batches between logs of update metrics.
        traj_save_len: steps after which a trajectory is written though its episode goes on.
        has_dset_edit_rights: this process may delete and move files of the dataset.
        stagger_traj_file_lengths: draw each limit from `traj_save_len` ± `max_seq_len`.
        save_trajs_as: "npz", "npz-compressed" or "traj" (safetensors).
        padded_sampling: "none", "both", "left" or "right": whether training windows may overhang a trajectory.
        dloader_workers: processes that read training data; 0 reads in this one. No more are started than there
            are cores to run them, and the batches are the same for any number. They take shared memory for up
            to ten batches each; without room for it batches go through pipes, with a warning.
        epochs: epochs of `learn()`; may be infinite.
        start_learning_at_epoch, start_collecting_at_epoch: first epoch with updates, with rollouts; infinite
            for never.
        train_timesteps_per_epoch: steps per actor and epoch.
        train_batches_per_epoch: batches per epoch.
        val_interval, ckpt_interval: epochs between validations, checkpoints; epoch 0 has both; None for never.
        always_save_latest: write `ckpts/latest/policy.pt` after every epoch.
        always_load_latest: read it before every epoch.
        batch_size: sequences per batch and process.
        batches_per_update: batches whose gradients are accumulated for one optimizer step.
        learning_rate: of AdamW, after the warm-up.
        lr_warmup_steps: updates over which the rate rises from 0.
        grad_clip: largest norm of the gradient.
        l2_coeff: weight decay of AdamW.
        mixed_precision: "no" or "bf16".
        seed: fixes every random number; None draws one.
        resume: `start()` continues from the run's last checkpoint.
        compile: compile the agent's loss; "auto" does on CUDA.
        envs_per_worker: environments in one worker process of env_mode "async"; None chooses.
        env_timeout: seconds that a worker process may take to make, reset or step its environments before that is
            an error; None waits forever.
        double_buffer: act for one half of the actors while the environments of the other half step, in training
            and evaluation; without effect unless env_mode is "async" with two or more worker processes. None tries
            both ways and keeps the quicker one; with a `seed` it means False, as what is drawn would depend on how
            long things take.
        callbacks: watchers, see `amago.experiment.callbacks`.
        dset_root, dset_name, dset_max_size: the DiskTrajDataset to make if no dataset is given.
        data_timeout: seconds that a process which collects nothing waits for its dataset to become ready.
        max_nonfinite_updates: non-finite updates in a row, each skipped, after which the run stops.
        keep_checkpoints: how many training states to keep, the newest; None keeps all.
        env_description: what to note about the environment in `run.json`, so that others can build it again.
    """

    run_name: str
    ckpt_base_dir: str | os.PathLike[str] | None = None
    max_seq_len: int = REQUIRED
    dataset: RLDataset | None = None
    tstep_encoder_type: type[TstepEncoder] = REQUIRED
    traj_encoder_type: type[TrajEncoder] = REQUIRED
    agent_type: type[BaseAgent] = REQUIRED
    val_timesteps_per_epoch: int = REQUIRED
    make_train_env: EnvMaker | Sequence[EnvMaker] = REQUIRED
    make_val_env: EnvMaker | Sequence[EnvMaker] = REQUIRED
    parallel_actors: int = 12
    env_mode: str = "async"
    async_env_mp_context: str | None = None
    exploration_wrapper_type: type[ExplorationWrapper] | None = EpsilonGreedy
    sample_actions_train: bool = True
    sample_actions_val: bool = True
    force_reset_train_envs_every: int | None = None
    log_to_wandb: bool = False
    wandb_project: str | None = None
    wandb_entity: str | None = None
    wandb_group_name: str | None = None
    verbose: bool = True
    log_interval: int = 300
    traj_save_len: int | float = 1e10
    has_dset_edit_rights: bool = True
    stagger_traj_file_lengths: bool = True
    save_trajs_as: str = "npz"
    padded_sampling: str = "none"
    dloader_workers: int = 6
    epochs: int | float = 1000
    start_learning_at_epoch: int | float = 0
    start_collecting_at_epoch: int | float = 0
    train_timesteps_per_epoch: int = 1000
    train_batches_per_epoch: int = 1000
    val_interval: int | None = 20
    ckpt_interval: int | None = 50
    always_save_latest: bool = True
    always_load_latest: bool = False
    batch_size: int = 24
    batches_per_update: int = 1
    learning_rate: float = 1e-4
    lr_warmup_steps: int = 500
    grad_clip: float = 1.0
    l2_coeff: float = 1e-3
    mixed_precision: str = "no"
    _: KW_ONLY
    seed: int | None = None
    resume: bool = False
    compile: bool | str = "auto"
    envs_per_worker: int | None = None
    env_timeout: float | None = 600.0
    double_buffer: bool | None = None
    callbacks: Sequence[Callback] = ()
    dset_root: str | os.PathLike[str] | None = None
    dset_name: str | None = None
    dset_max_size: int | None = None
    data_timeout: float = 600.0
    max_nonfinite_updates: int = 10
    keep_checkpoints: int | None = None
    env_description: Mapping[str, Any] | None = None

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        """Answers an unknown argument with the nearest one."""
        known = inspect.signature(cls.__init__).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            for name in arguments:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    hint = f": did you mean {near[0]!r}?" if near else ""
                    raise TypeError(f"{cls.__name__} has no argument {name!r}{hint}")
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
            raise ValueError("ckpt_base_dir is None: name the folder in which checkpoints are kept")
        return base.expanduser() / self.run_name

    def validate(self) -> None:
        """Checks every argument.

        Raises:
            ValueError, TypeError: names the argument, its value and what it may be.
        """
        missing = [field.name for field in fields(self) if getattr(self, field.name) is REQUIRED]
        if missing:
            raise TypeError(f"{type(self).__name__} needs the arguments {', '.join(missing)}")
        self._validate_names_and_places()
        self._validate_choices()
        self._validate_numbers()
        self._validate_environments()

    def _validate_names_and_places(self) -> None:
        if not isinstance(self.run_name, str) or not self.run_name or self.run_name in (".", ".."):
            raise ValueError(f"run_name is {self.run_name!r}, must be a text that can name a folder")
        if set(self.run_name) & set("/\\\0"):
            raise ValueError(f"run_name is {self.run_name!r}: it names one folder, so it has no slashes")
        if self.dataset is None and (self.dset_root is None or self.dset_name is None):
            raise ValueError(
                "dataset is None: give a dataset, e.g. dataset=DiskTrajDataset(dset_root=..., dset_name=..., "
                "dset_max_size=...), or dset_root and dset_name"
            )
        if self.dataset is not None and not hasattr(self.dataset, "sample_random_trajectory"):
            raise TypeError(f"dataset is {self.dataset!r}, must be an RLDataset")
        ignored = [name for name in DATASET_ARGUMENTS if getattr(self, name) is not None]
        if self.dataset is not None and ignored:
            given = ", ".join(f"{name}={getattr(self, name)!r}" for name in ignored)
            raise ValueError(
                f"dataset is given, and so is {given}, which would be ignored: give one or the other. The folder "
                "of the run is ckpt_base_dir."
            )
        _ = self.run_dir

    def _validate_choices(self) -> None:
        _check_choice("env_mode", self.env_mode, ENV_MODES)
        _check_choice("save_trajs_as", self.save_trajs_as, SAVE_FORMATS)
        _check_choice("padded_sampling", self.padded_sampling, SAMPLING)
        _check_choice("mixed_precision", self.mixed_precision, PRECISIONS)
        if self.async_env_mp_context is not None:
            _check_choice("async_env_mp_context", self.async_env_mp_context, MP_CONTEXTS)
        if not isinstance(self.compile, bool) and self.compile != "auto":
            raise ValueError(f"compile is {self.compile!r}, must be True, False or 'auto'")
        if not isinstance(self.double_buffer, bool | None):
            raise TypeError(f"double_buffer is {self.double_buffer!r}, must be True, False or None")
        self._validate_types()
        if not isinstance(self.callbacks, Sequence) or not all(
            isinstance(callback, Callback) for callback in self.callbacks
        ):
            raise TypeError(
                f"callbacks is {self.callbacks!r}, must be a list of amago.experiment.Callback instances: "
                "subclass it and override what to watch"
            )

    def _validate_types(self) -> None:
        """Each part must be a class of its kind: a swapped one would fail over arguments that nobody wrote."""
        from amago.agent import BaseAgent
        from amago.nets.traj_encoders import TrajEncoder
        from amago.nets.tstep_encoders import TstepEncoder

        kinds: dict[str, type] = {
            "tstep_encoder_type": TstepEncoder,
            "traj_encoder_type": TrajEncoder,
            "agent_type": BaseAgent,
        }
        if self.exploration_wrapper_type is not None:
            kinds["exploration_wrapper_type"] = ExplorationWrapper
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, type) or not issubclass(value, kind):
                raise TypeError(
                    f"{name} is {value!r}, must be a subclass of {kind.__module__}.{kind.__name__}, itself and "
                    "not an instance: start() builds it"
                )

    def _validate_numbers(self) -> None:
        for name in (
            "max_seq_len",
            "parallel_actors",
            "log_interval",
            "batch_size",
            "batches_per_update",
            "train_batches_per_epoch",
            "max_nonfinite_updates",
        ):
            _check_integer(name, getattr(self, name), least=1)
        for name in (
            "val_timesteps_per_epoch",
            "dloader_workers",
            "train_timesteps_per_epoch",
            "lr_warmup_steps",
        ):
            _check_integer(name, getattr(self, name), least=0)
        for name in ("epochs", "start_learning_at_epoch", "start_collecting_at_epoch"):
            _check_integer(name, getattr(self, name), least=0, infinite=True)
        for name in (
            "val_interval",
            "ckpt_interval",
            "force_reset_train_envs_every",
            "envs_per_worker",
            "keep_checkpoints",
            "dset_max_size",
        ):
            if getattr(self, name) is not None:
                _check_integer(
                    name, getattr(self, name), least=1, infinite=name.endswith(("interval", "every"))
                )
        if self.seed is not None:
            _check_integer("seed", self.seed, least=0)
        _check_number("learning_rate", self.learning_rate)
        _check_number("grad_clip", self.grad_clip)
        _check_number("l2_coeff", self.l2_coeff, zero=True)
        _check_number("data_timeout", self.data_timeout, zero=True)
        if self.env_timeout is not None:
            _check_number("env_timeout", self.env_timeout)
        _check_number("traj_save_len", self.traj_save_len)
        if self.traj_save_len < self.max_seq_len:
            raise ValueError(
                f"traj_save_len is {self.traj_save_len!r}, less than max_seq_len ({self.max_seq_len}): training "
                f"could never see a whole sequence. Make it at least {self.max_seq_len}."
            )

    def _validate_environments(self) -> None:
        wanted = 1 if self.env_mode == "already_vectorized" else self.parallel_actors
        for name in ("make_train_env", "make_val_env"):
            makers = getattr(self, name)
            if callable(makers):
                continue
            if not isinstance(makers, Sequence) or not all(callable(maker) for maker in makers):
                raise TypeError(
                    f"{name} is {makers!r}, must be a function that returns an AMAGOEnv or a list of them"
                )
            if len(makers) != wanted:
                raise ValueError(
                    f"{name} is a list of {len(makers)}, must have {wanted}: one function per actor "
                    f"(parallel_actors={self.parallel_actors}, env_mode={self.env_mode!r})"
                )

    def env_makers(self, makers: EnvMaker | Sequence[EnvMaker]) -> list[EnvMaker]:
        """One function per environment: a single one repeated, a list as it is."""
        wanted = 1 if self.env_mode == "already_vectorized" else self.parallel_actors
        return [makers] * wanted if callable(makers) else list(makers)


def _check_choice(name: str, value: object, options: Sequence[str]) -> None:
    if value in options:
        return
    near = difflib.get_close_matches(str(value), options, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"{name} is {value!r}: {hint}must be one of {', '.join(map(repr, options))}")


def _check_integer(name: str, value: Any, *, least: int, infinite: bool = False) -> None:
    what = f"an integer of at least {least}" + (", or infinite" if infinite else "")
    if isinstance(value, bool) or (not isinstance(value, (int, float)) and not hasattr(value, "__index__")):
        raise TypeError(f"{name} is {value!r}, must be {what}")
    if isinstance(value, float) and math.isinf(value) and value > 0 and infinite:
        return
    if value != value or value in (math.inf, -math.inf) or int(value) != value or value < least:
        raise ValueError(f"{name} is {value!r}, must be {what}")


def _check_number(name: str, value: Any, *, zero: bool = False) -> None:
    what = "a number of at least 0" if zero else "a number above 0"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}, must be {what}")
    if not (value >= 0 if zero else value > 0):
        raise ValueError(f"{name} is {value!r}, must be {what}")
