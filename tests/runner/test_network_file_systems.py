"""Several writers, readers and a deleter on one folder whose file system has the habits of one over a network.

Listings lag behind, new files are in the listing before they can be opened, a rename comes into sight late,
handles go stale while they are read, and now and then nothing can be read for a moment.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from amago.hindsight import parse_filename, save_trajectory, stored_array, trajectory_filename
from amago.loading import DiskTrajDataset, drawing, windows
from amago.loading import files as listing
from amago.loading.packing import private_memory

STEPS = 60


class Entry(NamedTuple):
    """What a listing says of a file."""

    name: str
    number: int

    def inode(self) -> int:
        return self.number


class Network:
    """The calls of the operating system that go over the network.

    Args:
        rng: decides what goes wrong.
        badly: the share of calls that do.
    """

    def __init__(self, rng: np.random.Generator, badly: float) -> None:
        self.rng, self.badly = rng, badly
        self.tick = 0
        self.visible_from: dict[str, int] = {}
        self.old: dict[str, list[Entry]] = {}
        self.mishaps: dict[str, int] = {}

    def goes_wrong(self, how: str) -> bool:
        wrong = bool(self.rng.random() < self.badly)
        self.mishaps[how] = self.mishaps.get(how, 0) + wrong
        return wrong

    def scandir(self, folder: str) -> "Listing":
        with os.scandir(folder) as entries:
            now = [Entry(entry.name, entry.inode()) for entry in entries]
        old = self.old.setdefault(folder, now)
        if self.goes_wrong("listings that lag"):
            return Listing(old)
        self.old[folder] = now
        if self.goes_wrong("stale folders"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), folder)
        return Listing(now)

    def open(self, path: str | Path) -> io.FileIO:
        if self.visible_from.get(Path(path).name, 0) > self.tick:
            self.mishaps["files not yet to be seen"] = self.mishaps.get("files not yet to be seen", 0) + 1
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if self.goes_wrong("reads that fail"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return MayGoStale(path, self)


class Listing(list[Entry]):
    """What os.scandir gives."""

    def __enter__(self) -> Iterator[Entry]:
        return iter(self)

    def __exit__(self, *_: object) -> None: ...


class MayGoStale(io.FileIO):
    """A file whose handle may go stale at any read."""

    def __init__(self, path: str | Path, network: Network) -> None:
        super().__init__(path)
        self.network = network

    def read(self, *size: int) -> Any:
        self._try()
        return super().read(*size)

    def readinto(self, buffer: Any) -> Any:
        self._try()
        return super().readinto(buffer)

    def _try(self) -> None:
        if self.network.goes_wrong("handles that go stale"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.fixture
def over_network(monkeypatch) -> Callable[..., Network]:
    """Puts the folders that datasets look at behind a network."""

    def put(seed: int, badly: float) -> Network:
        network = Network(np.random.default_rng(seed), badly)
        monkeypatch.setattr(listing.os, "scandir", Scandir(network, os.scandir))
        for module in (stored_array, windows):
            monkeypatch.setattr(module, "open_unchecked", network.open)
        monkeypatch.setattr(listing, "SETTLE_SECONDS", float("inf"))
        monkeypatch.setattr(listing, "ABSENT_SECONDS", 0.0)
        monkeypatch.setattr(drawing, "WAITS_FOR_FILES", (0.0,) * 40)
        return network

    return put


class Scandir:
    """os.scandir, over the network except for the network's own look."""

    def __init__(self, network: Network, scandir: Callable[[str], Any]) -> None:
        self.network, self.scandir, self.inside = network, scandir, False

    def __call__(self, folder: str) -> Any:
        if self.inside or not str(folder).endswith(("fifo", "protected")):
            return self.scandir(folder)
        self.inside = True
        try:
            return self.network.scandir(folder)
        finally:
            self.inside = False


def consistent(batch: Any) -> None:
    """Every row is a stretch of one trajectory, told by (number, step) in its observations."""
    for row, timesteps in enumerate(batch.lengths.tolist()):
        obs = batch.obs["observation"][row, :timesteps]
        assert (obs[:, 0] == obs[0, 0]).all()
        assert (obs[1:, 1] - obs[:-1, 1] == 1).all()
        assert (batch.time_idxs[row, :timesteps, 0] == obs[:, 1]).all()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_torn_or_thrown_out(make_dataset, make_traj, over_network, seed, cache_bytes) -> None:
    network = over_network(seed, badly=0.1)
    readers: list[DiskTrajDataset] = [
        make_dataset(items=10**6, length=4, edit=False, cache_bytes=cache_bytes) for _ in range(2)
    ]
    deleter: DiskTrajDataset = make_dataset(dset_max_size=30, edit=True)
    readers[1].seed = 1
    folder, written, number = deleter.fifo_folder, set(), 0
    rng = np.random.default_rng(seed)
    for network.tick in range(STEPS):
        for _ in range(int(rng.integers(1, 4))):
            writer = int(rng.integers(3))
            name = trajectory_filename("env", writer, number, 1000 + number)
            save_as = ("npz", "traj", "npz-compressed")[writer]
            path = save_trajectory(make_traj(int(rng.integers(1, 20)), number), folder / name, save_as, "env")
            written.add(path.name)
            network.visible_from[path.name] = network.tick + int(rng.integers(0, 4)) * (number > 0)
            number += 1
        for reader in readers:
            reader.set_epoch(network.tick)
            consistent(reader.draw_batch(0, 20, private_memory).unpack())
        deleter.on_end_of_collection(None)
    assert min(network.mishaps.values()) > 0, network.mishaps
    left = {path.name for path in folder.iterdir()}
    assert left <= written
    assert len(left) >= 30
    newest = sorted(written, key=lambda name: parse_filename(name).unix_time)[-30:]
    assert set(newest) <= left, "only the oldest were deleted"
    assert not deleter.quarantine.exists()
    network.badly, network.tick = 0.0, STEPS + 10
    deleter.refresh(force=True)
    deleter.on_end_of_collection(None)
    assert {path.name for path in folder.iterdir()} == set(newest)
    for reader in readers:
        reader.refresh(force=True)
        reader.items_per_epoch = 600
        drawn = {int(reader[i].obs["observation"][0, 0]) for i in range(600)}
        assert drawn == {parse_filename(name).unix_time - 1000 for name in newest}


def test_a_reader_that_threw_out_what_it_cannot_open_would_be_noticed(
    make_dataset, make_traj, over_network, monkeypatch
) -> None:
    network = over_network(0, badly=0.0)
    dataset = make_dataset()
    # the fault: whatever cannot be read is a bad file
    monkeypatch.setattr("amago.loading.quarantine.Quarantine.is_bad", lambda self, file, error: True)
    for number in range(5):
        name = trajectory_filename("env", 0, number, number)
        network.visible_from[save_trajectory(make_traj(5), dataset.fifo_folder / name, "npz", "env").name] = (
            number
        )
    dataset.set_epoch(0)
    with pytest.warns(UserWarning, match="No such file"):
        dataset.draw_batch(0, 20, private_memory)
    assert dataset.index.quarantine_folder.exists()
