"""One trajectory, and random windows of it."""

from collections import Counter

import numpy as np
import pytest

from amago.hindsight import FrozenTraj
from amago.loading import RLData
from amago.loading.rl_data import window_bounds


def starts(padded_sampling: str, transitions: int, length: int) -> list[int]:
    """Every start of a window, each to be equally likely."""
    return {
        "none": list(range(transitions - length + 1)),
        "both": list(range(-length + 1, transitions - 1)),
        "left": list(range(-length + 1, transitions - length + 1)),
        "right": list(range(transitions - 1)),
    }[padded_sampling]


def assert_uniform(draws: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    """All of `expected` occur and nothing else does; Pearson's chi-square stays below its 99.9 % point."""
    counts = Counter(draws)
    assert set(counts) == set(expected)
    mean = len(draws) / len(expected)
    chi_square = sum((counts[window] - mean) ** 2 / mean for window in expected)
    freedom = len(expected) - 1
    assert chi_square < freedom + 3.1 * np.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("padded_sampling", ["none", "both", "left", "right"])
@pytest.mark.parametrize(("transitions", "length"), [(6, 3), (7, 1), (5, 4), (9, 2)])
def test_windows_are_uniform_over_their_starts(padded_sampling: str, transitions: int, length: int) -> None:
    rng = np.random.default_rng(7)
    drawn = [window_bounds(transitions, length, padded_sampling, rng) for _ in range(6000)]
    expected = [
        (max(start, 0), min(start + length, transitions))
        for start in starts(padded_sampling, transitions, length)
    ]
    assert_uniform(drawn, expected)


def test_the_uniformity_check_notices_a_start_that_is_left_out() -> None:
    rng = np.random.default_rng(7)
    short_by_one = [(start, start + 3) for start in rng.integers(0, 3, 6000).tolist()]
    with pytest.raises(AssertionError):
        assert_uniform(short_by_one, [(start, start + 3) for start in starts("none", 6, 3)])


@pytest.mark.parametrize("padded_sampling", ["none", "both", "left", "right"])
@pytest.mark.parametrize("length", [5, 6, 100])
def test_a_trajectory_no_longer_than_the_window_is_returned_whole(make_traj, padded_sampling, length) -> None:
    data = RLData.from_trajectory(make_traj(5))
    piece = data.random_slice(length, padded_sampling, np.random.default_rng(0))
    assert len(piece) == 5
    np.testing.assert_array_equal(piece.obs["observation"], data.obs["observation"])


def test_a_slice_keeps_one_timestep_more_than_transitions_and_all_rows_together(make_traj) -> None:
    traj: FrozenTraj = make_traj(20)
    rng = np.random.default_rng(1)
    for _ in range(50):
        piece = RLData.from_trajectory(traj).random_slice(6, "both", rng)
        first = int(piece.time_idxs[0, 0])
        stop = first + len(piece)
        np.testing.assert_array_equal(piece.obs["observation"], traj.obs["observation"][first : stop + 1])
        np.testing.assert_array_equal(piece.rl2s, traj.rl2s[first : stop + 1])
        np.testing.assert_array_equal(piece.rews, traj.rews[first:stop])
        np.testing.assert_array_equal(piece.actions, traj.actions[first:stop])
        np.testing.assert_array_equal(piece.dones, traj.dones[first:stop])


def test_the_same_generator_state_gives_the_same_slice(make_traj) -> None:
    data = RLData.from_trajectory(make_traj(30))
    pieces = [data.random_slice(4, "none", np.random.default_rng(3)) for _ in range(2)]
    np.testing.assert_array_equal(pieces[0].time_idxs, pieces[1].time_idxs)


def test_rl2s_are_made_from_shifted_rewards_and_actions_with_zeros_first(make_traj) -> None:
    traj = make_traj(4)
    made = RLData(traj.obs, traj.rews, traj.dones, traj.actions, traj.time_idxs)
    np.testing.assert_array_equal(made.rl2s, traj.rl2s)
    assert not made.rl2s[0].any()


def test_arrays_of_other_dtypes_become_those_of_trajectory_files() -> None:
    data = RLData(
        obs={"observation": np.zeros((3, 2), dtype=np.uint8)},
        rews=np.ones((2, 1)),
        dones=np.zeros((2, 1)),
        actions=np.zeros((2, 4)),
        time_idxs=np.arange(3, dtype=np.int32)[:, None],
    )
    assert data.obs["observation"].dtype == np.uint8
    assert (data.rews.dtype, data.dones.dtype, data.actions.dtype) == (np.float32, np.bool_, np.float32)
    assert (data.time_idxs.dtype, data.rl2s.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rews", np.zeros(2)),
        ("rews", np.zeros((0, 1))),
        ("dones", np.zeros((3, 1))),
        ("actions", np.zeros((3, 4))),
        ("time_idxs", np.zeros((2, 1))),
        ("rl2s", np.zeros((3, 4))),
        ("obs", {"observation": np.zeros((2, 2))}),
    ],
)
def test_an_array_that_does_not_fit_is_named(name: str, value: object) -> None:
    arrays: dict[str, object] = {
        "obs": {"observation": np.zeros((3, 2))},
        "rews": np.zeros((2, 1)),
        "dones": np.zeros((2, 1)),
        "actions": np.zeros((2, 4)),
        "time_idxs": np.zeros((3, 1)),
        "rl2s": np.zeros((3, 5)),
    }
    RLData(**arrays)
    with pytest.raises(ValueError, match=name):
        RLData(**{**arrays, name: value})


@pytest.mark.parametrize(("length", "padded_sampling"), [(0, "none"), (3, "middle")])
def test_slices_reject_lengths_below_one_and_unknown_sampling(make_traj, length, padded_sampling) -> None:
    with pytest.raises(ValueError, match=r"length|padded_sampling"):
        RLData.from_trajectory(make_traj(5)).random_slice(length, padded_sampling)
