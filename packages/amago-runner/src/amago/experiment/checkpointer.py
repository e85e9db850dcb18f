"""Checkpointer: saves and loads the checkpoints of a run.

    {run folder}/ckpts/
        training_states/{run_name}_epoch_{n}/   policy.pt, optimizer.pt, lr_schedule.pt, state.json: to resume from
        policy_weights/policy_epoch_{n}.pt      weights only
        latest/policy.pt                        weights after the last epoch, read by collectors

All files and folders appear atomically. Tensors are loaded with `weights_only=True` and everything else is JSON,
so loading a checkpoint executes no code. Every file carries CRC-32 checksums, which are compared before it is
used: state.json one of its own, .pt files those of the zip format that torch.save writes.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch

from amago.experiment.saved_policies import check_tensors, read_tensors
from amago.hindsight import UNFINISHED_SUFFIX, atomic_file
from amago.utils import amago_warning

FORMAT_VERSION = 1
_REPLACED = ".replaced"  # end of the name of a training state that is being replaced


class TrainingState(NamedTuple):
    """Contents of a training state.

    Attributes:
        policy: State dict of the agent.
        optimizer: State dict of the optimizer.
        lr_schedule: State dict of the learning-rate schedule.
        state: Everything else as JSON: counters, seed, dataset, exploration, recorders.
    """

    policy: dict[str, Any]
    optimizer: dict[str, Any]
    lr_schedule: dict[str, Any]
    state: dict[str, Any]


class Checkpointer:
    """Saves and finds the checkpoints of one run, and deletes those that need not be kept.

    A checkpoint is kept if it is one of the newest, is due by `keep_every`, or is one of the best; its training
    state and its weights are deleted together. The checkpoint just saved is always kept.

    Args:
        run_dir: The run's folder.
        run_name: Name of the run, part of the names of training states.
        keep_last: Number of checkpoints to keep, the newest; None keeps all.
        keep_every: Keep the checkpoints of epochs that this divides, for good; None keeps no more.
        keep_best: Number of checkpoints to keep with the highest `validation_return` in their state, the
            earliest first where it is equal.
    """

    def __init__(
        self,
        run_dir: Path,
        run_name: str,
        *,
        keep_last: int | None = None,
        keep_every: int | float | None = None,
        keep_best: int = 0,
    ) -> None:
        self.folder = run_dir / "ckpts"
        self._run_name = run_name
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._keep_best = keep_best
        self._returns: dict[int, float | None] = {}  # by epoch

    @property
    def latest_policy(self) -> Path:
        """File of the weights after the last epoch."""
        return self.folder / "latest" / "policy.pt"

    def policy_weights(self, epoch: int) -> Path:
        """File of the weights after `epoch`."""
        return self.folder / "policy_weights" / f"policy_epoch_{epoch}.pt"

    def training_state(self, epoch: int) -> Path:
        """Folder of the training state after `epoch`."""
        return self.folder / "training_states" / f"{self._run_name}_epoch_{epoch}"

    def epochs(self) -> list[int]:
        """Epochs that have a training state, in ascending order."""
        return _epochs_in(self.folder / "training_states", self._run_name)

    def newest_epoch(self) -> int:
        """Epoch of the newest training state that is not damaged, for `resume`; warns about damaged ones.

        Raises:
            FileNotFoundError: there is no training state.
            ValueError: all are damaged.
        """
        epochs = self.epochs()
        if not epochs:
            raise FileNotFoundError(
                f"resume is set, but {self.folder} contains no training state: start the run without resume"
            )
        for epoch in reversed(epochs):
            try:
                check_training_state(self.training_state(epoch))
                return epoch
            except ValueError as error:
                amago_warning(f"the checkpoint of epoch {epoch} is skipped: {error}")
        raise ValueError(
            f"resume is set, but every training state in {self.folder} is damaged: load weights from "
            "policy_weights with load_checkpoint_from_path(path, is_accelerate_state=False), or start again"
        )

    def save(self, epoch: int, contents: TrainingState) -> None:
        """Writes the training state and the weights of `epoch`, and deletes checkpoints that need not be kept.

        Raises:
            OSError: they cannot be written, for example because the disk is full. Nothing is left behind.
        """
        target, weights = self.training_state(epoch), self.policy_weights(epoch)
        temporary = target.parent / f".{target.name}.{uuid4().hex}"
        with _naming_folder(self.folder):
            try:
                weights.parent.mkdir(parents=True, exist_ok=True)
                temporary.mkdir(parents=True)
                save_weights(contents.policy, temporary / weights.name)
                save_weights(contents.policy, temporary / "policy.pt")
                save_weights(contents.optimizer, temporary / "optimizer.pt")
                save_weights(contents.lr_schedule, temporary / "lr_schedule.pt")
                write_json(
                    _with_checksum({"format": FORMAT_VERSION, **contents.state}),
                    temporary / "state.json",
                    indent=None,
                )
                os.replace(temporary / weights.name, weights)
                _replace_folder(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        self._returns[epoch] = contents.state.get("validation_return")
        self._delete_others(epoch)

    def save_latest(self, policy: dict[str, Any]) -> None:
        """Replaces the latest policy; raises as `save`."""
        with _naming_folder(self.latest_policy.parent):
            save_weights(policy, self.latest_policy)

    def remove_unfinished(self) -> None:
        """Deletes what a killed process left behind while saving; a folder that it was replacing is restored.

        Only for the process that writes the run's checkpoints.
        """
        name = glob.escape(self._run_name)
        states = self.folder / "training_states"
        for replaced in states.glob(f".{name}_epoch_*{_REPLACED}"):
            target = states / replaced.name[1:].removesuffix(_REPLACED)
            if not target.exists():
                os.rename(replaced, target)
        for path in states.glob(f".{name}_epoch_*"):
            shutil.rmtree(path, ignore_errors=True)
        for folder in (self.folder.parent, self.folder / "policy_weights", self.latest_policy.parent):
            for path in folder.glob(f".*{UNFINISHED_SUFFIX}"):
                path.unlink(missing_ok=True)

    def _delete_others(self, newest: int) -> None:
        """Deletes checkpoints up to epoch `newest` that need not be kept.

        Later ones, if there are any, are damaged, or of a run that went on from an earlier checkpoint.
        """
        if self._keep_last is None:
            return
        epochs = [epoch for epoch in self.epochs() if epoch <= newest]
        kept = set(epochs[-self._keep_last :])
        if self._keep_every is not None:
            kept.update(epoch for epoch in epochs if epoch % self._keep_every == 0)
        if self._keep_best:
            returns = {epoch: self._validation_return(epoch) for epoch in epochs}
            # Checkpoints between two validations have the return of the first; its weights are nearest to it.
            known = sorted((value, -epoch) for epoch, value in returns.items() if value is not None)
            kept.update(-epoch for _, epoch in known[-self._keep_best :])
        for epoch in epochs:
            if epoch not in kept:
                self.policy_weights(epoch).unlink(missing_ok=True)
                _delete_folder(self.training_state(epoch))

    def _validation_return(self, epoch: int) -> float | None:
        """The mean return of the last validation before a checkpoint; None if there was none."""
        if epoch not in self._returns:
            try:
                self._returns[epoch] = read_state(self.training_state(epoch)).get("validation_return")
            except ValueError:  # damaged
                self._returns[epoch] = None
        return self._returns[epoch]


def load_training_state(path: Path, device: torch.device) -> TrainingState:
    """Loads a training state from its folder, with weights on `device`.

    Raises:
        FileNotFoundError: the folder does not exist; the message lists those that do.
        ValueError: the folder is damaged or has another format, e.g. accelerate's, which contains pickles. The
            message names the file and the checkpoint before this one.
    """
    state = read_state(path)
    with _naming_checkpoint_before(path):
        return TrainingState(
            policy=read_tensors(path / "policy.pt", device),
            optimizer=read_tensors(path / "optimizer.pt", "cpu"),
            lr_schedule=read_tensors(path / "lr_schedule.pt", "cpu"),
            state=state,
        )


def check_training_state(path: Path) -> None:
    """Compares the files of a training state with their checksums; raises as `load_training_state`."""
    read_state(path)
    with _naming_checkpoint_before(path):
        for name in TrainingState._fields[:-1]:
            check_tensors(path / f"{name}.pt")


def read_state(path: Path) -> dict[str, Any]:
    """Reads the JSON of a training state; raises as `load_training_state`."""
    if not path.is_dir():
        others = ", ".join(sorted(other.name for other in path.parent.glob("*_epoch_*"))) or "none"
        raise FileNotFoundError(
            f"{path} is not the folder of a training state; there are {others}. To load a file of weights, pass "
            "is_accelerate_state=False."
        )
    file = path / "state.json"
    if not file.is_file():
        raise ValueError(
            f"{path} contains no state.json, so it is not a training state of this library. To use the weights of "
            "another library, load a policy_weights/*.pt file with is_accelerate_state=False."
        )
    with _naming_checkpoint_before(path):
        try:
            state = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is damaged: {error}") from error
        if not isinstance(state, dict) or state.get("format") != FORMAT_VERSION:
            raise ValueError(
                f"{file} does not have format {FORMAT_VERSION}, which this version reads: it is damaged, or of "
                "another version of amago-runner"
            )
        if state.pop("crc32", None) not in (None, _checksum(state)):  # earlier versions wrote none
            raise ValueError(f"{file} is damaged: its checksum differs")
    return state


def _checksum(state: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(state, sort_keys=True).encode())


def _with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    as_read: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return {**as_read, "crc32": _checksum(as_read)}


@contextmanager
def _naming_checkpoint_before(path: Path) -> Iterator[None]:
    """Adds the checkpoint before that in `path` to the message of a ValueError or FileNotFoundError."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        name, _, number = path.name.rpartition("_epoch_")
        before = [e for e in _epochs_in(path.parent, name) if number.isdecimal() and e < int(number)]
        hint = f"the one before it is {name}_epoch_{before[-1]}" if before else "there is none before it"
        raise ValueError(f"{error}. It is part of the checkpoint {path.name}; {hint}.") from error


