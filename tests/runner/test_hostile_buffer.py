"""A replay buffer with unusable files: they are quarantined and named, and training goes on with the others."""

import errno
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from amago.hindsight import FrozenTraj, save_trajectory
from amago.loading import BatchLoader, DiskTrajDataset, RLDataset
from amago.loading.file_sampler import MAX_SCHEMA_MISMATCHES
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only


class RunsCode:
    """Unpickling it makes a folder."""

    def __reduce__(self) -> object:
        return os.mkdir, ("code has run",)


def archive(folder: Path, traj: FrozenTraj, name: str, array: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about repeated names
        with zipfile.ZipFile(folder / "env_00000100_1.npz", "w") as target:
            for member_name, content in (*traj.to_dict().items(), (name, array)):
                with target.open(f"{member_name}.npy", "w") as member:
                    np.lib.format.write_array(member, content, allow_pickle=True)


def pickled_array(folder: Path, traj: FrozenTraj) -> None:
    archive(folder, traj, "_OBS_KEY_code", np.array([RunsCode()] * 6, dtype=object))


def repeated_array(folder: Path, traj: FrozenTraj) -> None:
    archive(folder, traj, "actions", traj.actions)


def name_outside_the_folder(folder: Path, traj: FrozenTraj) -> None:
    archive(folder, traj, "../../outside", traj.rews)


def torn(folder: Path, traj: FrozenTraj) -> None:
    path = save_trajectory(traj, folder / "env_00000100_1", "npz", "env")
    path.write_bytes(path.read_bytes()[:-100])


def other_arrays(folder: Path, traj: FrozenTraj) -> None:
    archive(folder, traj, "_OBS_KEY_more", traj.obs["observation"])


def folder_with_content(folder: Path, traj: FrozenTraj) -> None:
    (folder / "env_00000100_1.npz" / "more").mkdir(parents=True)


def link_to_a_device(folder: Path, traj: FrozenTraj) -> None:
    os.symlink("/dev/zero", folder / "env_00000100_1.npz")


def link_to_itself(folder: Path, traj: FrozenTraj) -> None:
    os.symlink(folder / "env_00000100_1.npz", folder / "env_00000100_1.npz")


def pipe(folder: Path, traj: FrozenTraj) -> None:
    os.mkfifo(folder / "env_00000100_1.npz")


def undecodable_name(folder: Path, traj: FrozenTraj) -> None:
    (folder / os.fsdecode(b"\xff\xfe_00000100_1.npz")).write_bytes(b"")


KINDS = [
    pickled_array,
    repeated_array,
    name_outside_the_folder,
    torn,
    other_arrays,
    folder_with_content,
    link_to_a_device,
    link_to_itself,
    pipe,
    undecodable_name,
]


@pytest.mark.parametrize("put", KINDS)
@pytest.mark.parametrize("relabeler", [None, lambda traj: traj], ids=["windows", "whole"])
def test_a_hostile_file_is_quarantined_with_one_warning(
    make_dataset, fill, make_traj, numbers, tmp_path, monkeypatch, put, relabeler
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset: DiskTrajDataset = make_dataset(relabeler=relabeler)
    fill(dataset.fifo_folder, 2)
    put(dataset.fifo_folder, make_traj(5))
    everything = {path.name for path in tmp_path.iterdir()}
    with pytest.warns(AmagoWarning, match=r"moved .*_00000100_1\.npz to ") as caught:
        drawn = [numbers_of_epoch(dataset, epoch, numbers) for epoch in range(3)]
    assert drawn == [{0, 1}] * 3
    assert len(caught) == 1
    assert len(list(dataset.index.quarantine_folder.iterdir())) == 1
    assert {path.name for path in tmp_path.iterdir()} == everything, "no code has run, no file was extracted"


def numbers_of_epoch(dataset: RLDataset, epoch: int, numbers: Callable[[RLDataset], set[int]]) -> set[int]:
    dataset.set_epoch(epoch)
    return numbers(dataset)


def test_loader_workers_quarantine_files_with_other_arrays_from_the_first_batch_on(
    make_dataset, fill, make_traj
) -> None:
    dataset = make_dataset(items=400)
    fill(dataset.fifo_folder, 20)
    strays = fill_with_wider_actions(dataset.fifo_folder, make_traj, 2, time=1)
    loader = BatchLoader(dataset, batch_size=40, batches_per_epoch=10, workers=2, device="cpu", seed=0)
    drawn = {n for batch in loader.epoch(0) for n in batch.obs["observation"][:, 0, 0].tolist()}
    loader.close()
    assert drawn == set(range(20))
    assert {path.name for path in dataset.index.quarantine_folder.iterdir()} == strays


def fill_with_wider_actions(
    folder: Path, make_traj: Callable[..., FrozenTraj], count: int, time: int = 1_800_000_000
) -> set[str]:
    """Writes files whose actions are wider, by default newer than all others; returns their names."""
    names = [f"env_00001{number:03}_{time}" for number in range(count)]
    for number, name in enumerate(names):
        save_trajectory(make_traj(5, number, width=3), folder / name, "npz", "env")
    return {f"{name}.npz" for name in names}


def test_the_newest_file_decides_which_arrays_are_right(make_dataset, make_traj, fill) -> None:
    dataset = make_dataset(items=100)
    (old,) = fill(dataset.protected_folder, 1)
    fill_with_wider_actions(dataset.fifo_folder, make_traj, 3)
    dataset.set_epoch(0)
    with pytest.warns(AmagoWarning, match=r"actions is float32\(2,\) instead of float32\(3,\)"):
        assert {dataset[i].actions.shape[1] for i in range(100)} == {3}
    assert [path.name for path in dataset.index.quarantine_folder.iterdir()] == [old.name]


def test_many_files_with_other_arrays_stop_training_with_both_kinds_and_a_remedy(
    make_dataset, fill, make_traj, numbers
) -> None:
    dataset = make_dataset(items=400)
    fill(dataset.fifo_folder, 20)
    fill_with_wider_actions(dataset.fifo_folder, make_traj, 3 * MAX_SCHEMA_MISMATCHES, time=1)
    dataset.set_epoch(0)
    message = r"float32\(3,\) instead of float32\(2,\).*another dset_name"
    with pytest.warns(AmagoWarning), pytest.raises(RuntimeError, match=message):
        numbers(dataset)
    assert len(list(dataset.index.quarantine_folder.iterdir())) == MAX_SCHEMA_MISMATCHES


def test_training_stops_when_no_file_can_be_read(make_dataset) -> None:
    dataset = make_dataset()
    for number in range(3):
        (dataset.fifo_folder / f"env_0000000{number}_1.npz").write_bytes(b"")
    dataset.set_epoch(0)
    with (
        pytest.warns(AmagoWarning),
        pytest.raises(RuntimeError, match=r"no trajectory file in .* can be read"),
    ):
        dataset[0]


def test_a_quarantine_that_cannot_be_created_does_not_stop_training(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    (dataset.fifo_folder / "env_00000100_1.npz").write_bytes(b"")
    dataset.index.quarantine_folder.write_text("a file in place of the folder")
    with pytest.warns(AmagoWarning, match=r"skipping .* failed"):
        assert numbers(dataset) == {0, 1}


def test_an_error_in_a_relabeler_is_raised_unchanged(make_dataset, fill) -> None:
    def needs_a_map(traj: object) -> object:
        raise FileNotFoundError(errno.ENOENT, "no map of the maze", "maze.json")

    dataset = make_dataset(relabeler=needs_a_map)
    fill(dataset.fifo_folder, 2)
    with pytest.raises(FileNotFoundError, match="no map"):
        dataset[0]
