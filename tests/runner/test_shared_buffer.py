"""One replay buffer shared by several processes, and a full disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amago.hindsight import save_trajectory
from amago.loading import BatchLoader, DiskTrajDataset

pytestmark = pytest.mark.source_only

PROGRAM = Path(__file__).with_name("replay_processes.py")


def test_writers_readers_and_a_deleter_share_a_folder_and_nothing_is_lost_or_torn(tmp_path) -> None:
    folder = DiskTrajDataset(tmp_path, "dset", 60).fifo_folder
    command = [sys.executable, "-W", "error::UserWarning", str(PROGRAM), str(tmp_path), "0.4"]
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


def test_workers_sample_from_the_same_files_as_the_main_process(make_dataset, fill) -> None:
    def epochs(workers: int) -> list[list[float]]:
        dataset = make_dataset(dset_max_size=32, items=40)
        dataset.delete()
        fill(dataset.fifo_folder, 30)
        loader = BatchLoader(
            dataset, batch_size=10, batches_per_epoch=4, workers=workers, device="cpu", seed=0
        )
        drawn = []
        for epoch in range(5):
            fill(dataset.fifo_folder, 3, first=30 + 3 * epoch)
            dataset.on_end_of_collection(None)
            batches = loader.epoch(epoch)
            drawn.append([n for batch in batches for n in batch.obs["observation"][:, 0, 0].tolist()])
        loader.close()
        return drawn

    expected = epochs(0)
    assert max(expected[4]) >= 30
    assert epochs(2) == expected


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_file_that_is_replaced_is_read_anew(make_dataset, fill, make_traj, numbers, cache_bytes) -> None:
    dataset = make_dataset(cache_bytes=cache_bytes)
    path = fill(dataset.fifo_folder, 1, transitions=30)[0]
    dataset.set_epoch(0)
    assert numbers(dataset) == {0}
    save_trajectory(make_traj(2, 7), path, "npz", "env")
    dataset.set_epoch(1)
    assert numbers(dataset) == {7}


FILLS_THE_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from replay_processes import trajectory
from amago.envs.recorder.file_writer import TrajectoryWriteError, FileWriter

folder, written = Path(sys.argv[1]), []
writer = FileWriter(folder, "npz", lambda path: written.append(path.name))
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
    print(str(folder) in str(error), "2 are kept" in str(error), len(written))
    print(len(list(folder.glob("env_*"))))  # not the temporary file of the retry
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
    assert run.stdout.split("\n")[:3] == ["True True 5", "5", "7 True"], run.stderr
    dataset.set_epoch(0)
    lengths = {(int(d.obs["observation"][0, 1]), len(d)) for d in (dataset[i] for i in range(300))}
    assert lengths == {(5, 2000), *((number, 10) for number in (0, 1, 2, 3, 4, 6))}
