"""Distribution of sampled windows and files."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from amago.loading import BatchLoader, DiskTrajDataset
from amago.loading.file_index import TrajFile
from amago.loading.rl_data import window_bounds

DRAWS = 20_000


def starts(transitions: int, length: int, padded_sampling: str) -> Iterable[int]:
    """The starts that are to be equally likely, both ends included."""
    first, last = {
        "none": (0, transitions - length),
        "both": (1 - length, transitions - 2),
        "left": (1 - length, transitions - length),
        "right": (0, transitions - 2),
    }[padded_sampling]
    return range(first, last + 1)


def expected_windows(transitions: int, length: int, padded_sampling: str) -> dict[tuple[int, int], float]:
    if transitions <= length:
        return {(0, transitions): 1.0}
    cut = Counter(
        (max(start, 0), min(start + length, transitions))
        for start in starts(transitions, length, padded_sampling)
    )
    return {window: count / cut.total() for window, count in cut.items()}


def assert_drawn_as_expected(drawn: Counter, expected: dict) -> None:
    """Pearson's chi-square, against five standard deviations above its mean."""
    assert set(drawn) <= set(expected)
    total = drawn.total()
    chi_square = sum((drawn[key] - total * p) ** 2 / (total * p) for key, p in expected.items())
    freedom = len(expected) - 1
    assert chi_square <= freedom + 5 * (2 * freedom) ** 0.5


SIZES = [(2, 1), (3, 1), (3, 2), (5, 4), (6, 4), (9, 4), (40, 7), (4, 4), (3, 4), (1, 1)]


@pytest.mark.parametrize("padded_sampling", ["none", "both", "left", "right"])
@pytest.mark.parametrize(("transitions", "length"), SIZES)
def test_every_start_of_a_window_is_equally_likely(transitions, length, padded_sampling) -> None:
    rng = np.random.default_rng([transitions, length])
    drawn = Counter(window_bounds(transitions, length, padded_sampling, rng) for _ in range(DRAWS))
    assert_drawn_as_expected(drawn, expected_windows(transitions, length, padded_sampling))


def test_a_start_that_is_left_out_would_be_noticed() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter((start := int(rng.integers(0, 33)), start + 7) for _ in range(DRAWS))
    with pytest.raises(AssertionError):  # the fault: the last of 34 starts never comes
        assert_drawn_as_expected(drawn, expected_windows(40, 7, "none"))


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("padded_sampling", ["none", "both", "left", "right"])
def test_batches_hold_windows_of_that_distribution(make_dataset, fill, padded_sampling, cache_bytes) -> None:
    dataset: DiskTrajDataset = make_dataset(items=6000, cache_bytes=cache_bytes)
    dataset.padded_sampling = padded_sampling
    fill(dataset.fifo_folder, 1, transitions=11)
    loader = BatchLoader(
        dataset, batch_size=100, batches_per_epoch=60, workers=0, device="cpu", seed=5 if cache_bytes else 6
    )
    drawn: Counter[tuple[int, int]] = Counter()
    for batch in loader.epoch(0):
        assert batch.lengths is not None
        for row, timesteps in enumerate(batch.lengths.tolist()):
            first = int(batch.time_idxs[row, 0])
            drawn[first, first + timesteps - 1] += 1
    assert_drawn_as_expected(drawn, expected_windows(11, 4, padded_sampling))


def drawn_numbers(dataset: DiskTrajDataset) -> Counter[int]:
    return Counter(int(dataset[i].obs["observation"][0, 0]) for i in range(len(dataset)))


def test_files_are_equally_likely_by_default(make_dataset, fill) -> None:
    dataset = make_dataset(items=6000)
    fill(dataset.fifo_folder, 6, transitions=[5, 6, 7, 30, 80, 200])
    fill(dataset.protected_folder, 1, first=6)
    dataset.set_epoch(0)
    assert_drawn_as_expected(drawn_numbers(dataset), dict.fromkeys(range(7), 1 / 7))


def test_timesteps_are_equally_likely_with_sample_by_timesteps(make_dataset, fill) -> None:
    dataset = make_dataset(items=6000, sample_by="timesteps")
    lengths = [5, 6, 7, 30, 80, 200]
    fill(dataset.fifo_folder, 6, transitions=lengths)
    dataset.set_epoch(0)
    expected = {i: length / sum(lengths) for i, length in enumerate(lengths)}
    assert_drawn_as_expected(drawn_numbers(dataset), expected)


