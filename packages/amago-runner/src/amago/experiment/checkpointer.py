"""Checkpointer: saves and loads the checkpoints of a run.

    {run folder}/ckpts/
        training_states/{run_name}_epoch_{n}/   policy.pt, optimizer.pt, lr_schedule.pt, state.json: to resume from
        policy_weights/policy_epoch_{n}.pt      weights only
        latest/policy.pt                        weights after the last epoch, read by collectors

All files and folders appear atomically. Tensors are loaded with `weights_only=True` and everything else is JSON,
so loading a checkpoint executes no code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch

from amago.experiment.saved_policies import read_tensors
from amago.hindsight import atomic_file

FORMAT_VERSION = 1


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
    """Saves and finds the checkpoints of one run.

    Args:
        run_dir: The run's folder.
        run_name: Name of the run, part of the names of training states.
        keep: Number of training states to keep, the newest; None keeps all.
    """

    def __init__(self, run_dir: Path, run_name: str, keep: int | None = None) -> None:
        self.folder = run_dir / "ckpts"
        self._run_name = run_name
        self._keep = keep

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
        pattern = re.compile(rf"{re.escape(self._run_name)}_epoch_(\d+)")
        folder = self.folder / "training_states"
        names = os.listdir(folder) if folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def newest_epoch(self) -> int:
        """Epoch of the newest training state, for `resume`; raises FileNotFoundError if there is none."""
        epochs = self.epochs()
        if not epochs:
            raise FileNotFoundError(
                f"resume is set, but {self.folder} contains no training state: start the run without resume"
            )
        return epochs[-1]

    def save(self, epoch: int, contents: TrainingState) -> None:
        """Writes the training state and the weights of `epoch`, and deletes training states beyond `keep`."""
        save_weights(contents.policy, self.policy_weights(epoch))
        target = self.training_state(epoch)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}.{uuid4().hex}"
        temporary.mkdir()
        try:
            save_weights(contents.policy, temporary / "policy.pt")
            save_weights(contents.optimizer, temporary / "optimizer.pt")
            save_weights(contents.lr_schedule, temporary / "lr_schedule.pt")
            write_json({"format": FORMAT_VERSION, **contents.state}, temporary / "state.json", indent=None)
            replaced = target.parent / f".{target.name}.{uuid4().hex}"
            if target.exists():  # os.rename cannot replace a folder that is not empty
                os.rename(target, replaced)
            os.rename(temporary, target)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if self._keep is not None:
            for old in self.epochs()[: -self._keep]:
                shutil.rmtree(self.training_state(old))

    def save_latest(self, policy: dict[str, Any]) -> None:
        """Replaces the latest policy."""
        save_weights(policy, self.latest_policy)

    def remove_unfinished(self) -> None:
        """Deletes the temporary folders of a process that was killed while saving."""
        for path in (self.folder / "training_states").glob(f".{self._run_name}_epoch_*"):
            shutil.rmtree(path, ignore_errors=True)


def load_training_state(path: Path, device: torch.device) -> TrainingState:
    """Loads a training state from its folder, with weights on `device`.

    Raises:
        FileNotFoundError: the folder does not exist; the message lists those that do.
        ValueError: the folder is damaged or has another format, e.g. accelerate's, which contains pickles.
    """
    state = read_state(path)
    return TrainingState(
        policy=read_tensors(path / "policy.pt", device),
        optimizer=read_tensors(path / "optimizer.pt", "cpu"),
        lr_schedule=read_tensors(path / "lr_schedule.pt", "cpu"),
        state=state,
    )


def read_state(path: Path) -> dict[str, Any]:
    """Reads the JSON of a training state; raises as `load_training_state`."""
    if not path.is_dir():
        others = ", ".join(sorted(other.name for other in path.parent.glob("*_epoch_*"))) or "none"
        raise FileNotFoundError(
            f"{path} is not the folder of a training state; there are {others}. To load a file of weights, pass "
            "is_accelerate_state=False."
        )
    if not (path / "state.json").is_file():
        raise ValueError(
            f"{path} contains no state.json, so it is not a training state of this library. To use the weights of "
            "another library, load a policy_weights/*.pt file with is_accelerate_state=False."
        )
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text())
    except ValueError as error:
        raise ValueError(f"{path / 'state.json'} is damaged ({error}): load an earlier checkpoint") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT_VERSION:
        raise ValueError(
            f"{path} does not have format {FORMAT_VERSION}, which this version reads: install the version of "
            "amago-runner that wrote it"
        )
    return state


def save_weights(tensors: dict[str, Any], path: Path) -> None:
    """Writes a state dict to a file, atomically; creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        torch.save(tensors, file)


def write_json(value: Any, path: Path, indent: int | None = 2) -> None:
    """Writes a JSON file atomically; creates the folder."""
    write_text(json.dumps(value, indent=indent, allow_nan=False) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Writes a text file atomically; creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode())
