"""Processes that share one replay buffer, for the tests: writers, readers, and one that deletes.

Run as FOLDER SECONDS, it starts three writers, two readers and a deleter, all forked from here, and prints as JSON
the names of the files that writers were told are written, how many samples each reader checked, and how many files
were deleted.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np

from amago.envs.recorder.file_writer import FileWriter
from amago.hindsight import FrozenTraj, trajectory_filename

WIDTH = 3


def trajectory(writer: int, number: int, transitions: int) -> FrozenTraj:
    """Every row of the observation is (writer, number, step), so a sample tells whether it is of one piece."""
    steps = np.arange(transitions + 1)
    obs = np.stack([np.full_like(steps, writer), np.full_like(steps, number), steps], axis=1)
    return FrozenTraj(
        obs={"observation": obs.astype(np.float32)},
        rl2s=np.zeros((transitions + 1, 2), np.float32),
        time_idxs=steps[:, None],
        rews=steps[1:, None].astype(np.float32),
        dones=steps[1:, None] == transitions,
        actions=np.full((transitions, 1), number, np.float32),
    )


def write(root: Path, number: int, seconds: float) -> list[str]:
    """Writes files of all formats and lengths, as the recorder does."""
    folder, rng = root / "dset" / "buffer" / "fifo", np.random.default_rng(number)
    written: list[str] = []
    writers = [
        FileWriter(folder, save_as, lambda path: written.append(path.name))
        for save_as in ("npz", "traj", "npz-compressed")
    ]
    sequence, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        traj = trajectory(number, sequence, int(rng.integers(1, 60)))
        name = trajectory_filename(f"env{number}", number, sequence, time.time())
        writers[sequence % 3].put(traj, name, "env")
        sequence += 1
        if sequence % 10 == 0:
            for writer in writers:
                writer.flush()
            time.sleep(0.005)
    for writer in writers:
        writer.flush()
        writer.stop()
    return written


def read(root: Path, number: int, seconds: float) -> int:
    """Draws batches and checks every row; an odd number stands for one without a cache and with a worker."""
    from amago.loading import BatchLoader, DiskTrajDataset

    dataset = DiskTrajDataset(root, "dset", 10**6, cache_bytes=0 if number % 2 else 1 << 24)
    dataset.configure(200, 16, "both", False)
    end, epoch, checked = time.monotonic() + seconds, 0, 0
    while not dataset.ready_for_training:
        time.sleep(0.01)
    loader = BatchLoader(
        dataset, batch_size=10, batches_per_epoch=20, workers=number % 2, device="cpu", seed=number
    )
    while time.monotonic() < end:
        epoch += 1
        for batch in loader.epoch(epoch):
            assert batch.lengths is not None
            for row, timesteps in enumerate(batch.lengths.tolist()):
                obs = batch.obs["observation"][row, :timesteps]
                first = obs[0].tolist()
                assert (obs[:, :2] == obs[0, :2]).all(), first
                assert (obs[1:, 2] - obs[:-1, 2] == 1).all(), first
                assert (batch.time_idxs[row, :timesteps, 0] == obs[:, 2]).all(), first
                assert (batch.actions[row, : timesteps - 1] == obs[0, 1]).all(), first
                checked += 1
    loader.close()
    return checked


def delete(root: Path, number: int, seconds: float) -> int:
    """Keeps the buffer at 60 files."""
    from amago.loading import DiskTrajDataset

    dataset = DiskTrajDataset(root, "dset", 60)
    dataset.configure(10, 16, "none", True)
    end, deleted = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        deleted += dataset.on_end_of_collection(None)["Trajectory Files Deleted"]
        time.sleep(0.02)
    return int(deleted)


def main(root: Path, seconds: float) -> None:
    """Runs all of them; readers and the deleter go on longer than the writers."""
    import amago.loading  # noqa: F401 (once, and not in every fork)

    context = multiprocessing.get_context("fork")
    results: dict[str, object] = {}
    roles = [(write, 1, 1), (write, 2, 1), (write, 3, 1), (read, 0, 2), (read, 1, 2), (delete, 0, 2)]
    running = []
    for role, number, times in roles:
        receiver, sender = context.Pipe(duplex=False)

        def work(role=role, number=number, times=times, sender=sender) -> None:
            sender.send(role(root, number, times * seconds))

        process = context.Process(target=work)
        process.start()
        sender.close()
        running.append((f"{role.__name__} {number}", process, receiver))
    for name, process, receiver in running:
        results[name] = receiver.recv()
        process.join()
        assert process.exitcode == 0, name
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
