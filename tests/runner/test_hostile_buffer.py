"""A buffer into which anything was put: learners go on with the good trajectories and say which are not."""

import errno
import os
import pickle
import struct
import threading
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from amago.hindsight import (
    CorruptTrajectoryError,
    FrozenTraj,
    NoOpRelabeler,
    TrajectoryTooLargeError,
    memory_limit,
    save_trajectory,
)
from amago.loading import DiskTrajDataset, MixtureOfDatasets, drawing, files, quarantine
from amago.loading import reader as reading
from amago.loading import BatchLoader
from amago.loading.collate import UnlikeSamplesError
from amago.loading.packing import private_memory
from amago.utils import AmagoWarning

Fill = Callable[..., list[Path]]


def archive(path: Path, traj: FrozenTraj, *more: tuple[str, np.ndarray], method: int = 0) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(path, "w", method) as target:
            for name, array in (*traj.to_dict().items(), *more):
                with target.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=True)


class RunsCode:
    """Unpickling it makes a folder."""

    def __reduce__(self) -> object:
        return os.mkdir, ("code has run",)


def pickled_member(folder: Path, traj: FrozenTraj) -> None:
    archive(folder / "env_00000100_1.npz", traj, ("_OBS_KEY_code", np.array([RunsCode()] * 6, dtype=object)))


def twice_the_same_member(folder: Path, traj: FrozenTraj) -> None:
    archive(folder / "env_00000100_1.npz", traj, ("actions", traj.actions))


def bomb(folder: Path, traj: FrozenTraj) -> None:
    zeros = np.zeros((len(traj) + 1, 60_000_000), np.uint8)
    archive(folder / "env_00000100_1.npz", traj, ("_OBS_KEY_zeros", zeros), method=zipfile.ZIP_DEFLATED)


def header_of_gigabytes(folder: Path, traj: FrozenTraj) -> None:
    archive(folder / "env_00000100_1.npz", traj, method=zipfile.ZIP_DEFLATED)
    with (
        zipfile.ZipFile(folder / "env_00000100_1.npz", "a", zipfile.ZIP_DEFLATED) as target,
        target.open("_OBS_KEY_zeros.npy", "w") as member,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(traj) + 1, 10**9)}
        np.lib.format.write_array_header_1_0(member, header)
        member.write(bytes(10**5))


def header_of_terabytes(folder: Path, traj: FrozenTraj) -> None:
    (folder / "env_00000100_1.traj").write_bytes(struct.pack("<Q", 2**42) + b"{" + bytes(500))


def header_that_is_a_list(folder: Path, traj: FrozenTraj) -> None:
    (folder / "env_00000100_1.traj").write_bytes(struct.pack("<Q", 2) + b"[]" + bytes(500))


def rows_missing(folder: Path, traj: FrozenTraj) -> None:
    archive(folder / "env_00000100_1.npz", traj, ("_OBS_KEY_short", traj.obs["observation"][:-1]))


def name_out_of_the_folder(folder: Path, traj: FrozenTraj) -> None:
    archive(folder / "env_00000100_1.npz", traj, ("../../escaped", traj.rews))


def folder_with_content(folder: Path, traj: FrozenTraj) -> None:
    (folder / "env_00000100_1.npz" / "more").mkdir(parents=True)


def link_to_a_device(folder: Path, traj: FrozenTraj) -> None:
    os.symlink("/dev/zero", folder / "env_00000100_1.npz")


def bytes_for_a_name(folder: Path, traj: FrozenTraj) -> None:
    (folder / os.fsdecode(b"\xff\xfe_00000100_1.npz")).write_bytes(b"")


HOSTILE = [
    pickled_member,
    twice_the_same_member,
    bomb,
    header_of_gigabytes,
    header_of_terabytes,
    header_that_is_a_list,
    rows_missing,
    name_out_of_the_folder,
    folder_with_content,
    link_to_a_device,
    bytes_for_a_name,
]


