"""One trajectory, and random windows of it."""

import numpy as np
import pytest

from amago.hindsight import FrozenTraj
from amago.loading import RLData


@pytest.mark.parametrize("padded_sampling", ["none", "both", "left", "right"])
@pytest.mark.parametrize("length", [5, 6, 100])
def test_a_trajectory_no_longer_than_the_window_is_returned_whole(make_traj, padded_sampling, length) -> None:
    data = RLData(make_traj(5))
    piece = data.random_slice(length, padded_sampling, np.random.default_rng(0))
    assert len(piece) == 5
    np.testing.assert_array_equal(piece.obs["observation"], data.obs["observation"])


def test_a_slice_keeps_one_timestep_more_than_transitions_and_all_rows_together(make_traj) -> None:
    traj: FrozenTraj = make_traj(20)
    rng = np.random.default_rng(1)
    for _ in range(50):
        piece = RLData(traj).random_slice(6, "both", rng)
        first = int(piece.time_idxs[0, 0])
        stop = first + len(piece)
        np.testing.assert_array_equal(piece.obs["observation"], traj.obs["observation"][first : stop + 1])
        np.testing.assert_array_equal(piece.rl2s, traj.rl2s[first : stop + 1])
        np.testing.assert_array_equal(piece.rews, traj.rews[first:stop])
        np.testing.assert_array_equal(piece.actions, traj.actions[first:stop])
        np.testing.assert_array_equal(piece.dones, traj.dones[first:stop])


def test_the_same_generator_state_gives_the_same_slice(make_traj) -> None:
    data = RLData(make_traj(30))
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
        RLData(make_traj(5)).random_slice(length, padded_sampling)
