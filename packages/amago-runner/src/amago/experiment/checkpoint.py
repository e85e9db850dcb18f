"""Checkpoints on disk: weights for everybody, training states to resume from, the latest policy for collectors.

    {run folder}/ckpts/
        training_states/{run_name}_epoch_{n}/   policy.pt, optimizer.pt, state.json
        policy_weights/policy_epoch_{n}.pt
        latest/policy.pt

Whatever another process may read appears whole: it is written aside, in the same folder, and then renamed.
Tensors are read with `weights_only=True` and everything else is JSON, so reading a checkpoint runs no code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch

FORMAT_VERSION = 1


class TrainingState(NamedTuple):
    """What a run continues from; `state` is JSON."""

    policy: dict[str, Any]
    optimizer: dict[str, Any]
    state: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        run_dir: the run's folder.
        run_name: its name, part of the names of training states.
    """

    def __init__(self, run_dir: Path, run_name: str) -> None:
        self.root = run_dir / "ckpts"
        self._run_name = run_name

    @property
    def latest_policy(self) -> Path:
        """Where the weights after the last epoch are."""
        return self.root / "latest" / "policy.pt"

    def policy_weights(self, epoch: int) -> Path:
        """Where the weights after `epoch` are."""
        return self.root / "policy_weights" / f"policy_epoch_{epoch}.pt"

    def training_state(self, epoch: int) -> Path:
        """The folder to resume from after `epoch`."""
        return self.root / "training_states" / f"{self._run_name}_epoch_{epoch}"

    def epochs(self) -> list[int]:
        """Epochs that have a training state, ascending."""
        pattern = re.compile(rf"{re.escape(self._run_name)}_epoch_(\d+)")
        folder = self.root / "training_states"
        names = os.listdir(folder) if folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def save(self, epoch: int, contents: TrainingState) -> None:
        """Writes the training state and the weights of `epoch`; replaces them if they exist."""
        write_whole(self.policy_weights(epoch), lambda path: _save(contents.policy, path))
        target = self.training_state(epoch)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.parent / f".{target.name}.{uuid4().hex}"
        aside.mkdir()
        _save(contents.policy, aside / "policy.pt")
        _save(contents.optimizer, aside / "optimizer.pt")
        _write_text(
            json.dumps({"format": FORMAT_VERSION, **contents.state}, allow_nan=False), aside / "state.json"
        )
        if target.exists():
            # A folder cannot be renamed onto one that is not empty; the old one goes only when the new is whole.
            old = target.parent / f".{target.name}.{uuid4().hex}"
            os.rename(target, old)
            os.rename(aside, target)
            shutil.rmtree(old)
        else:
            os.rename(aside, target)

    def save_latest(self, policy: dict[str, Any]) -> None:
        """Replaces the latest policy."""
        write_whole(self.latest_policy, lambda path: _save(policy, path))

    def prune(self, keep: int) -> None:
        """Deletes all training states but the newest `keep`; weights stay."""
        for epoch in self.epochs()[:-keep]:
            shutil.rmtree(self.training_state(epoch))


def load_policy(path: Path, device: torch.device) -> dict[str, Any]:
    """The weights in a file.

    Raises:
        FileNotFoundError: says what is there instead.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there are no policy weights at {path}{what_is_there(path)}")
    weights: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return weights


def load_training_state(path: Path, device: torch.device) -> TrainingState:
    """The training state in a folder.

    Raises:
        FileNotFoundError: says what is there instead.
        ValueError: the folder is of another format, e.g. accelerate's own, which holds pickles.
    """
    if not path.is_dir():
        hint = ". Weights alone are loaded with is_accelerate_state=False." if path.is_file() else ""
        raise FileNotFoundError(f"there is no training state at {path}{what_is_there(path)}{hint}")
    if not (path / "state.json").is_file():
        raise ValueError(
            f"{path} holds no state.json, so it is no training state of this library. To use the weights of "
            "another, load its policy_weights/*.pt with is_accelerate_state=False."
        )
    state = json.loads((path / "state.json").read_text())
    if state.get("format") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format {state.get('format')!r}, this version reads {FORMAT_VERSION}: "
            "install the amago-runner that wrote it"
        )
    return TrainingState(
        load_policy(path / "policy.pt", device),
        load_policy(path / "optimizer.pt", torch.device("cpu")),
        state,
    )


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Has `write` fill a file aside of `path`, then renames it: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{uuid4().hex}"
    try:
        write(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(value: Any, path: Path) -> None:
    """Writes JSON for people and programs, whole."""
    write_whole(path, lambda aside: _write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", aside))


def write_text(text: str, path: Path) -> None:
    """Writes text, whole."""
    write_whole(path, lambda aside: _write_text(text, aside))


def _write_text(text: str, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _save(tensors: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def what_is_there(path: Path) -> str:
    """What stands at a path that is not what was asked for, or beside it; for error messages."""
    if path.is_dir():
        return f": that is a folder with {_names(path)}, name a file"
    if path.exists():
        return ": that is a file"
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    return f": it does not exist; the folder {path.parent} has {_names(path.parent)}"


def _names(folder: Path) -> str:
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    return ", ".join(names) or "no files"