class Recent(DiskTrajDataset):
    """Newer files are more likely: by a third with every second, in the tests' names."""

    def sampling_weights(self, files: Sequence[TrajFile]) -> np.ndarray:
        ages = np.array([file.unix_time for file in files])
        return 1.3 ** (ages - ages.min())


class Balanced(DiskTrajDataset):
    """All environments are equally likely, however many files they have."""

    def sampling_weights(self, files: Sequence[TrajFile]) -> list[float]:
        counts = Counter(file.env_name for file in files)
        return [1 / counts[file.env_name] for file in files]


class Prioritised(DiskTrajDataset):
    """Weights that the training loop sets by file name, and that loader workers hear of."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.priorities: dict[str, float] = {}

    def sampling_weights(self, files: Sequence[TrajFile]) -> list[float]:
        return [self.priorities.get(file.name, 1.0) for file in files]

    def worker_state(self) -> object:
        return super().worker_state(), self.priorities

    def load_worker_state(self, state: object) -> None:
        told, self.priorities = state
        super().load_worker_state(told)


@pytest.fixture
def make_weighted(tmp_path) -> Callable[[type[DiskTrajDataset]], DiskTrajDataset]:
    def make(cls: type[DiskTrajDataset]) -> DiskTrajDataset:
        dataset = cls(tmp_path, "dset", 100)
        dataset.configure(4000, 4, "none", True)
        dataset.seed_sampling(1)
        return dataset

    return make


def test_a_dataset_can_prefer_new_files(make_weighted, fill) -> None:
    dataset = make_weighted(Recent)
    fill(dataset.fifo_folder, 8)
    dataset.set_epoch(0)
    weights = 1.3 ** np.arange(8)
    assert_drawn_as_expected(drawn_numbers(dataset), dict(enumerate(weights / weights.sum())))


def test_a_dataset_can_balance_environments(make_weighted, fill) -> None:
    dataset = make_weighted(Balanced)
    fill(dataset.fifo_folder, 6, env_name="often")
    fill(dataset.fifo_folder, 2, first=6, env_name="seldom")
    dataset.set_epoch(0)
    assert_drawn_as_expected(drawn_numbers(dataset), {**dict.fromkeys(range(6), 1 / 12), 6: 1 / 4, 7: 1 / 4})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_can_change_its_weights_between_epochs(make_weighted, fill, workers) -> None:
    dataset = make_weighted(Prioritised)
    names = [path.name for path in fill(dataset.fifo_folder, 4)]
    loader = BatchLoader(dataset, batch_size=50, batches_per_epoch=4, workers=workers, device="cpu", seed=0)
    for chosen in (2, 0, 3):
        dataset.priorities = {name: float(i == chosen) for i, name in enumerate(names)}
        drawn = {int(n) for batch in loader.epoch(chosen) for n in batch.obs["observation"][:, 0, 0]}
        assert drawn == {chosen}
    loader.close()


@pytest.fixture
def weighted(tmp_path, fill) -> Callable[..., DiskTrajDataset]:
    """Makes a dataset of two or three files, of 10, 20 and 30 transitions, whose hook gives these weights."""

    def make(weights: object, count: int = 2) -> DiskTrajDataset:
        class Weighted(DiskTrajDataset):
            def sampling_weights(self, files: Sequence[TrajFile]) -> object:
                return weights

        dataset = Weighted(tmp_path, "dset", 100)
        dataset.configure(10, 4, "none", True)
        fill(dataset.fifo_folder, count, transitions=[10, 20, 30][:count])
        return dataset

    return make


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, float("nan")]], ids=["few", "negative", "zero", "nan"]
)
def test_invalid_weights_are_refused(weighted, weights) -> None:
    with pytest.raises(ValueError, match="sampling_weights"):
        weighted(weights)[0]


@pytest.mark.parametrize("weights", [["a", "b"], {"a": 1.0}], ids=str)
def test_weights_that_are_not_numbers_are_refused(weighted, weights) -> None:
    with pytest.raises(TypeError, match="sampling_weights must return numbers"):
        weighted(weights)[0]


@pytest.mark.parametrize(
    "weights", [[1e308, 0.0, 1e308], [5e-324, 0.0, 5e-324], [1e-300, 0.0, 1e-300]], ids=str
)
def test_only_the_ratios_of_weights_count(weighted, weights) -> None:
    dataset = weighted(weights, 3)
    lengths = [len(dataset.sample_random_trajectory().rews) for _ in range(200)]
    assert set(lengths) == {10, 30}
    assert 60 < lengths.count(10) < 140  # 100 with a standard deviation of 7