def _epochs_in(folder: Path, run_name: str) -> list[int]:
    """Epochs of the training states of a run in a folder, in ascending order."""
    pattern = re.compile(rf"{re.escape(run_name)}_epoch_(\d+)")
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


@contextmanager
def _naming_folder(folder: Path) -> Iterator[None]:
    """Names the folder in errors of the file system, which torch may hide behind an error of its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise OSError(
            cause.errno,
            f"the checkpoint cannot be written to {folder}: {cause.strerror}. If the disk is full, free space and "
            "resume the run; keep_last limits the number of checkpoints",
        ) from error


def _replace_folder(new: Path, target: Path) -> None:
    """Renames a folder to one that may exist; `Checkpointer.remove_unfinished` mends a kill in between."""
    replaced = target.with_name(f".{target.name}{_REPLACED}")
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():  # os.rename cannot replace a folder that is not empty
        os.rename(target, replaced)
    os.rename(new, target)
    shutil.rmtree(replaced, ignore_errors=True)


def _delete_folder(path: Path) -> None:
    """Deletes a folder; a killed process leaves either all of it, or only what `remove_unfinished` deletes."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}")
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def save_weights(tensors: dict[str, Any], path: Path) -> None:
    """Writes a state dict to a file, atomically; creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        torch.save(tensors, file)


def write_json(value: Any, path: Path, indent: int | None = 2) -> None:
    """Writes a JSON file atomically; creates the folder."""
    write_text(json.dumps(value, indent=indent, allow_nan=False) + "\n", path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The contents of a JSON file that another process replaces or deletes; None if there is none.

    A file that a power failure left empty counts as none.
    """
    try:
        content: dict[str, Any] | None = json.loads(path.read_text() or "null")
    except FileNotFoundError:
        return None
    return content


def write_text(text: str, path: Path) -> None:
    """Writes a text file atomically; creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode())
