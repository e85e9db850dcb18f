"""What replay costs beside time: memory of the cache, looks at folders, work on lists of very many files."""

import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amago.hindsight import FrozenTraj, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset, MixtureOfDatasets, RLData
from amago.loading import files as listing
from amago.loading import BatchLoader
from amago.loading.cache import TrajCache
from amago.loading.file_index import TrajFile, TrajFolder
from amago.loading.packing import private_memory

CACHE = 4 << 20


def of_images(number: int, steps: int = 40) -> FrozenTraj:
    """A trajectory of random 64x64x3 images: 490 KiB, which compression makes no smaller."""
    rng = np.random.default_rng(number)
    return FrozenTraj(
        obs={"image": rng.integers(0, 256, (steps + 1, 64, 64, 3), dtype=np.uint8)},
        rl2s=np.zeros((steps + 1, 3), np.float32),
        time_idxs=np.arange(steps + 1)[:, None],
        rews=np.full((steps, 1), number, np.float32),
        dones=np.zeros((steps, 1), np.bool_),
        actions=np.zeros((steps, 2), np.float32),
    )


def fill_with_images(folder: Path, save_as: str, count: int = 24) -> None:
    for number in range(count):
        name = trajectory_filename("env", 0, number, number)
        save_trajectory(of_images(number), folder / name, save_as, "env")


def memory_of_draws(dataset: DiskTrajDataset) -> int:
    """Bytes that drawing has left behind, as the allocator counts them."""
    dataset.set_epoch(0)
    tracemalloc.start()
    try:
        for first in range(0, 400, 4):
            dataset.draw_batch(first, 4, private_memory)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("relabeler", [None, lambda traj: traj], ids=["windows", "whole"])
@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_the_cache_takes_no_more_memory_than_it_may(make_dataset, monkeypatch, save_as, relabeler) -> None:
    dataset: DiskTrajDataset = make_dataset(items=400, cache_bytes=CACHE, relabeler=relabeler)
    fill_with_images(dataset.fifo_folder, save_as)  # 12 MB
    kept = memory_of_draws(dataset)
    assert CACHE / 2 < kept < CACHE + (256 << 10)
    monkeypatch.setattr(TrajCache, "has_room_for", lambda self, nbytes: True)  # the fault: there is no bound
    assert memory_of_draws(make_dataset(items=400, cache_bytes=CACHE, relabeler=relabeler)) > 2 * CACHE


def test_room_in_the_cache_comes_back_with_files_that_go(make_dataset) -> None:
    dataset: DiskTrajDataset = make_dataset(dset_max_size=10, items=400, cache_bytes=CACHE)
    for generation in range(4):
        for number in range(10):
            name = trajectory_filename("env", 0, 10 * generation + number, 10 * generation + number)
            save_trajectory(of_images(number), dataset.fifo_folder / name, "npz", "env")
        dataset.on_end_of_collection(None)
        memory_of_draws(dataset)
        cache = dataset._drawer.reader.cache
        assert CACHE / 2 < cache.used_bytes <= CACHE
        assert {Path(path).name for path in cache._trajs} <= set(dataset.fifo.files)


