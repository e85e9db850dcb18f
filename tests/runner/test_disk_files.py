"""Files of the replay buffer: added, deleted, unfinished, and unusable ones."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amago.hindsight import parse_filename, save_trajectory
from amago.loading import DiskTrajDataset
from amago.utils import AmagoWarning


def test_new_files_are_drawn_from_the_next_epoch_on(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    for epoch in range(4):
        fill(dataset.fifo_folder, 2, first=2 * epoch)
        dataset.set_epoch(epoch)
        assert numbers(dataset) == set(range(2 * epoch + 2))


def test_a_file_that_vanishes_between_listing_and_reading_is_drawn_again(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    paths = fill(dataset.fifo_folder, 5)
    dataset.set_epoch(0)
    for path in paths[:4]:
        path.unlink()
    assert numbers(dataset) == {4}


def test_files_still_being_written_are_left_alone(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 1)
    unfinished = dataset.fifo_folder / ".env_00000001_5.npz.part"
    unfinished.write_bytes(b"half")
    dataset.set_epoch(0)
    assert numbers(dataset) == {0}
    assert unfinished.exists()


@pytest.fixture
def bad_file(make_traj, tmp_path) -> Callable[[str, Path], Path]:
    """Writes an unusable file of the given kind."""

    def write(way: str, folder: Path) -> Path:
        whole = save_trajectory(make_traj(5), tmp_path / "env_000000ff_7", "npz", "env").read_bytes()
        name, content = {
            "foreign name": ("notes.txt", b"hello"),
            "torn": ("env_000000ff_7.npz", whole[: len(whole) // 2]),
            "empty": ("env_000000ff_7.npz", b""),
            "pickled": ("env_000000ff_7.traj", pickle.dumps({"rews": [1.0]})),
            "torn traj": ("env_000000ff_7.traj", b"\x40\x00\x00\x00\x00\x00\x00\x00{"),
        }[way]
        path = folder / name
        path.write_bytes(content)
        return path

    return write


def epoch_numbers(dataset: DiskTrajDataset, epoch: int, numbers: Callable[..., set[int]]) -> set[int]:
    dataset.set_epoch(epoch)
    return numbers(dataset)


WAYS = ["foreign name", "torn", "empty", "pickled", "torn traj"]


@pytest.mark.parametrize("way", WAYS)
def test_an_unusable_file_is_quarantined_with_one_warning(make_dataset, fill, bad_file, way, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    path = bad_file(way, dataset.fifo_folder)
    with pytest.warns(AmagoWarning, match=path.name) as caught:
        drawn = [epoch_numbers(dataset, epoch, numbers) for epoch in range(3)]
    assert drawn == [{0, 1}] * 3
    assert len(caught) == 1
    assert not path.exists()
    assert (dataset.index.quarantine_folder / path.name).exists()


@pytest.mark.parametrize("way", WAYS)
def test_without_edit_rights_it_is_skipped_with_one_warning_and_stays(
    make_dataset, fill, bad_file, way, numbers
) -> None:
    dataset = make_dataset(edit=False)
    fill(dataset.fifo_folder, 2)
    path = bad_file(way, dataset.fifo_folder)
    with pytest.warns(AmagoWarning, match=path.name) as caught:
        drawn = [epoch_numbers(dataset, epoch, numbers) for epoch in range(3)]
    assert drawn == [{0, 1}] * 3
    assert len(caught) == 1
    assert path.exists()


def test_protected_takes_trajectories_under_any_name(make_dataset, make_traj, numbers) -> None:
    dataset = make_dataset()
    save_trajectory(make_traj(5, 7), dataset.protected_folder / "my demonstrations", "npz", "env")
    dataset.set_epoch(0)
    assert numbers(dataset) == {7}


def assert_ready_at(is_ready: Callable[[int, int], bool], minimum: int) -> None:
    assert [is_ready(held, minimum) for held in (minimum - 1, minimum, minimum + 1)] == [False, True, True]


def test_training_begins_at_the_minimum_size_and_not_one_later(tmp_path, fill) -> None:
    def is_ready(held: int, minimum: int) -> bool:
        dataset = DiskTrajDataset(tmp_path, f"{held} of {minimum}", 10, dset_min_size=minimum)
        fill(dataset.fifo_folder, held // 2)
        fill(dataset.protected_folder, held - held // 2, first=10)
        return dataset.ready_for_training

    assert_ready_at(is_ready, 3)
    with pytest.raises(AssertionError):  # the fault: more than the minimum asked for
        assert_ready_at(lambda held, minimum: held > minimum, 3)


def assert_notices_arrival(asks: Iterator[bool], arrive: Callable[[], object]) -> None:
    assert next(asks) is False
    arrive()
    assert next(asks) is True


def test_a_learner_that_waits_for_an_empty_buffer_notices_its_first_files(
    make_dataset, fill, tmp_path
) -> None:
    dataset = make_dataset(edit=False)
    asks = (dataset.ready_for_training for _ in range(2))
    assert_notices_arrival(asks, lambda: fill(dataset.fifo_folder, 1))

    other = DiskTrajDataset(tmp_path, "other", 10)
    listed_once = list(other.fifo_folder.iterdir())
    stale = (len(listed_once) >= 1 for _ in range(2))
    with pytest.raises(AssertionError):  # the fault: an old listing is asked
        assert_notices_arrival(stale, lambda: fill(other.fifo_folder, 1))


def test_the_oldest_fifo_files_are_deleted_beyond_the_limit(make_dataset, fill, numbers) -> None:
    dataset = make_dataset(dset_max_size=4)
    fill(dataset.protected_folder, 3, first=100)
    fill(dataset.fifo_folder, 7)
    metrics = dataset.on_end_of_collection(None)
    left = sorted(int(parse_filename(path).file_id, 16) for path in dataset.fifo_folder.iterdir())
    assert left == [3, 4, 5, 6]
    assert len(list(dataset.protected_folder.iterdir())) == 3
    folders = dataset.fifo_folder, dataset.protected_folder
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    assert metrics == {
        "Size on Disk (MB)": pytest.approx(size / 1e6),
        "Trajectory Files in FIFO": 4,
        "Trajectory Files in Protected": 3,
        "Trajectory Files Deleted": 3,
    }
    assert numbers(dataset) == {3, 4, 5, 6, 100, 101, 102}


def test_the_oldest_files_are_found_by_time_across_writers(make_dataset, fill, numbers) -> None:
    dataset = make_dataset(dset_max_size=2)
    fill(dataset.fifo_folder, 2, first=0, writer=9)
    fill(dataset.fifo_folder, 2, first=2, writer=1)
    dataset.on_end_of_collection(None)
    assert numbers(dataset) == {2, 3}


def test_an_infinite_limit_deletes_nothing(make_dataset, fill) -> None:
    dataset = make_dataset(dset_max_size=float("inf"))
    fill(dataset.fifo_folder, 5)
    assert dataset.on_end_of_collection(None)["Trajectory Files Deleted"] == 0


def test_without_edit_rights_nothing_is_deleted(make_dataset, fill) -> None:
    dataset = make_dataset(dset_max_size=1, edit=False)
    fill(dataset.fifo_folder, 3)
    dataset.on_end_of_collection(None)
    assert len(list(dataset.fifo_folder.iterdir())) == 3
    with pytest.raises(PermissionError, match="edit rights"):
        dataset.delete()


def assert_survives_foreign_names(delete_oldest: Callable[[], object]) -> None:
    try:
        delete_oldest()
    except (ValueError, IndexError) as error:
        raise AssertionError("a foreign name stopped the deletion") from error


def test_a_foreign_name_does_not_stop_the_deletion(make_dataset, fill, numbers) -> None:
    dataset = make_dataset(dset_max_size=1)
    fill(dataset.fifo_folder, 3)
    (dataset.fifo_folder / "README.md").write_text("mine")

    def by_splitting_names() -> None:
        sorted(dataset.fifo_folder.iterdir(), key=lambda path: int(path.stem.split("_")[2]))

    with pytest.raises(AssertionError):  # the fault: names are taken apart without a look
        assert_survives_foreign_names(by_splitting_names)
    with pytest.warns(AmagoWarning, match=r"README\.md"):
        assert_survives_foreign_names(lambda: dataset.on_end_of_collection(None))
    assert numbers(dataset) == {2}


def assert_file_is_found(
    dataset: DiskTrajDataset, write: Callable[[Path], object], numbers: Callable[..., set[int]]
) -> None:
    try:
        write(dataset.fifo_folder)
    except OSError as error:
        raise AssertionError("the file was lost") from error
    dataset.set_epoch(0)
    assert numbers(dataset) == {0}


def test_an_environment_name_with_a_slash_or_underscore_does_not_lose_the_file(
    make_dataset, fill, numbers
) -> None:
    dataset = make_dataset()

    def under_its_own_name(folder: Path) -> None:
        (folder / "ALE/Pong_v5_00000000_1.npz").write_bytes(b"")

    with pytest.raises(AssertionError):  # the fault: the name is part of the path as it is
        assert_file_is_found(dataset, under_its_own_name, numbers)
    assert_file_is_found(dataset, lambda folder: fill(folder, 1, env_name="ALE/Pong_v5"), numbers)


def test_delete_spares_protected_unless_told_not_to(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    fill(dataset.protected_folder, 2, first=2)
    dataset.delete()
    assert numbers(dataset) == {2, 3}
    dataset.delete(delete_protected=True)
    assert not dataset.ready_for_training


@pytest.mark.parametrize(
    ("name", "value"),
    [("dset_max_size", 0), ("dset_min_size", 0), ("sample_by", "rows"), ("cache_bytes", -1)],
)
def test_arguments_out_of_range_are_named(tmp_path, name, value) -> None:
    with pytest.raises(ValueError, match=name):
        DiskTrajDataset(tmp_path, "dset", **{"dset_max_size": 10, name: value})


def test_the_description_names_folder_and_number_of_files(make_dataset, fill) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    assert "2 trajectory files" in dataset.get_description()
    assert str(dataset.fifo_folder) in dataset.get_description()
