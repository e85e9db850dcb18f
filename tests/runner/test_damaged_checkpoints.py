"""Damaged checkpoints are named and skipped; a full disk and a kill leave nothing behind."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amago.experiment import Experiment
from amago.experiment.checkpointer import (
    Checkpointer,
    TrainingState,
    check_training_state,
    load_training_state,
    read_state,
)
from amago.experiment.saved_policies import read_saved_policy
from amago.loading import DiskTrajDataset
from amago.loading.deferred_deletion import DeferredDeletion
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only

CPU = torch.device("cpu")
FILES = ["policy.pt", "optimizer.pt", "lr_schedule.pt", "state.json"]
MakeExperiment = Callable[..., Experiment]


def contents(epoch: int, width: int = 50) -> TrainingState:
    weights = {"w": torch.arange(width, dtype=torch.float32) + epoch}
    state = {"seed": 3, "counters": {"epoch": epoch, "env_steps": 12345}, "list": [0.1, None, "text"]}
    return TrainingState(weights, {"state": {0: {"m": torch.ones(7)}}}, {"last_epoch": epoch}, state)


@pytest.fixture
def checkpointer(tmp_path: Path) -> Checkpointer:
    checkpointer = Checkpointer(tmp_path, "run")
    for epoch in (2, 4):
        checkpointer.save(epoch, contents(epoch))
    return checkpointer


def flip(path: Path, place: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return bool(first == second)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_wherever_it_changes_what_is_loaded(
    checkpointer: Checkpointer, name: str
) -> None:
    folder = checkpointer.training_state(4)
    path = folder / name
    whole, expected = path.read_bytes(), load_training_state(folder, CPU)
    messages = []
    for place in np.random.default_rng(0).integers(0, len(whole), 100).tolist():
        path.write_bytes(whole)
        flip(path, place)
        try:
            loaded = load_training_state(folder, CPU)
        except ValueError as error:
            messages.append(str(error))
            continue
        # Without the key of a checksum that is misspelt now.
        state = {key: loaded.state[key] for key in expected.state}
        assert all(map(same, expected, loaded._replace(state=state)))
    assert len(messages) > 20
    assert all(name in message and "the one before it is run_epoch_2" in message for message in messages)


def test_the_weights_in_policy_weights_and_latest_are_checked(checkpointer: Checkpointer) -> None:
    checkpointer.save_latest({"w": torch.arange(4000.0)})
    for path in (checkpointer.latest_policy, checkpointer.policy_weights(4)):
        flip(path, path.stat().st_size // 2)
        with pytest.raises(ValueError, match=rf"{path} is damaged"):
            read_saved_policy(path)


def test_files_without_checksums_are_loaded(tmp_path: Path) -> None:
    weights = {"w": torch.arange(3.0)}
    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(weights, tmp_path / "unchecked.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(read_saved_policy(tmp_path / "old.pt"), weights)
    assert same(read_saved_policy(tmp_path / "unchecked.pt"), weights)


def test_a_checkpoint_of_an_earlier_version_has_no_checksum_in_its_state(checkpointer: Checkpointer) -> None:
    path = checkpointer.training_state(4) / "state.json"
    state = json.loads(path.read_text())
    del state["crc32"]
    path.write_text(json.dumps(state))
    assert read_state(path.parent)["seed"] == 3


@pytest.mark.parametrize("damage", ["bit", "cut", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_the_newest_checkpoint_that_is_not_damaged_is_resumed(
    checkpointer: Checkpointer, name: str, damage: str
) -> None:
    path = checkpointer.training_state(4) / name
    if damage == "bit":
        flip(path, min(150, path.stat().st_size // 2))  # behind the header of the first record
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    with pytest.warns(AmagoWarning, match=rf"epoch 4 is skipped: .*{name}"):
        assert checkpointer.newest_epoch() == 2


def test_a_resume_from_damaged_checkpoints_alone_is_an_error(checkpointer: Checkpointer) -> None:
    for epoch in (2, 4):
        (checkpointer.training_state(epoch) / "policy.pt").write_bytes(b"")
    with pytest.warns(AmagoWarning), pytest.raises(ValueError, match="every training state in"):
        checkpointer.newest_epoch()


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(make_experiment: MakeExperiment) -> None:
    options = {"epochs": 4, "ckpt_interval": 1, "keep_last": 2}
    for experiment in (make_experiment("a", **options), make_experiment("b", **options)):
        experiment.start()
        experiment.learn()
        experiment.close()
    whole = load_training_state(experiment.checkpointer.training_state(3), CPU)
    flip(experiment.checkpointer.training_state(3) / "optimizer.pt", 150)
    resumed = make_experiment("b", **options, resume=True)
    with pytest.warns(AmagoWarning, match="epoch 3 is skipped"):
        resumed.start()
    assert resumed.epoch == 3
    resumed.learn()
    again = load_training_state(resumed.checkpointer.training_state(3), CPU)
    assert same(whole.policy, again.policy)


def test_a_full_disk_names_the_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The system refuses to write files of more than 100 kB, as it refuses all on a full disk."""
    program = """
import resource, sys, torch
from pathlib import Path
from tests.runner.test_damaged_checkpoints import Checkpointer, contents
checkpointer = Checkpointer(Path(sys.argv[1]), "run")
checkpointer.save(1, contents(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for save in (lambda: checkpointer.save(2, contents(2, width=10**6)),
             lambda: checkpointer.save_latest(contents(2, width=10**6).policy)):
    try:
        save()
    except OSError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.count(f"the checkpoint cannot be written to {tmp_path}/ckpts") == 2, done.stderr
    assert "File too large" in done.stdout
    files = sorted(
        str(path.relative_to(tmp_path / "ckpts")) for path in tmp_path.rglob("*") if path.is_file()
    )
    assert files == [
        "policy_weights/policy_epoch_1.pt",
        *(f"training_states/run_epoch_1/{name}" for name in sorted(FILES)),
    ]


def test_what_a_killed_process_left_is_removed_at_the_next_start(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=1)
    experiment.start()
    experiment.learn()
    experiment.close()
    ckpts = experiment.run_dir / "ckpts"
    left = [
        ckpts / "latest" / ".policy.pt.1-2-3.part",
        ckpts / "policy_weights" / ".policy_epoch_1.pt.1-2-3.part",
        experiment.run_dir / ".run.json.1-2-3.part",
        ckpts / "training_states" / ".run_epoch_1.abc" / "policy.pt",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    resumed = make_experiment(epochs=2, resume=True)
    resumed.start()
    assert not [path for path in experiment.run_dir.rglob(".*") if path.name != ".wandb"]


def test_a_checkpoint_whose_replacement_was_killed_is_restored(checkpointer: Checkpointer) -> None:
    target = checkpointer.training_state(4)
    target.rename(target.with_name(f".{target.name}.replaced"))
    shutil.copytree(checkpointer.training_state(2), target.with_name(f".{target.name}.abc"))
    checkpointer.remove_unfinished()
    check_training_state(target)
    assert sorted(path.name for path in target.parent.iterdir()) == ["run_epoch_2", "run_epoch_4"]


@pytest.mark.parametrize("name", ["../mine", "/mine", "..", ".", "", "a/b", "a\0b"])
def test_a_checkpoint_that_lists_other_than_file_names_is_refused(
    make_dataset: Callable[..., DiskTrajDataset], name: str
) -> None:
    dataset = make_dataset()
    before = sorted(dataset.fifo_folder.parent.rglob("*"))
    with pytest.raises(ValueError, match="not a file name"):
        dataset.load_state_dict({"fifo": {"files": [name]}}, later_files_of=["000"])
    assert sorted(dataset.fifo_folder.parent.rglob("*")) == before


def test_only_the_files_of_the_last_resume_are_kept(tmp_path: Path, fill: Callable[..., list[Path]]) -> None:
    folder, newer_than_checkpoint = tmp_path / "fifo", tmp_path / "newer_than_checkpoint"
    folder.mkdir()
    for first in (0, 10, 20):
        names = [path.name for path in fill(folder, 5, first=first)]
        torn = folder / f".{names[0]}.1-2-3.part"
        torn.write_bytes(b"half")
        deletion = DeferredDeletion(folder, tmp_path / "on_hold", newer_than_checkpoint)
        deletion.load_state_dict({"files": []}, names, later_files_of=["000"])
        assert sorted(path.name for path in newer_than_checkpoint.iterdir()) == sorted(names)
        assert not torn.exists()


@pytest.mark.parametrize("change", ["shape", "sparse", "count", "nothing"])
def test_optimizer_moments_of_another_shape_are_refused(make_experiment: MakeExperiment, change: str) -> None:
    """The fused optimizer would read beyond their end."""
    experiment = make_experiment(epochs=1)
    experiment.start()
    experiment.learn()
    experiment.close()
    path = experiment.checkpointer.training_state(0) / "optimizer.pt"
    saved = torch.load(path, weights_only=True)
    moments = saved["state"][0]
    if change == "shape":
        moments["exp_avg"] = torch.zeros(1)
    elif change == "sparse":
        moments["exp_avg_sq"] = moments["exp_avg_sq"].to_sparse()
    elif change == "count":
        saved["param_groups"][0]["params"].append(1000)
    else:
        saved.clear()
    torch.save(saved, path)
    with pytest.raises(ValueError, match="optimizer"):
        make_experiment(epochs=2, resume=True).start()