class TellsItsCache(DiskTrajDataset):
    """Rewards are the bytes that the cache of the process that drew may and does hold."""

    def sample_random_trajectory(self) -> RLData:
        traj = super().sample_random_trajectory()
        cache = self._drawer.reader.cache
        traj.rews[:1], traj.rews[1:] = cache.max_bytes, cache.used_bytes
        return traj


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_share_the_memory_of_the_cache(tmp_path, workers) -> None:
    dataset = TellsItsCache(tmp_path, "dset", 100, cache_bytes=CACHE)
    dataset.configure(320, 40, "none", True)
    fill_with_images(dataset.fifo_folder, "npz", 12)
    loader = BatchLoader(dataset, batch_size=4, batches_per_epoch=80, workers=workers, device="cpu", seed=0)
    told = [batch.rews[:, [0, 1], 0] for epoch in range(2) for batch in loader.epoch(epoch)]
    loader.close()
    most = {row[0].item() for rows in told for row in rows}
    used = max(row[1].item() for rows in told for row in rows)
    assert most == {CACHE // workers}
    assert 0 < used <= CACHE / workers


def test_the_cache_does_not_travel_to_workers_that_are_not_forked(make_dataset) -> None:
    dataset: DiskTrajDataset = make_dataset(items=400, cache_bytes=CACHE)
    fill_with_images(dataset.fifo_folder, "npz", 12)
    memory_of_draws(dataset)
    held = dataset._drawer.reader.cache.used_bytes
    assert held > CACHE / 2
    message = pickle.dumps(dataset)
    assert len(message) < held / 20
    again = pickle.loads(message)
    again.set_epoch(0)
    np.testing.assert_array_equal(again[5].obs["image"], dataset[5].obs["image"])


def test_members_of_a_mixture_share_it_too(tmp_path) -> None:
    members = [DiskTrajDataset(tmp_path, name, 10, cache_bytes=CACHE) for name in "ab"]
    MixtureOfDatasets(members, [1, 1]).start_worker(4)
    assert [member._drawer.reader.cache.max_bytes for member in members] == [CACHE // 8] * 2


# Very many files

MANY = 50_000


class ManyNames:
    """os.scandir for a folder of very many files, of which it counts the looks."""

    def __init__(self, count: int) -> None:
        self.looks, self.inodes = 0, dict(zip(map(name_of, range(count)), range(1, count + 1), strict=True))

    def __call__(self, folder: object) -> "ManyNames":
        self.looks += 1
        return self

    def __enter__(self) -> Any:
        return (TrajEntry(name, inode) for name, inode in self.inodes.items())

    def __exit__(self, *_: object) -> None: ...


class TrajEntry:
    """What os.scandir gives for a file."""

    def __init__(self, name: str, inode: int) -> None:
        self.name, self._inode = name, inode

    def inode(self) -> int:
        return self._inode


def name_of(number: int) -> str:
    return trajectory_filename("env", number >> 20, number, number) + ".npz"


@pytest.fixture
def many(monkeypatch, tmp_path) -> tuple[TrajFolder, ManyNames]:
    """A folder of very many files that was listed a minute ago."""
    names = ManyNames(MANY)
    monkeypatch.setattr(listing.os, "scandir", names)
    folder = TrajFolder(tmp_path)
    folder.refresh(force=True)
    folder._listed_at -= 60
    folder._mtime_seen_at -= 60
    folder.refresh()
    assert len(folder.files) == MANY
    names.looks = 0
    return folder, names


def test_epochs_over_very_many_files_list_none_of_them(many, tmp_path) -> None:
    folder, names = many
    folder._listing_took = 60.0  # listings may take so small a part of the time that none is due in this test
    for number in range(MANY, MANY + 50):
        (tmp_path / name_of(number)).touch()
        folder.note_written(name_of(number))
        folder.refresh()
        oldest = folder.oldest(1)
        folder.note_deleted([file.name for file in oldest])
    assert names.looks == 0
    assert len(folder.files) == MANY
    assert folder.ordered[0].name == name_of(50)
    assert folder.ordered[-1].name == name_of(MANY + 49)


def test_what_others_write_to_so_large_a_folder_is_found_at_a_share_of_the_time(many, tmp_path) -> None:
    folder, names = many
    names.inodes[name_of(MANY + 1000)] = MANY + 1001
    os.utime(tmp_path, ns=(1, 1))
    folder._listing_took = 1.0
    for since, looks in ((0.0, 0), (10.0, 0), (21.0, 1)):  # a twentieth of the time
        folder._listed_at = listing.time.monotonic() - since
        folder.refresh()
        assert names.looks == looks
    assert name_of(MANY + 1000) in folder.files
    del names.inodes[name_of(5)]
    os.utime(tmp_path, ns=(2, 2))
    folder._listed_at -= 60
    folder.refresh()
    assert name_of(5) not in folder.files


def test_a_change_costs_no_work_on_the_other_files(many, tmp_path, monkeypatch) -> None:
    folder, _ = many
    compared = 0

    def counted(key: Callable[[TrajFile], Any]) -> Callable[[TrajFile], Any]:
        def count(file: TrajFile) -> Any:
            nonlocal compared
            compared += 1
            return key(file)

        return count

    folder.oldest(1)  # has the heap made
    monkeypatch.setattr(listing, "sampling_key", counted(listing.sampling_key))
    monkeypatch.setattr(listing, "age_key", counted(listing.age_key))
    for number in range(MANY, MANY + 300):
        (tmp_path / name_of(number)).touch()
        folder.note_written(name_of(number))
    folder.refresh()
    folder.note_deleted([file.name for file in folder.oldest(300)])
    assert compared < 300 * 2 * 40, "some sixteen comparisons for each change, in a list of 50,000"
    monkeypatch.setattr(listing, "SORTED_AT_ONCE", 10**9)  # the fault: all is sorted again
    folder.note_deleted([file.name for file in folder.oldest(300)])
    assert compared > MANY
