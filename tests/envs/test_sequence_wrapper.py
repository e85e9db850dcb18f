"""SequenceWrapper and EnvCreator: environments that record themselves without a vector environment."""

import pickle
import shutil

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv, EnvCreator, EpsilonGreedy, SequenceWrapper
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.recorder import TrajectoryWriteError
from amago.hindsight import load_trajectory, parse_filename

STAY = np.zeros((1, 1), np.int64)


def make_lake() -> AMAGOEnv:
    return AMAGOEnv(MetaFrozenLake(size=3, k_episodes=2, max_episode_steps=3), "lake")


def play(env: SequenceWrapper, episodes: int) -> None:
    env.reset(seed=0)
    for i in range(episodes):
        while True:
            _, _, terminated, truncated, _ = env.step(STAY)
            if terminated[0] or truncated[0]:
                break
        if i < episodes - 1:
            env.reset()


def lengths(folder) -> list[int]:
    return [len(load_trajectory(path)) for path in sorted(folder.iterdir())]


def test_whole_episodes_are_saved_by_default(tmp_path):
    env = SequenceWrapper(make_lake(), tmp_path)
    play(env, 3)
    env.save_finished_trajs()
    assert lengths(tmp_path) == [6, 6, 6]
    assert {parse_filename(path).env_name for path in tmp_path.iterdir()} == {"lake"}
    piece = load_trajectory(next(tmp_path.iterdir()))
    assert piece.dones[:, 0].tolist() == [False] * 5 + [True]
    env.close()


def test_pieces_have_lengths_between_the_given_bounds_and_closing_writes_the_rest(tmp_path):
    env = SequenceWrapper(make_lake(), tmp_path, save_every=(4, 4), save_trajs_as="traj")
    play(env, 2)
    env.reset()
    env.step(STAY)
    env.close()
    assert lengths(tmp_path) == [4, 2, 4, 2, 1]
    assert env.random_traj_length() == 4


def test_nothing_is_written_without_a_folder():
    env = SequenceWrapper(make_lake(), None)
    play(env, 1)
    assert env.total_frames == 6
    assert env.total_frames_by_env_name == {"lake": 6}
    env.close()


def test_steps_are_counted_under_the_name_of_their_episode():
    class Renamed(AMAGOEnv):
        level = 0

        @property
        def env_name(self):
            return f"lake {self.level}"

        def inner_reset(self, *args, **kwargs):
            self.level += 1
            return super().inner_reset(*args, **kwargs)

    env = SequenceWrapper(Renamed(MetaFrozenLake(size=3, k_episodes=2, max_episode_steps=3), "lake"), None)
    play(env, 2)
    env.reset()
    env.step(STAY)
    assert env.total_frames_by_env_name == {"lake 1": 6, "lake 2": 6, "lake 3": 1}
    assert env.total_frames == 13


def test_returns_lengths_and_reported_metrics_are_kept_until_they_are_reset():
    env = SequenceWrapper(make_lake(), None)
    play(env, 2)
    assert env.return_history.data == {"lake": [0.0, 0.0]}
    assert env.success_history.data == {
        "lake": {
            "Episode Length": [6.0] * 2,
            "Episode 0 Success": [0.0] * 2,
            "Episode 1 Success": [0.0] * 2,
        }
    }
    env.reset_stats()
    assert env.return_history.data == {"lake": []}


def test_the_current_timestep_and_the_steps_of_the_episode_can_be_read():
    env = SequenceWrapper(make_lake(), None)
    with pytest.raises(RuntimeError, match="reset"):
        _ = env.current_timestep
    first, _ = env.reset(seed=0)
    assert env.current_timestep is first
    timestep, *_ = env.step(STAY)
    assert env.current_timestep is timestep
    assert env.step_count.tolist() == [1]
    assert env.env_name == "lake"


def test_a_batched_environment_records_each_row_and_returns_where_the_next_episode_begins(
    tmp_path, counting_batch_env
):
    env = SequenceWrapper(AMAGOEnv(counting_batch_env(3), "counting", batched_envs=3), tmp_path)
    env.reset()
    for _ in range(4):
        timestep, *_ = env.step(np.zeros((3, 1), np.int64))
    env.save_finished_trajs()
    assert sorted(lengths(tmp_path)) == [2, 2, 3, 4]
    assert env.step_count.tolist() == timestep.time_idx.tolist() == [0, 1, 0]
    for path in tmp_path.iterdir():
        piece = load_trajectory(path)
        np.testing.assert_array_equal(piece.obs["observation"], piece.time_idxs)
    assert env.return_history.data == {"counting": [3.0, 6.0, 3.0, 10.0]}
    assert env.success_history.data == {"counting": {"Episode Length": [2.0, 3.0, 2.0, 4.0]}}
    assert env.total_frames == 12
    assert env.total_frames_by_env_name == {"counting": 12}
    env.close()


def test_a_trajectory_can_be_finished_by_hand(tmp_path):
    env = SequenceWrapper(make_lake(), tmp_path)
    start, _ = env.reset(seed=0)
    env.step(STAY)
    env.step(STAY)
    env.finish_active_traj(0, start)
    env.step(STAY)
    env.close()
    assert lengths(tmp_path) == [2, 1]
    second = load_trajectory(sorted(tmp_path.iterdir())[1])
    assert second.time_idxs[:, 0].tolist() == [0, 3]
    np.testing.assert_array_equal(second.obs["observation"][0], start.obs["observation"][0])


def test_closing_closes_the_environment_even_if_its_files_cannot_be_written(tmp_path):
    class NotesClosing(gym.Wrapper):
        closed = False

        def close(self):
            self.closed = True

    inner = NotesClosing(MetaFrozenLake(size=3))
    wrapper = SequenceWrapper(AMAGOEnv(inner, "lake"), tmp_path / "buffer")
    wrapper.reset()
    wrapper.step(STAY)
    shutil.rmtree(tmp_path / "buffer")
    with pytest.warns(UserWarning, match="lost"), pytest.raises(TrajectoryWriteError):
        wrapper.close()
    assert inner.closed


def test_env_creator_adds_exploration_and_recording_and_can_be_pickled(tmp_path):
    creator = EnvCreator(make_lake, EpsilonGreedy, tmp_path, 2, 3, "npz")
    env = creator()
    assert isinstance(env, SequenceWrapper)
    assert isinstance(env.env, EpsilonGreedy)
    play(env, 1)
    env.close()
    assert sum(lengths(tmp_path)) >= 6
    assert set(lengths(tmp_path)) <= {1, 2, 3}
    plain = EnvCreator(AMAGOEnv, None, None, None, None, "npz")
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_invalid_bounds_of_lengths_are_refused():
    with pytest.raises(ValueError, match="save_every_low and save_every_high"):
        EnvCreator(make_lake, None, None, 2, None, "npz")
    with pytest.raises(ValueError, match=r"save_every must be \(lowest, highest\), got \(5, 4\)"):
        SequenceWrapper(make_lake(), None, save_every=(5, 4))
