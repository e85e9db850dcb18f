"""One replay buffer and many processes, large folders, file systems with habits, and disks that fill up."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from amago.hindsight import parse_filename, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset
from amago.loading import files as listing
from amago.loading import BatchLoader
from amago.loading.packing import private_memory
from amago.loading.reader import TrajReader
from amago.utils import AmagoWarning

PROGRAM = Path(__file__).with_name("replay_processes.py")


def test_writers_readers_and_a_deleter_share_a_folder_and_nothing_is_lost_or_torn(tmp_path) -> None:
    folder = DiskTrajDataset(tmp_path, "dset", 60).fifo_folder
    command = [sys.executable, "-W", "error::UserWarning", str(PROGRAM), str(tmp_path), "1.0"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert run.returncode == 0, run.stderr
    assert not run.stderr
    results = json.loads(run.stdout)
    acknowledged = {name for role in ("write 1", "write 2", "write 3") for name in results[role]}
    left = {path.name for path in folder.iterdir()}
    assert left <= acknowledged
    assert len(left) + results["delete 0"] == len(acknowledged)
    assert len(left) == 60
    assert min(results["read 0"], results["read 1"]) > 0
    assert not (folder.parent / "quarantine").exists()


@pytest.fixture
def large(monkeypatch) -> int:
    """Folders of more than 20 files count as large, and are listed seldom, whatever the listing took."""
    monkeypatch.setattr(listing, "LARGE", 20)
    monkeypatch.setattr("amago.loading.buffer_files.LARGE", 20)
    monkeypatch.setattr(listing, "LISTING_SHARE", 0.0)
    return 20


def test_own_files_are_known_without_a_listing(make_dataset, fill, large, numbers) -> None:
    dataset: DiskTrajDataset = make_dataset(dset_max_size=32, items=600)
    fill(dataset.fifo_folder, 30)
    dataset.set_epoch(0)
    listings = dataset.fifo.listings
    for epoch in range(1, 6):
        for path in fill(dataset.fifo_folder, 2, first=28 + 2 * epoch):
            dataset.note_written(path)
        dataset.on_end_of_collection(None)
        dataset.set_epoch(epoch)
        assert numbers(dataset) == set(range(max(0, 2 * epoch - 2), 30 + 2 * epoch))
    assert dataset.fifo.listings == listings
    left = sorted(int(parse_filename(path).file_id, 16) for path in dataset.fifo_folder.iterdir())
    assert left == list(range(8, 40))


def test_files_of_others_in_a_large_folder_are_found_by_a_later_listing(
    make_dataset, fill, large, numbers, monkeypatch
) -> None:
    dataset = make_dataset(items=600)
    fill(dataset.fifo_folder, 25)
    dataset.set_epoch(0)
    fill(dataset.fifo_folder, 5, first=25)
    dataset.set_epoch(1)
    assert numbers(dataset) == set(range(25))
    monkeypatch.setattr(listing, "LISTING_SHARE", float("inf"))
    dataset.set_epoch(2)
    assert numbers(dataset) == set(range(30))


def test_workers_draw_from_the_files_that_the_main_process_knows_of(make_dataset, fill, large) -> None:
    def epochs(workers: int) -> list[list[float]]:
        dataset = make_dataset(dset_max_size=32, items=40)
        for path in list(dataset.fifo_folder.iterdir()):
            path.unlink()
        fill(dataset.fifo_folder, 30)
        loader = BatchLoader(
            dataset, batch_size=10, batches_per_epoch=4, workers=workers, device="cpu", seed=0
        )
        drawn = []
        for epoch in range(5):
            for path in fill(dataset.fifo_folder, 3, first=30 + 3 * epoch):
                dataset.note_written(path)
            dataset.on_end_of_collection(None)
            batches = loader.epoch(epoch)
            drawn.append([n for batch in batches for n in batch.obs["observation"][:, 0, 0].tolist()])
        loader.close()
        return drawn

    expected = epochs(0)
    assert max(expected[4]) >= 30
    assert epochs(1) == expected
    assert epochs(2) == expected


def test_a_worker_that_missed_too_much_news_lists_the_folder(make_dataset, fill, large, numbers) -> None:
    main, worker = make_dataset(items=600), make_dataset(items=600)
    fill(main.fifo_folder, 25)
    main.set_epoch(0)
    worker.set_epoch(0)
    for epoch in range(3):
        for path in fill(main.fifo_folder, 1, first=25 + epoch):
            main.note_written(path)
        main.set_epoch(epoch)
        news, usual = main.worker_state()
    worker.load_worker_state((news[-2:], usual))
    worker.set_epoch(3)
    assert numbers(worker) == numbers(main) == set(range(28))


def test_workers_follow_a_buffer_that_went_back_to_a_checkpoint(make_dataset, fill, large, numbers) -> None:
    main, worker = make_dataset(items=600), make_dataset(items=600)
    fill(main.fifo_folder, 25)
    state = main.state_dict()
    worker.set_epoch(0)
    for path in fill(main.fifo_folder, 5, first=25):
        main.note_written(path)
    worker.load_worker_state(main.worker_state())
    assert numbers(worker) == set(range(30))
    main.load_state_dict(state, move_later_files_aside=True)
    worker.load_worker_state(main.worker_state())
    assert numbers(worker) == numbers(main) == set(range(25))


def test_the_list_is_right_whatever_comes_and_goes(make_dataset, make_traj, monkeypatch) -> None:
    monkeypatch.setattr(listing, "FEW", 3)
    dataset = make_dataset(dset_max_size=float("inf"))
    folder, rng, kept = dataset.fifo, np.random.default_rng(0), set()
    for step in range(60):
        for _ in range(rng.integers(0, 6)):
            name = trajectory_filename("env", int(rng.integers(0, 5)), step, int(rng.integers(0, 1000)))
            path = save_trajectory(make_traj(1), folder.path / name, "traj", "env")
            kept.add(path.name)
            if rng.random() < 0.5:
                folder.note_written(path.name)
        for name in rng.permutation(sorted(kept))[: rng.integers(0, 5)].tolist():
            (folder.path / name).unlink()
            kept.discard(name)
            if rng.random() < 0.5:
                folder.note_deleted([name])
        folder.refresh(force=bool(rng.random() < 0.5))
        folder.refresh()
        assert set(folder.files) == kept == {file.name for file in folder.ordered}
        assert folder.ordered == sorted(folder.ordered, key=listing.sampling_key)
        oldest = sorted(folder.ordered, key=listing.age_key)[:4]
        assert [listing.age_key(f) for f in folder.oldest(4)] == [listing.age_key(f) for f in oldest]


def test_a_folder_whose_time_stamp_never_moves_is_looked_at_all_the_same(
    make_dataset, fill, numbers, monkeypatch
) -> None:
    monkeypatch.setattr(listing, "SETTLE_SECONDS", 0.0)
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    stamp = 1_600_000_000_000_000_000
    for epoch in range(3):
        os.utime(dataset.fifo_folder, ns=(stamp, stamp))
        dataset.set_epoch(epoch)
    fill(dataset.fifo_folder, 1, first=2)
    os.utime(dataset.fifo_folder, ns=(stamp, stamp))
    dataset.set_epoch(3)
    assert numbers(dataset) == {0, 1}, "not yet: nothing tells of the file"
    monkeypatch.setattr(listing, "UNASKED_SECONDS", 0.0)
    dataset.set_epoch(4)
    assert numbers(dataset) == {0, 1, 2}


def test_a_file_that_is_listed_before_it_can_be_opened_is_drawn_once_it_can(
    make_dataset, fill, numbers, tmp_path
) -> None:
    dataset = make_dataset()
    paths = fill(dataset.fifo_folder, 3)
    hidden = tmp_path / "not yet visible"
    os.rename(paths[1], hidden)
    os.symlink(tmp_path / "later", paths[1])
    dataset.set_epoch(0)
    assert numbers(dataset) == {0, 2}
    assert not dataset.index.quarantine_folder.exists()
    os.rename(hidden, tmp_path / "later")
    dataset.index.refresh(force=True)
    assert numbers(dataset) == {0, 1, 2}


class StaleHandles(TrajReader):
    """Reads as from a network file system whose server has replaced a file: the first time, a handle is stale."""

    def __init__(self, cache_bytes: int, stale: set[str]) -> None:
        super().__init__(cache_bytes)
        self.stale = stale

    def window(self, path: str, *arguments: object) -> object:
        if path in self.stale:
            self.stale.discard(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return super().window(path, *arguments)


def test_a_stale_handle_is_no_reason_to_stop_or_to_throw_the_file_out(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    paths = fill(dataset.fifo_folder, 3)
    dataset._drawer.reader = StaleHandles(0, {str(path) for path in paths[:2]})
    dataset.set_epoch(0)
    numbers(dataset)
    assert not dataset._drawer.reader.stale
    dataset.index.refresh(force=True)
    assert numbers(dataset) == {0, 1, 2}
    assert not dataset.index.quarantine_folder.exists()


def test_an_error_of_the_machine_is_not_taken_for_one_of_a_file(make_dataset, fill) -> None:
    class NoMoreHandles(TrajReader):
        def window(self, path: str, *arguments: object) -> object:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    dataset = make_dataset()
    fill(dataset.fifo_folder, 1)
    dataset._drawer.reader = NoMoreHandles(0)
    with pytest.raises(OSError, match="Too many open files"):
        dataset[0]
    assert dataset.ready_for_training


def vanish(path: Path, make_traj: Callable) -> None:
    path.unlink()


def replace_by_shorter(path: Path, make_traj: Callable) -> None:
    save_trajectory(make_traj(2, 7), path, "npz", "env")


def tear(path: Path, make_traj: Callable) -> None:
    path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize("change", [vanish, replace_by_shorter, tear])
def test_a_file_that_changes_between_the_draw_and_the_read_is_drawn_again(
    make_dataset, fill, make_traj, change
) -> None:
    dataset = make_dataset(cache_bytes=0, edit=False)
    paths = fill(dataset.fifo_folder, 4, transitions=30)
    dataset.set_epoch(0)
    drawn = []
    for i in range(80):  # the first time that a small file is drawn, it is read at once
        dataset._begin_sample(i)
        drawn.append(dataset.sample_window())
    windows = drawn[40:]

    class AlreadyDrawn(DiskTrajDataset):
        def sample_window(self) -> object:
            return windows.pop(0)

    for path in paths[:3]:
        change(path, make_traj)
    dataset.__class__ = AlreadyDrawn
    with pytest.warns(AmagoWarning) if change is tear else np.errstate():
        batch = dataset.draw_batch(0, 40, private_memory).unpack()
    expected = {3.0, 7.0} if change is replace_by_shorter else {3.0}
    assert set(batch.obs["observation"][:, 0, 0].tolist()) <= expected
    assert batch.batch_size == 40


def test_an_unreadable_or_hostile_entry_is_quarantined(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    os.mkfifo(dataset.fifo_folder / "pipe_00000100_1.npz")
    (dataset.fifo_folder / "folder_00000101_1.traj").mkdir()
    loop = dataset.fifo_folder / "loop_00000102_1.npz"
    os.symlink(loop, loop)
    with pytest.warns(AmagoWarning) as caught:
        drawn = [numbers(dataset) for dataset.epoch in range(3)]
    assert drawn == [{0, 1}] * 3
    assert len(caught) == 3
    assert len(list(dataset.index.quarantine_folder.iterdir())) == 3


def test_an_error_in_a_relabeler_is_not_taken_for_a_bad_file(make_dataset, fill) -> None:
    def needs_a_map(traj: object) -> object:
        raise FileNotFoundError(errno.ENOENT, "no map of the maze", "maze.json")

    dataset = make_dataset(relabeler=needs_a_map)
    fill(dataset.fifo_folder, 2)
    with pytest.raises(FileNotFoundError, match="no map"):
        dataset[0]


FILLS_THE_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from replay_processes import trajectory
from amago.envs.recorder.writer import TrajectoryWriteError, TrajectoryWriter

folder, written = Path(sys.argv[1]), []
writer = TrajectoryWriter(folder, "npz", lambda path: written.append(path.name))
for number in range(5):
    writer.put(trajectory(1, number, 10), f"env_0010000{number}_1", "env")
writer.flush()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # what no longer fits is refused by the system
writer.put(trajectory(1, 5, 2000), "env_00100005_1", "env")
writer.put(trajectory(1, 6, 10), "env_00100006_1", "env")
try:
    writer.flush()
except TrajectoryWriteError as error:
    print(str(folder) in str(error), "2 are kept" in str(error), len(written), len(list(folder.iterdir())))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.flush()
writer.stop()
print(len(written), sorted(written) == sorted(p.name for p in folder.iterdir()))
"""


def test_a_disk_without_room_is_an_error_with_the_folders_name_and_loses_nothing(
    make_dataset, tmp_path
) -> None:
    dataset = make_dataset(items=300, length=5000)
    command = [sys.executable, "-c", FILLS_THE_DISK, str(dataset.fifo_folder), str(PROGRAM.parent)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.stdout.split("\n")[:2] == ["True True 5 5", "7 True"], run.stderr
    dataset.set_epoch(0)
    lengths = {(int(d.obs["observation"][0, 1]), len(d)) for d in (dataset[i] for i in range(300))}
    assert lengths == {(5, 2000), *((number, 10) for number in (0, 1, 2, 3, 4, 6))}
