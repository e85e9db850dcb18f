"""Drawing from the replay buffer on disk."""

import pickle
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from amago.hindsight import FrozenTraj, NoOpRelabeler, Relabeler, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset, RLData, RLData_pad_collate, get_path_to_trajs, load_traj_from_disk
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only


def assert_same(a: RLData, b: RLData) -> None:
    for name in ("rl2s", "rews", "dones", "actions", "time_idxs"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for key in a.obs:
        np.testing.assert_array_equal(a.obs[key], b.obs[key])


def test_folders_of_the_buffer(tmp_path) -> None:
    dataset = DiskTrajDataset(tmp_path, "name", 10)
    assert dataset.save_new_trajs_to == tmp_path / "name" / "buffer" / "fifo"
    assert get_path_to_trajs(tmp_path, "name", fifo=True) == dataset.save_new_trajs_to
    assert get_path_to_trajs(str(tmp_path), "name", fifo=False) == tmp_path / "name" / "buffer" / "protected"
    assert (tmp_path / "name" / "buffer" / "protected").is_dir()


def test_a_tilde_is_expanded(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        DiskTrajDataset("~/dsets", "a", 10).save_new_trajs_to == tmp_path / "dsets" / "a" / "buffer" / "fifo"
    )


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_files_of_every_format_are_read_whole(make_traj, tmp_path, save_as) -> None:
    path = save_trajectory(make_traj(6, 3), tmp_path / "env_00000001_5", save_as, "env")
    np.testing.assert_array_equal(load_traj_from_disk(str(path)).rl2s, make_traj(6, 3).rl2s)


def test_fifo_and_protected_are_both_sampled(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 3)
    fill(dataset.protected_folder, 3, first=3)
    assert numbers(dataset) == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_reading_a_window_gives_what_slicing_the_whole_file_gives(make_dataset, fill, save_as) -> None:
    class Whole(DiskTrajDataset):
        def sample_random_trajectory(self) -> RLData:
            return super().sample_random_trajectory()

    cached = make_dataset()
    fill(cached.fifo_folder, 4, transitions=[3, 9, 20, 50], save_as=save_as)
    uncached = make_dataset(cache_bytes=0)
    with pytest.warns(
        AmagoWarning, match="Whole overrides sample_random_trajectory: every sample reads a whole"
    ):
        sliced = Whole(cached.dset_root, "dset", 100)
    sliced.configure(50, 4, "none", True)
    sliced.seed_sampling(0)
    for epoch in (0, 1):
        for dataset in (cached, uncached, sliced):
            dataset.set_epoch(epoch)
        for i in range(50):
            assert_same(cached[i], sliced[i])
            assert_same(uncached[i], sliced[i])


def test_a_sample_depends_on_seed_rank_epoch_and_index_alone(make_dataset, fill) -> None:
    first, second = make_dataset(length=3), make_dataset(length=3)
    fill(first.fifo_folder, 20, transitions=30)
    for dataset in (first, second):
        dataset.set_epoch(5)
    backwards = {i: second[i] for i in reversed(range(50))}
    for i in range(50):
        assert_same(first[i], backwards[i])

    def epoch() -> list[list[int]]:
        return [[*second[i].obs["observation"][0].astype(int)] for i in range(50)]

    before = epoch()
    second.set_epoch(6)
    other_epoch = epoch()
    second.seed_sampling(0, rank=1)
    second.set_epoch(5)
    other_rank = epoch()
    second.seed_sampling(1)
    other_seed = epoch()
    assert before not in (other_epoch, other_rank, other_seed)


def test_sampling_lists_are_ordered_by_writer_and_number_whatever_the_clock_says(tmp_path, make_traj) -> None:
    orders = []
    for name, times in (("a", [30, 20, 10]), ("b", [5, 6, 7])):
        dataset = DiskTrajDataset(tmp_path, name, 10)
        for number, time in enumerate(times):
            save_trajectory(
                make_traj(5, number),
                dataset.fifo_folder / trajectory_filename("env", 1, number, time),
                "npz",
                "env",
            )
        dataset.configure(40, 5, "none", True)
        dataset.seed_sampling(3)
        dataset.set_epoch(0)
        orders.append([int(dataset[i].obs["observation"][0, 0]) for i in range(40)])
    assert orders[0] == orders[1]


def test_files_or_timesteps_can_be_drawn_with_equal_chances(make_dataset, fill) -> None:
    by_file = make_dataset(items=2000)
    fill(by_file.fifo_folder, 2, transitions=[5, 15])
    by_timestep = make_dataset(items=2000, sample_by="timesteps")

    def share_of_long(dataset: DiskTrajDataset) -> float:
        return float(np.mean([dataset[i].obs["observation"][0, 0] for i in range(2000)]))

    assert share_of_long(by_file) == pytest.approx(0.5, abs=0.04)
    assert share_of_long(by_timestep) == pytest.approx(0.75, abs=0.04)


def bytes_read(action: Callable[[], object]) -> int:
    def so_far() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = so_far()
    action()
    return so_far() - before


def assert_reads_little(read_slice: Callable[[], object], size: int) -> None:
    assert bytes_read(read_slice) < size / 20


def test_a_slice_of_a_long_file_costs_the_slice_and_not_the_file(make_dataset) -> None:
    steps = 20_000
    traj = FrozenTraj(
        obs={"observation": np.zeros((steps + 1, 100), dtype=np.float32)},
        rl2s=np.zeros((steps + 1, 2), dtype=np.float32),
        time_idxs=np.arange(steps + 1)[:, None],
        rews=np.zeros((steps, 1), dtype=np.float32),
        dones=np.zeros((steps, 1), dtype=np.bool_),
        actions=np.zeros((steps, 1), dtype=np.float32),
    )
    dataset = make_dataset()
    path = save_trajectory(traj, dataset.fifo_folder / "env_00000000_1", "npz", "env")
    size = path.stat().st_size
    dataset.set_epoch(0)
    assert_reads_little(lambda: dataset[0], size)  # headers included
    assert_reads_little(lambda: dataset[1], size)
    assert_reads_little(lambda: RLData_pad_collate([dataset[i] for i in range(2, 10)]), size)
    with pytest.raises(AssertionError):  # the fault: load everything, then slice
        assert_reads_little(lambda: RLData(load_traj_from_disk(path)).random_slice(4), size)


def test_sampled_trajectories_are_copies(make_dataset, fill) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 1)
    dataset.index.refresh()
    for _ in range(2):
        data = dataset.sample_random_trajectory()
        assert (data.rews > 0).all()
        data.rews[:] = -1
    assert (dataset[0].rews > 0).all()