@pytest.mark.parametrize(
    ("put", "relabeler"),
    [pytest.param(put, None, id=f"{put.__name__}-windows") for put in HOSTILE]
    + [
        pytest.param(put, lambda traj: traj, id=f"{put.__name__}-whole") for put in HOSTILE if put is not bomb
    ],
)
def test_a_hostile_file_is_quarantined_at_no_cost(
    make_dataset, fill, make_traj, numbers, tmp_path, monkeypatch, put, relabeler
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset: DiskTrajDataset = make_dataset(relabeler=relabeler)
    fill(dataset.fifo_folder, 2)
    put(dataset.fifo_folder, make_traj(5))
    everything = {path.name for path in tmp_path.iterdir()}
    tracemalloc.start()
    with pytest.warns(AmagoWarning) as caught:
        drawn = [numbers(dataset) for dataset.epoch in range(3)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert drawn == [{0, 1}] * 3
    assert len(caught) == 1
    assert len(list(dataset.index.quarantine_folder.iterdir())) == 1
    assert peak < 8 << 20
    assert {path.name for path in tmp_path.iterdir()} == everything, "nothing has run, nothing has come out"


def test_the_windows_of_a_batch_take_no_memory_out_of_proportion(
    make_dataset, fill, make_traj, monkeypatch
) -> None:
    """However large the machine is: what one window may take, all windows of the batch may."""
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 1 << 50)
    dataset = make_dataset(items=40, cache_bytes=0)
    fill(dataset.fifo_folder, 2)
    bomb(dataset.fifo_folder, make_traj(5))
    dataset.set_epoch(0)
    tracemalloc.start()
    with pytest.warns(AmagoWarning, match=r"for one window, .* Read shorter windows") as caught:
        drawn = dataset.draw_batch(0, 40, private_memory).unpack().obs["observation"][:, 0, 0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(drawn.tolist()) == {0.0, 1.0}
    assert peak < 8 << 20
    assert len(caught) == 1
    assert "torn" not in str(caught[0].message)


def test_a_file_too_large_to_be_read_whole_is_an_error_with_the_remedy_and_stays(
    make_dataset, fill, make_traj, monkeypatch
) -> None:
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 1 << 30)
    dataset = make_dataset(items=40, relabeler=lambda traj: traj)
    fill(dataset.fifo_folder, 2)
    bomb(dataset.fifo_folder, make_traj(5))
    dataset.set_epoch(0)
    with pytest.raises(TrajectoryTooLargeError, match=r"env_00000100_1\.npz needs 36\d+ bytes") as caught:
        dataset.draw_batch(0, 40, private_memory)
    assert f"may take {1 << 28}, a quarter of the memory. Read windows of it" in str(caught.value)
    assert len(list(dataset.fifo_folder.iterdir())) == 3
    assert not dataset.index.quarantine_folder.exists()


def test_a_second_look_takes_no_more_memory_than_a_piece_of_the_file(make_dataset, make_traj) -> None:
    dataset = make_dataset()
    bomb(dataset.fifo_folder, make_traj(5))
    dataset.index.refresh(force=True)
    (file,) = dataset.fifo.ordered
    tracemalloc.start()
    assert not dataset._drawer.quarantine.is_bad(file, CorruptTrajectoryError("seen through a cache"))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_loader_workers_and_quarantines_go_together(make_dataset, fill, make_traj) -> None:
    dataset = make_dataset(items=40)
    fill(dataset.fifo_folder, 2)
    header_of_gigabytes(dataset.fifo_folder, make_traj(5))
    loader = BatchLoader(dataset, batch_size=10, batches_per_epoch=4, workers=2, device="cpu", seed=0)
    for epoch in range(2):
        assert {n for b in loader.epoch(epoch) for n in b.obs["observation"][:, 0, 0].tolist()} == {0, 1}
    loader.close()
    assert len(list(dataset.index.quarantine_folder.iterdir())) == 1


def test_what_was_quarantined_before_is_not_overwritten(make_dataset, fill) -> None:
    dataset = make_dataset()
    for text in ("first", "second", "third"):
        (dataset.fifo_folder / "notes.txt").write_text(text)
        with pytest.warns(AmagoWarning, match=r"notes\.txt"):
            dataset.index.refresh(force=True)
    assert sorted(path.read_text() for path in dataset.index.quarantine_folder.iterdir()) == [
        "first",
        "second",
        "third",
    ]


def test_a_quarantine_that_cannot_be_made_is_no_reason_to_stop(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    (dataset.fifo_folder / "env_00000100_1.npz").write_bytes(b"")
    dataset.index.quarantine_folder.write_text("a file where the folder should be")
    with pytest.warns(AmagoWarning, match="cannot be moved"):
        assert numbers(dataset) == {0, 1}


def test_a_folder_among_the_oldest_files_does_not_stop_the_deletion(make_dataset, fill, numbers) -> None:
    dataset = make_dataset(dset_max_size=2)
    (dataset.fifo_folder / "env_00000100_1.npz").mkdir()
    fill(dataset.fifo_folder, 3)
    with pytest.warns(AmagoWarning, match="it is a folder"):
        metrics = dataset.on_end_of_collection(None)
    assert metrics["Trajectory Files Deleted"] == 1
    assert numbers(dataset) == {1, 2}


# Files that do not go with the others


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_stray_file_with_other_arrays_is_quarantined_and_told(
    make_dataset, fill, make_traj, cache_bytes
) -> None:
    dataset = make_dataset(items=400, cache_bytes=cache_bytes)
    fill(dataset.fifo_folder, reading.USUAL_FILES + 1)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        dataset.draw_batch(0, 400, private_memory)
    other = make_traj(5, number=99, width=3)
    save_trajectory(other, dataset.fifo_folder / "env_00000100_1", "npz", "env")
    dataset.set_epoch(2)
    with pytest.warns(AmagoWarning, match=r"only one side has actions float32\(2,\), actions float32\(3,\)"):
        batch = dataset.draw_batch(0, 400, private_memory).unpack()
    assert batch.actions.shape[-1] == 2
    assert [path.name for path in dataset.index.quarantine_folder.iterdir()] == ["env_00000100_1.npz"]


def test_a_buffer_of_files_that_do_not_go_together_is_an_error_and_stays(
    make_dataset, fill, make_traj
) -> None:
    dataset = make_dataset(items=400)
    fill(dataset.fifo_folder, 4)
    for number in range(4, 8):
        name = f"env_0000000{number}_1"
        save_trajectory(make_traj(5, number, width=3), dataset.fifo_folder / name, "npz", "env")
    dataset.set_epoch(0)
    with pytest.raises(ValueError, match="actions must have one shape and dtype") as caught:
        dataset.draw_batch(0, 400, private_memory)
    for part in ("env_0000000", "actions float32(2,)", "actions float32(3,)", "dset_name"):
        assert part in str(caught.value)
    assert len(list(dataset.fifo_folder.iterdir())) == 8


def test_files_of_a_mixtures_member_that_do_not_go_together_are_named(make_dataset, fill, make_traj) -> None:
    member = make_dataset(items=400)
    fill(member.fifo_folder, 4)
    save_trajectory(make_traj(5, 9, width=3), member.fifo_folder / "env_00000009_1", "npz", "env")
    mixture = MixtureOfDatasets([member], [1.0])
    mixture.configure(400, 5, "none", True)
    mixture.set_epoch(0)
    with pytest.raises(UnlikeSamplesError, match=r"Files differ, such as .*env_0000.*actions float32\(3,\)"):
        mixture.draw_batch(0, 400, private_memory)


def test_an_error_of_a_relabeler_keeps_its_type_and_is_not_explained_by_the_files(
    make_dataset, fill, make_traj
) -> None:
    class GoalError(ValueError):
        """Of somebody's own relabeler."""

    def relabel(traj: FrozenTraj) -> FrozenTraj:
        raise GoalError("the goal lies outside")

    dataset = make_dataset(items=400)
    fill(dataset.fifo_folder, 4)
    save_trajectory(make_traj(5, 9, width=3), dataset.fifo_folder / "env_00000009_1", "npz", "env")
    dataset.set_epoch(0)
    with pytest.raises(ValueError, match="Files differ"):
        dataset.draw_batch(0, 400, private_memory)
    dataset.relabeler = relabel
    with pytest.raises(GoalError) as caught:
        dataset.draw_batch(0, 400, private_memory)
    assert str(caught.value) == "the goal lies outside"


def test_kinds_are_told_by_files_that_are_still_there(tmp_path, fill, make_traj) -> None:
    reader = reading.TrajReader(0)
    usual = [str(path) for path in fill(tmp_path, 3)]
    other = str(save_trajectory(make_traj(5, width=3), tmp_path / "env_00000100_1", "npz", "env"))
    for path in [*usual, other]:
        reader.length(path)
    assert list(reader.kinds.values()) == [usual[0], other]
    reader.drop(usual[0])
    reader.drop(other)
    assert list(reader.kinds.values()) == [usual[1]]


def fill_with_another_kind(folder: Path, make_traj: Callable[..., FrozenTraj], count: int) -> set[str]:
    """Writes newer files whose actions are wider; returns their names."""
    names = [f"env_00001{number:03}_1800000000" for number in range(count)]
    for number, name in enumerate(names):
        save_trajectory(make_traj(5, number, width=3), folder / name, "npz", "env")
    return {f"{name}.npz" for name in names}


@pytest.mark.parametrize("mp_context", ["fork", "spawn"])
def test_stray_files_are_passed_over_by_every_loader_worker_from_the_first_batch_on(
    make_dataset, fill, make_traj, mp_context
) -> None:
    dataset = make_dataset(1000, items=800)
    fill(dataset.fifo_folder, 2 * reading.USUAL_FILES)
    strays = fill_with_another_kind(dataset.fifo_folder, make_traj, 4)
    loader = BatchLoader(
        dataset,
        batch_size=40,
        batches_per_epoch=20,
        workers=2,
        device="cpu",
        seed=0,
        mp_context=mp_context,
    )
    drawn = {n for batch in loader.epoch(0) for n in batch.obs["observation"][:, 0, 0].tolist()}
    loader.close()
    assert len(drawn) > reading.USUAL_FILES
    assert {path.name for path in dataset.index.quarantine_folder.iterdir()} == strays


def test_workers_that_began_with_few_files_hear_what_is_usual_and_forget_strays(
    make_dataset, fill, make_traj
) -> None:
    main, worker = make_dataset(1000, items=400), make_dataset(1000, items=400)
    stray = save_trajectory(make_traj(5, 999, width=3), main.fifo_folder / "env_00000fff_1", "npz", "env")
    assert main.worker_state() == (None, None)
    worker.load_worker_state(main.worker_state())
    worker.set_epoch(0)
    worker.draw_batch(0, 20, private_memory)
    fill(main.fifo_folder, 2 * reading.USUAL_FILES)
    main.set_epoch(1)
    worker.load_worker_state(pickle.loads(pickle.dumps(main.worker_state())))
    worker.set_epoch(1)
    worker.refresh(force=True)
    with pytest.warns(AmagoWarning, match="holds other arrays"):
        worker.draw_batch(0, 400, private_memory)
    assert [path.name for path in worker.quarantine.iterdir()] == [stray.name]


def test_a_buffer_of_two_kinds_in_equal_parts_has_no_usual_one(make_dataset, fill, make_traj) -> None:
    dataset = make_dataset(1000)
    fill(dataset.fifo_folder, 2 * reading.USUAL_FILES)
    fill_with_another_kind(dataset.fifo_folder, make_traj, 2 * reading.USUAL_FILES)
    dataset.set_epoch(0)
    assert dataset.worker_state() == (None, None)


def test_what_is_usual_is_learned_from_few_headers_and_once(make_dataset, fill, monkeypatch) -> None:
    dataset = make_dataset(1000)
    fill(dataset.fifo_folder, 3 * reading.USUAL_FILES)
    dataset.set_epoch(0)
    opened: list[object] = []
    true = reading.opened_trajectory
    monkeypatch.setattr(reading, "opened_trajectory", lambda path: opened.append(path) or true(path))
    usual = dataset.worker_state()[1]
    assert usual is not None
    assert len(opened) == reading.USUAL_FILES
    assert dataset.worker_state()[1] == usual
    assert len(opened) == reading.USUAL_FILES


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_many_files_of_another_kind_are_an_error_that_names_both_and_what_to_do(
    make_dataset, fill, make_traj, workers
) -> None:
    dataset = make_dataset(1000, items=400)
    fill(dataset.fifo_folder, reading.USUAL_FILES + 1)
    loader = BatchLoader(dataset, batch_size=20, batches_per_epoch=20, workers=workers, device="cpu", seed=0)
    list(loader.epoch(0))
    new = fill_with_another_kind(dataset.fifo_folder, make_traj, 3 * drawing.MOST_STRAYS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about each file that is moved
        with pytest.raises(RuntimeError) as caught:
            list(loader.epoch(1))
    loader.close()
    said = str(caught.value)
    for part in (
        "two kinds",
        "_1800000000.npz has",
        "actions float32(2,)",
        "actions float32(3,)",
        "dset_name",
    ):
        assert part in said
    assert str(dataset.index.quarantine_folder) in said
    moved = {path.name for path in dataset.index.quarantine_folder.iterdir()}
    if workers < 2:
        assert len(moved) == drawing.MOST_STRAYS
    assert drawing.MOST_STRAYS / 2 <= len(moved) <= drawing.MOST_STRAYS, "all workers together"
    assert ("workers as many each" in said) == (workers > 1)
    assert moved < new, "nothing else was moved, and no name changed"
    # The remedy: those that are not wanted leave, the others come back.
    for path in list(dataset.fifo_folder.iterdir()):
        if path.name not in new:
            path.rename(dataset.dset_root / path.name)
    for path in list(dataset.index.quarantine_folder.iterdir()):
        path.rename(dataset.fifo_folder / path.name)
    again = make_dataset(1000, items=400)
    again.set_epoch(0)
    assert again.draw_batch(0, 400, private_memory).unpack().actions.shape[-1] == 3
    assert {path.name for path in again.fifo_folder.iterdir()} == new


def test_files_come_back_from_the_quarantine_while_the_program_runs(make_dataset, fill, make_traj) -> None:
    dataset = make_dataset(items=100)
    fill(dataset.fifo_folder, reading.USUAL_FILES + 1)
    dataset.set_epoch(0)
    dataset.draw_batch(0, 100, private_memory)
    (dataset.fifo_folder / "env_00000100_1.npz").write_bytes(b"torn")
    dataset.set_epoch(1)
    dataset.items_per_epoch = 1000
    with pytest.warns(AmagoWarning, match="torn"):
        dataset.draw_batch(0, 1000, private_memory)
    dataset.index.refresh(force=True)
    path = dataset.index.quarantine_folder / "env_00000100_1.npz"
    save_trajectory(make_traj(5, 100), dataset.index.quarantine_folder / "mended", "npz", "env")
    path.write_bytes((dataset.index.quarantine_folder / "mended.npz").read_bytes())  # the same file, in place
    path.rename(dataset.fifo_folder / path.name)
    dataset.index.refresh(force=True)
    assert dataset.fifo.files[path.name].inode == (dataset.fifo_folder / path.name).stat().st_ino


def test_a_reader_that_was_sent_to_another_process_goes_on_with_the_same_arrays(tmp_path, fill) -> None:
    reader = reading.TrajReader(1 << 20)
    known = fill(tmp_path, reading.USUAL_FILES + 1)
    assert [reader.length(str(path)) for path in known] == [5] * len(known)
    copy = pickle.loads(pickle.dumps(reader))
    of_new_lengths = fill(tmp_path, 3, first=100, transitions=[7, 8, 9])
    assert [copy.length(str(path)) for path in of_new_lengths] == [7, 8, 9]
    assert len(copy.whole(str(known[0]))) == 5


def test_looser_dtypes_of_other_programs_are_no_strays(make_dataset, fill, make_traj, numbers) -> None:
    dataset = make_dataset(items=800)
    fill(dataset.fifo_folder, reading.USUAL_FILES + 1)
    loose = make_traj(5, 99)
    np.savez(
        dataset.fifo_folder / "env_00000100_1.npz", **(loose.to_dict() | {"rews": loose.rews.astype(">f8")})
    )
    assert 99 in numbers(dataset)


# Files that are not there, or not just now


@pytest.fixture
def little_patience(monkeypatch) -> None:
    """Draws wait for hundredths of a second, and not for one, before they give up."""
    monkeypatch.setattr(drawing, "WAITS_FOR_FILES", (0.0, 0.01, 0.02))
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)


def within_seconds(action: Callable[[], object], seconds: float) -> object:
    """The exception that the action raises; fails if it goes on for longer."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "still trying"
    return raised[0] if raised else None


@pytest.mark.parametrize("relabeler", [None, NoOpRelabeler()])
def test_files_that_are_listed_and_never_there_end_in_an_error_that_says_so(
    make_dataset, relabeler, little_patience
) -> None:
    dataset = make_dataset(relabeler=relabeler)
    for number in range(3):
        os.symlink(dataset.dset_root / "nowhere", dataset.fifo_folder / f"env_0000000{number}_1.npz")
    dataset.set_epoch(0)
    error = within_seconds(lambda: dataset[0], 10.0)
    assert isinstance(error, RuntimeError)
    assert "that can be read" in str(error)
    assert "No such file" in str(error)


def test_files_that_never_come_into_sight_do_not_keep_from_those_that_are(
    make_dataset, fill, numbers
) -> None:
    dataset = make_dataset()
    for number in range(10, 40):
        os.symlink(dataset.dset_root / "nowhere", dataset.fifo_folder / f"env_000000{number}_1.npz")
    fill(dataset.fifo_folder, 2)
    assert [numbers(dataset) for dataset.epoch in range(3)] == [{0, 1}] * 3
    assert not dataset.index.quarantine_folder.exists()


def test_a_file_replaced_after_its_length_was_asked_for_is_drawn_as_it_is_now(
    make_dataset, fill, make_traj, numbers
) -> None:
    dataset = make_dataset(sample_by="timesteps", relabeler=lambda traj: traj)
    path = fill(dataset.fifo_folder, 1)[0]
    dataset.set_epoch(0)
    dataset.sampling_weights(dataset.fifo.ordered)
    save_trajectory(make_traj(9, 7), path, "npz", "env")
    assert numbers(dataset) == {7}


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ENOENT])
def test_an_outage_of_the_file_system_loses_no_file(
    make_dataset, fill, numbers, monkeypatch, little_patience, code
) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 4)
    dataset.set_epoch(0)
    with monkeypatch.context() as outage:

        def refused(path: str) -> None:
            raise OSError(code, os.strerror(code), path)

        outage.setattr("amago.hindsight.layout.open_regular", refused)
        with pytest.raises(RuntimeError, match="can be read"):
            dataset[0]
    dataset.index.refresh(force=True)
    assert numbers(dataset) == {0, 1, 2, 3}
    assert not dataset.index.quarantine_folder.exists()


class SeesHalf(reading.TrajReader):
    """Reads as through a network file system's cache that still holds the beginning of a file only."""

    def __init__(self, cache_bytes: int, half: set[str]) -> None:
        super().__init__(cache_bytes)
        self.half = half

    def window(self, path: str, *arguments: object) -> object:
        if path in self.half:
            self.half.discard(path)
            raise CorruptTrajectoryError(f"{path} is torn")
        return super().window(path, *arguments)


def test_a_file_that_is_whole_at_a_second_look_is_not_thrown_out(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    paths = fill(dataset.fifo_folder, 3)
    dataset._drawer.reader = SeesHalf(0, {str(path) for path in paths})
    assert numbers(dataset) == {0, 1, 2}
    assert not dataset._drawer.reader.half
    assert not dataset.index.quarantine_folder.exists()


class SeesHalfAtTimes(reading.TrajReader):
    """Finds every file torn in the draws of these numbers."""

    draws, torn_in = 0, range(0)

    def window(self, path: str, *arguments: object) -> object:
        self.draws += 1
        if self.draws in self.torn_in:
            raise CorruptTrajectoryError(f"{path} is torn")
        return super().window(path, *arguments)


def test_a_file_that_is_late_again_and_again_is_forgiven_after_some_time(
    make_dataset, fill, numbers, monkeypatch
) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 1)
    reader = dataset._drawer.reader = SeesHalfAtTimes(0)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(quarantine, "time", clock)
    for _ in range(10):
        clock.now += quarantine.FORGIVEN_SECONDS + 1.0
        reader.torn_in = range(reader.draws + 1, reader.draws + 1 + quarantine.TIMES_FORGIVEN)
        assert numbers(dataset) == {0}
    assert not dataset.index.quarantine_folder.exists()
    # one that is broken at every draw does not occupy the draws for ever, though it looks whole in between
    reader.torn_in = range(reader.draws + 1, reader.draws + 1000)
    with pytest.warns(AmagoWarning, match="is torn"), pytest.raises(RuntimeError, match="can be read"):
        numbers(dataset)
    assert dataset.index.quarantine_folder.exists()


def test_what_is_remembered_of_second_looks_is_bounded(make_dataset, fill, monkeypatch) -> None:
    monkeypatch.setattr(quarantine, "MOST_FORGIVEN", 10)
    dataset = make_dataset()
    fill(dataset.fifo_folder, 40)
    dataset.index.refresh(force=True)
    for file in dataset.fifo.ordered:
        assert not dataset._drawer.quarantine.is_bad(file, CorruptTrajectoryError("torn"))
    assert len(dataset._drawer.quarantine._forgiven) == 10


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ENOENT, errno.EMFILE])
def test_a_file_that_cannot_be_opened_for_its_second_look_is_not_condemned(
    make_dataset, fill, numbers, monkeypatch, little_patience, code
) -> None:
    dataset = make_dataset()
    path = fill(dataset.fifo_folder, 1)[0]
    dataset.set_epoch(0)
    dataset._drawer.reader = SeesHalf(0, {str(path)})
    with monkeypatch.context() as outage:

        def refused(path: str) -> None:
            outage.undo()
            raise OSError(code, os.strerror(code), path)

        outage.setattr("amago.hindsight.layout.open_regular", refused)
        assert numbers(dataset) == {0}
    assert not dataset._drawer.reader.half
    assert not dataset.index.quarantine_folder.exists()
