"""Timesteps, trajectories and relabelling."""

import weakref

import numpy as np
import pytest

from amago.hindsight import FrozenTraj, NoOpRelabeler, Relabeler, Timestep, Trajectory, split_batched_timestep


def make_timestep(time: int, batched_envs: int = 1, width: int = 3) -> Timestep:
    rng = np.random.default_rng(time)
    return Timestep(
        obs={"observation": rng.standard_normal((batched_envs, 2)).astype(np.float32)},
        prev_action=rng.standard_normal((batched_envs, width)).astype(np.float32),
        reward=np.full(batched_envs, float(time), dtype=np.float32),
        time_idx=np.full(batched_envs, time, dtype=np.int64),
        terminal=np.full(batched_envs, time == 4),
        batched_envs=batched_envs,
    )


def test_as_input_puts_the_reward_before_the_previous_action():
    timestep = make_timestep(3, batched_envs=2)
    obs, rl2s, time_idxs = timestep.as_input()
    np.testing.assert_array_equal(obs["observation"], timestep.obs["observation"])
    np.testing.assert_array_equal(rl2s[:, 0], [3.0, 3.0])
    np.testing.assert_array_equal(rl2s[:, 1:], timestep.prev_action)
    assert rl2s.dtype == np.float32
    assert time_idxs.shape == (2, 1)
    assert time_idxs.dtype == np.int64


@pytest.mark.parametrize("rows", [[0, 2], np.array([True, False, True])])
def test_reset_version_zeroes_only_the_rows_that_are_reset_and_copies(rows):
    timestep = make_timestep(4, batched_envs=3)
    before = timestep.copy()
    fresh = timestep.create_reset_version(rows)
    np.testing.assert_array_equal(fresh.reward, [0.0, 4.0, 0.0])
    np.testing.assert_array_equal(fresh.time_idx, [0, 4, 0])
    np.testing.assert_array_equal(fresh.terminal, [False, True, False])
    assert not fresh.prev_action[[0, 2]].any()
    np.testing.assert_array_equal(fresh.prev_action[1], timestep.prev_action[1])
    np.testing.assert_array_equal(timestep.prev_action, before.prev_action)
    np.testing.assert_array_equal(timestep.reward, before.reward)


def test_reset_version_of_no_rows_is_a_copy():
    timestep = make_timestep(4, batched_envs=3)
    np.testing.assert_array_equal(timestep.create_reset_version([]).reward, timestep.reward)


def test_split_rows_have_one_environment_each():
    timestep = make_timestep(2, batched_envs=3)
    rows = split_batched_timestep(timestep)
    assert [row.batched_envs for row in rows] == [1, 1, 1]
    for index, row in enumerate(rows):
        np.testing.assert_array_equal(row.obs["observation"], timestep.obs["observation"][index : index + 1])
        assert row.time_idx.shape == row.reward.shape == row.terminal.shape == (1,)


def test_a_kept_row_does_not_keep_the_whole_batch_alive():
    def split_into_views(t: Timestep) -> list[Timestep]:
        # The fault: rows that are views.
        obs = t.obs["observation"]
        return [
            Timestep({"observation": obs[i : i + 1]}, t.prev_action, t.reward, t.time_idx, t.terminal, 1)
            for i in range(t.batched_envs)
        ]

    def batch_outlives_its_rows(split) -> bool:
        timestep = make_timestep(2, batched_envs=3)
        batch = weakref.ref(timestep.obs["observation"])
        row = split(timestep)[0]
        del timestep
        assert row.obs["observation"].shape == (1, 2)
        return batch() is not None

    assert not batch_outlives_its_rows(split_batched_timestep)
    assert batch_outlives_its_rows(split_into_views)


