"""Checkpoints appear atomically, replace one another safely, and are loaded without executing code from them."""

from pathlib import Path

import pytest
import torch

from amago.experiment.checkpointer import Checkpointer, TrainingState, load_training_state
from amago.experiment.saved_policies import read_saved_policy

CPU = torch.device("cpu")


def state(value: float) -> TrainingState:
    return TrainingState(
        {"w": torch.tensor([value])}, {"state": {}, "param_groups": []}, {"last_epoch": 3}, {"value": value}
    )


def test_a_saved_training_state_and_policy_are_loaded_unchanged(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run")
    checkpointer.save(3, state(1.5))
    loaded = load_training_state(checkpointer.training_state(checkpointer.newest_epoch()), CPU)
    assert torch.equal(loaded.policy["w"], torch.tensor([1.5]))
    assert loaded.state["value"] == 1.5
    assert torch.equal(read_saved_policy(checkpointer.policy_weights(3), CPU)["w"], torch.tensor([1.5]))


def test_epochs_are_sorted_as_numbers(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run_1")
    for epoch in (10, 9, 100):
        checkpointer.save(epoch, state(epoch))
    (tmp_path / "ckpts" / "training_states" / "run_epoch_7").mkdir()
    assert checkpointer.epochs() == [9, 10, 100]


def test_saving_an_epoch_again_replaces_it(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run")
    checkpointer.save(0, state(1.0))
    checkpointer.save(0, state(2.0))
    assert load_training_state(checkpointer.training_state(0), CPU).state["value"] == 2.0
    assert [path.name for path in checkpointer.training_state(0).parent.iterdir()] == ["run_epoch_0"]


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run")
    with pytest.raises(TypeError):
        checkpointer.save(0, TrainingState({}, {}, {}, {"value": object()}))
    assert list((tmp_path / "ckpts" / "training_states").iterdir()) == []


def test_an_unfinished_checkpoint_of_a_killed_process_is_ignored_and_removed(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run")
    checkpointer.save(0, state(1.0))
    (tmp_path / "ckpts" / "training_states" / ".run_epoch_1.abc").mkdir()
    assert checkpointer.epochs() == [0]
    checkpointer.remove_unfinished()
    assert [path.name for path in checkpointer.training_state(0).parent.iterdir()] == ["run_epoch_0"]


def weights(checkpointer: Checkpointer) -> list[int]:
    folder = checkpointer.policy_weights(0).parent
    return sorted(int(path.stem.rpartition("_")[2]) for path in folder.iterdir())


def test_only_the_newest_checkpoints_are_kept_with_their_weights(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run", keep_last=2)
    for epoch in (8, 9, 10):
        checkpointer.save(epoch, state(epoch))
    assert checkpointer.epochs() == [9, 10]
    assert weights(checkpointer) == [9, 10]


def test_all_checkpoints_are_kept_without_keep_last(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run", keep_best=1)
    for epoch in range(30):
        checkpointer.save(epoch, state(epoch))
    assert checkpointer.epochs() == weights(checkpointer) == list(range(30))


def test_checkpoints_are_kept_by_interval_and_by_validation_return(tmp_path: Path) -> None:
    returns = {0: None, 1: 5.0, 2: 1.0, 3: 9.0, 4: 9.0, 5: 2.0, 6: 3.0, 7: 4.0}
    for epoch, value in returns.items():
        # A new object each time: a resumed run reads the returns of earlier checkpoints.
        checkpointer = Checkpointer(tmp_path, "run", keep_last=2, keep_every=3, keep_best=2)
        saved = state(epoch)
        saved.state["validation_return"] = value
        checkpointer.save(epoch, saved)
    assert checkpointer.epochs() == weights(checkpointer) == [0, 3, 4, 6, 7]


def test_of_the_checkpoints_after_the_best_validation_the_first_is_kept(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run", keep_last=1, keep_best=1)
    for epoch, value in enumerate([1.0, 1.0, 5.0, 5.0, 5.0, 2.0, 2.0]):
        saved = state(epoch)
        saved.state["validation_return"] = value
        checkpointer.save(epoch, saved)
    assert checkpointer.epochs() == [2, 6]


def test_the_checkpoint_just_saved_is_kept_beside_later_ones(tmp_path: Path) -> None:
    """Later ones are there after a resume that passed over damaged ones."""
    for epoch in (4, 8, 9, 5):
        Checkpointer(tmp_path, "run", keep_last=1).save(epoch, state(epoch))
    assert Checkpointer(tmp_path, "run").epochs() == [5, 9]


class Payload:
    """Unpickling this creates a file, which proves that code ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "policy.pt", tmp_path / "code_ran"
    torch.save({"w": Payload(proof)}, path)
    with pytest.raises(ValueError, match=str(path)):
        read_saved_policy(path, CPU)
    assert not proof.exists()
    torch.load(path, weights_only=False)
    assert proof.exists()


def test_a_training_state_of_accelerate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "random_states_0.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="is_accelerate_state=False"):
        load_training_state(tmp_path, CPU)


@pytest.mark.parametrize("name", ["policy.pt", "optimizer.pt", "lr_schedule.pt", "state.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    checkpointer = Checkpointer(tmp_path, "run")
    checkpointer.save(0, state(1.0))
    path = checkpointer.training_state(0) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=name):
        load_training_state(checkpointer.training_state(0), CPU)


def test_the_error_for_a_missing_checkpoint_lists_those_that_exist(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, "run")
    checkpointer.save(0, state(1.0))
    with pytest.raises(FileNotFoundError, match="there are run_epoch_0"):
        load_training_state(checkpointer.training_state(1), CPU)
    with pytest.raises(FileNotFoundError, match="is_accelerate_state=False"):
        load_training_state(checkpointer.policy_weights(0), CPU)
