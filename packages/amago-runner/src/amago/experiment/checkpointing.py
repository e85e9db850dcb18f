"""How an Experiment saves itself, and how it goes on from what was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amago.experiment.callbacks import Counters
from amago.experiment.checkpoint import TrainingState, load_policy, load_training_state
from amago.experiment.interrupts import interrupts_held_off
from amago.experiment.parts import ExperimentParts
from amago.experiment.randomness import RandomStreams
from amago.experiment.saved_policies import read_saved_policy
from amago.tracking import WandbTracker
from amago.utils import amago_warning


class CheckpointedExperiment(ExperimentParts):
    """Saves and restores the parts; only the main process writes."""

    def save_checkpoint(self) -> None:
        """Writes the training state and the weights of this epoch, so that `resume` can go on after it.

        Unfinished training episodes are written as they are, and environments are reset before the next
        collection: a resumed run, which has to reset them, then repeats what this one does.
        """
        self._require_started("save_checkpoint()")
        assert self.dataset is not None
        rollout, epoch = self._train_rollout, self.counters.epoch
        if self._recorder is not None:  # also after a rollout that was interrupted
            with interrupts_held_off():
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
            path: a folder of `training_states/`, or a file of weights, see `read_saved_policy`.
            is_accelerate_state: whether it is a training state.

        Raises:
            FileNotFoundError, ValueError: there is none, or of another format.
        """
        self._require_started("load_checkpoint_from_path()")
        path = Path(path).expanduser()
        if is_accelerate_state:
            self._restore(load_training_state(path, self.DEVICE), is_resume=True)
        else:
            self._load_weights(read_saved_policy(path, self.DEVICE), path)
            self._agent.on_checkpoint_loaded(is_resume=False)

    def _load_weights(self, weights: dict[str, Any], source: object) -> None:
        try:
            self._agent.load_state_dict(weights)
        except RuntimeError as error:
            differences = str(error).strip().split("\n")[1:]
            first = differences[0].strip() if differences else str(error)
            raise ValueError(
                f"the weights in {source} are of another network than this experiment's; the first of "
                f"{len(differences)} differences: {first} Choose the parts and gin settings of the run that wrote "
                "them, which stand in its config.txt."
            ) from error

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
        self._load_weights(weights, self._checkpoints.latest_policy)
        self._agent.on_checkpoint_loaded(is_resume=False)

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
        self._load_weights(saved.policy, "the training state")
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

    def _wandb_run_id(self) -> str | None:
        ids = [tracker.run_id for tracker in self._tracker.trackers if isinstance(tracker, WandbTracker)]
        return ids[0] if ids else None