def test_frozen_trajectory_has_the_shapes_and_dtypes_of_the_file_format():
    trajectory = Trajectory(make_timestep(time) for time in range(5))
    frozen = trajectory.freeze()
    shapes = {name: (array.shape, array.dtype) for name, array in frozen.to_dict().items()}
    assert shapes == {
        "_OBS_KEY_observation": ((5, 2), np.float32),
        "rl2s": ((5, 4), np.float32),
        "time_idxs": ((5, 1), np.int64),
        "rews": ((4, 1), np.float32),
        "dones": ((4, 1), np.bool_),
        "actions": ((4, 3), np.float32),
    }
    assert len(frozen) == 4


def test_a_transition_holds_the_action_and_reward_that_lead_to_the_next_timestep():
    timesteps = [make_timestep(time) for time in range(5)]
    frozen = Trajectory(timesteps).freeze()
    for t in range(4):
        np.testing.assert_array_equal(frozen.actions[t], timesteps[t + 1].prev_action[0])
        assert frozen.rews[t, 0] == t + 1
    np.testing.assert_array_equal(frozen.dones[:, 0], [False, False, False, True])
    np.testing.assert_array_equal(frozen.rl2s[1:, 1:], frozen.actions)


def test_returns_of_segments_add_up_to_the_return_of_the_episode():
    timesteps = [make_timestep(time) for time in range(5)]
    pieces = Trajectory(timesteps[:3]), Trajectory(timesteps[2:])
    assert pieces[0].total_return + pieces[1].total_return == Trajectory(timesteps).total_return == 10.0


def test_a_trajectory_refuses_a_batch():
    with pytest.raises(ValueError, match=r"batched_envs=2.*split_batched_timestep"):
        Trajectory().add_timestep(make_timestep(0, batched_envs=2))


def test_an_empty_trajectory_cannot_be_frozen():
    with pytest.raises(ValueError, match="empty"):
        Trajectory().freeze()


def test_to_dict_and_from_dict_are_inverse(make_frozen):
    frozen = make_frozen()
    again = FrozenTraj.from_dict(frozen.to_dict())
    assert again.to_dict().keys() == frozen.to_dict().keys()
    for name, array in frozen.to_dict().items():
        np.testing.assert_array_equal(again.to_dict()[name], array)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rews", lambda a: a[:-1], "rows"),
        ("obs", lambda obs: {key: array[:-1] for key, array in obs.items()}, "image.*rows"),
        ("actions", lambda a: a[:, :-1], "rl2s has width 4"),
        ("dones", lambda a: a[:, 0], "two axes"),
        ("time_idxs", lambda a: a.astype(np.float32), "dtype float32"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(make_frozen, name, change, message):
    frozen = make_frozen()
    fields = {
        field: getattr(frozen, field) for field in ("obs", "rl2s", "time_idxs", "rews", "dones", "actions")
    }
    fields[name] = change(fields[name])
    with pytest.raises(ValueError, match=message):
        FrozenTraj(**fields)


@pytest.mark.parametrize("missing", ["rews", "_OBS_KEY_image"])
def test_from_dict_names_what_is_missing_or_unknown(make_frozen, missing):
    arrays = make_frozen().to_dict()
    del arrays["_OBS_KEY_nested/state"], arrays[missing]
    with pytest.raises(ValueError, match="rews" if missing == "rews" else "observations"):
        FrozenTraj.from_dict(arrays)
    with pytest.raises(ValueError, match="'reward'"):
        FrozenTraj.from_dict({**make_frozen().to_dict(), "reward": np.zeros(3)})


def test_relabelers_are_called_and_may_edit_in_place(make_frozen):
    class Sparse(Relabeler):
        def relabel(self, traj):
            traj.rews[:] = 0.0
            traj.rl2s[:, 0] = 0.0
            del traj.obs["image"]
            return traj

    relabeled = Sparse()(make_frozen())
    assert not relabeled.rews.any()
    assert list(relabeled.obs) == ["nested/state"]
    frozen = make_frozen()
    assert NoOpRelabeler()(frozen) is frozen