@pytest.mark.parametrize("relabeler", [NoOpRelabeler, 3], ids=["class", "number"])
def test_a_relabeler_that_cannot_be_called_is_refused_at_once(tmp_path, relabeler) -> None:
    with pytest.raises(TypeError, match="relabeler must be a function that returns a FrozenTraj"):
        DiskTrajDataset(tmp_path, "dset", 10, relabeler=relabeler)


def test_an_unconfigured_or_empty_dataset_says_what_is_missing(tmp_path) -> None:
    dataset = DiskTrajDataset(tmp_path, "dset", 10)
    with pytest.raises(RuntimeError, match="configure"):
        dataset[0]
    dataset.configure(5, 5, "none", True)
    with pytest.raises(RuntimeError, match="no trajectory files"):
        dataset[0]
    with pytest.raises(IndexError):
        dataset[5]


def test_a_cached_file_that_is_deleted_is_not_drawn_in_the_next_epoch(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    paths = fill(dataset.fifo_folder, 3)
    assert numbers(dataset) == {0, 1, 2}
    paths[1].unlink()
    dataset.set_epoch(1)
    assert numbers(dataset) == {0, 2}


class AddHundred(Relabeler):
    """Writes to the arrays in place and drops the first half of the trajectory."""

    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        traj.rews[:] += 100
        half = len(traj) // 2
        return FrozenTraj(
            obs={"kept": traj.obs["observation"][half:]},
            rl2s=traj.rl2s[half:],
            time_idxs=traj.time_idxs[half:],
            rews=traj.rews[half:],
            dones=traj.dones[half:],
            actions=traj.actions[half:],
        )


def test_a_relabeler_sees_the_whole_trajectory_once_per_sample(make_dataset, fill) -> None:
    dataset = make_dataset(relabeler=AddHundred(), length=2)
    fill(dataset.fifo_folder, 2, transitions=10)
    for i in range(len(dataset)):
        data = dataset[i]
        assert set(data.obs) == {"kept"}
        assert ((data.rews > 105) & (data.rews <= 110)).all()  # later half, raised once and not once per draw


def test_a_relabeler_with_an_rng_draws_from_the_stream_of_the_sample(make_dataset, fill) -> None:
    class AddNoise(Relabeler):
        rng = np.random.default_rng(0)

        def relabel(self, traj: FrozenTraj) -> FrozenTraj:
            traj.rews[:] = self.rng.random()
            return traj

    dataset = make_dataset(relabeler=AddNoise())
    fill(dataset.fifo_folder, 1)
    in_order = [dataset[i].rews[0].item() for i in range(4)]
    backwards = [dataset[i].rews[0].item() for i in reversed(range(4))]
    assert backwards[::-1] == in_order
    assert len(set(in_order)) == 4


def test_a_relabeler_that_returns_nothing_is_named(make_dataset, fill) -> None:
    class Forgetful(Relabeler):
        def relabel(self, traj: FrozenTraj) -> FrozenTraj:
            traj.rews[:] = 0

    dataset = make_dataset(relabeler=Forgetful())
    fill(dataset.fifo_folder, 1)
    with pytest.raises(TypeError, match="Forgetful"):
        dataset[0]


def test_a_minimum_size_above_the_maximum_size_is_warned_about(
    tmp_path: Path, fill: Callable[..., list[Path]]
) -> None:
    with pytest.warns(AmagoWarning, match="dset_min_size is 7, but fifo holds at most 5 files.*never begins"):
        DiskTrajDataset(tmp_path, "small", 5, dset_min_size=7)
    fill(tmp_path / "small" / "buffer" / "protected", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DiskTrajDataset(tmp_path, "small", 5, dset_min_size=7)
        DiskTrajDataset(tmp_path, "large", float("inf"), dset_min_size=7)


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_the_cache_takes_no_more_memory_than_it_may(make_dataset, fill, numbers, save_as) -> None:
    megabyte = 1 << 20
    dataset = make_dataset(items=400, length=10, cache_bytes=megabyte)
    fill(dataset.fifo_folder, 100, transitions=500, save_as=save_as)  # 3 MB
    dataset.set_epoch(0)
    dataset[0]
    tracemalloc.start()
    assert numbers(dataset) == set(range(100))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert megabyte // 2 < kept < 1.8 * megabyte  # with the files' headers


def test_a_dataset_can_be_pickled_for_spawned_workers(make_dataset, fill) -> None:
    dataset = make_dataset(length=20)
    fill(dataset.fifo_folder, 50, transitions=100)
    dataset.set_epoch(0)
    expected = [dataset[i] for i in range(50)]
    copy = pickle.loads(pickle.dumps(dataset))
    for i, sample in enumerate(expected):
        assert_same(copy[i], sample)
