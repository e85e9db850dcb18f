"""Checkpoints appear whole, replace one another safely, and are read without running code from them."""

import pickle
from pathlib import Path

import pytest
import torch

from amago.experiment.checkpointer import (
    CheckpointFolder,
    TrainingState,
    load_policy,
    load_training_state,
    write_whole,
)

CPU = torch.device("cpu")


def state(value: float) -> TrainingState:
    return TrainingState({"w": torch.tensor([value])}, {"state": {}, "param_groups": []}, {"value": value})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run")
    folder.save(3, state(1.5))
    loaded = load_training_state(folder.training_state(3), CPU)
    assert torch.equal(loaded.policy["w"], torch.tensor([1.5]))
    assert loaded.state["value"] == 1.5
    assert torch.equal(load_policy(folder.policy_weights(3), CPU)["w"], torch.tensor([1.5]))


def test_epochs_are_listed_by_number(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run_1")
    for epoch in (10, 9, 100):
        folder.save(epoch, state(epoch))
    (tmp_path / "ckpts" / "training_states" / "run_epoch_7").mkdir()
    (tmp_path / "ckpts" / "training_states" / ".run_1_epoch_11.abc").mkdir()
    assert folder.epochs() == [9, 10, 100]


def test_saving_an_epoch_again_replaces_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run")
    folder.save(0, state(1.0))
    folder.save(0, state(2.0))
    assert load_training_state(folder.training_state(0), CPU).state["value"] == 2.0
    assert [path.name for path in folder.training_state(0).parent.iterdir()] == ["run_epoch_0"]


class PowerCut(Exception):
    """Stands for what interrupts a write."""


def write_in_place(path: Path) -> None:
    """The fault: a reader can meet the first half."""
    path.write_bytes(b"half")
    raise PowerCut


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    path.write_bytes(b"old and whole")
    with pytest.raises(PowerCut):
        write_whole(path, write_in_place)
    assert path.read_bytes() == b"old and whole"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(PowerCut):
        write_in_place(path)
    assert path.read_bytes() != b"old and whole"


def test_a_state_that_cannot_be_written_does_not_appear(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run")
    with pytest.raises(TypeError):
        folder.save(0, TrainingState({}, {}, {"value": object()}))
    assert folder.epochs() == []


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run")
    for epoch in (8, 9, 10):
        folder.save(epoch, state(epoch))
    folder.prune(2)
    assert folder.epochs() == [9, 10]
    folder.prune(5)
    assert folder.epochs() == [9, 10]


class Payload:
    """Unpickling this would create a file: proof that code ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_weights_that_hold_code_are_refused_without_running_it(tmp_path: Path) -> None:
    path, proof = tmp_path / "policy.pt", tmp_path / "code_ran"
    torch.save({"w": Payload(proof)}, path)
    with pytest.raises(pickle.UnpicklingError):
        load_policy(path, CPU)
    assert not proof.exists()
    torch.load(path, weights_only=False)
    assert proof.exists()


def test_accelerates_own_state_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "random_states_0.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="is_accelerate_state=False"):
        load_training_state(tmp_path, CPU)


def test_missing_weights_name_what_is_there(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path, "run").save(4, state(0.0))
    with pytest.raises(FileNotFoundError, match=r"policy_epoch_4\.pt"):
        load_policy(CheckpointFolder(tmp_path, "run").policy_weights(5), CPU)


def test_what_is_missing_is_told_by_what_is_there(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run")
    folder.save(0, state(1.0))
    weights, training = folder.policy_weights(0), folder.training_state(0)
    with pytest.raises(
        FileNotFoundError, match=r"epoch_1\.pt: it does not exist; the folder .* has policy_epoch_0\.pt"
    ):
        load_policy(folder.policy_weights(1), CPU)
    with pytest.raises(
        FileNotFoundError, match=r"that is a folder with optimizer\.pt, policy\.pt, state\.json, name"
    ):
        load_policy(training, CPU)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_policy(tmp_path / "elsewhere" / "policy.pt", CPU)
    with pytest.raises(
        FileNotFoundError, match=r"that is a file\. Weights alone are loaded with is_accelerate_state=False"
    ):
        load_training_state(weights, CPU)
