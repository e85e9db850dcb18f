"""TrajectoryRecorder: every transition in exactly one file, whole batches, files written in the background."""

import contextlib
import errno
import gc
import json
import shutil
import tracemalloc
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.recorder.episode_buffer import EpisodeBuffer
from amago.envs.recorder.recorder import SegmentLength
from amago.envs.vector import PolicyInput, VectorStep, make_vector_env
from amago.hindsight import FrozenTraj, Timestep, load_trajectory, parse_filename

ROWS = 5


class RandomLengths(gym.Env):
    """Every observation is unique: (seed, episode, step). Episodes end by chance, terminated or truncated."""

    def __init__(self, mean_length: float = 8.0) -> None:
        self.observation_space = gym.spaces.Dict(
            {
                "where": gym.spaces.Box(0, 2**40, (3,), np.float64),
                "image": gym.spaces.Box(0, 255, (2, 2), np.uint8),
            }
        )
        self.action_space = gym.spaces.Discrete(4)
        self.mean_length = mean_length
        self.episode = -1

    @property
    def env_name(self) -> str:
        return f"task{self.episode % 3}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        terminated, truncated = (self.np_random.random(2) < 0.5 / self.mean_length).tolist()
        return self._observe(), self.np_random.random(), terminated, truncated, {}

    def _observe(self):
        image = self.np_random.integers(0, 256, (2, 2), dtype=np.uint8)
        return {"where": np.array([self.seed, self.episode, self.steps], np.float64), "image": image}


def actions_of(steps: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4, (steps, ROWS, 1))


def recorder_for(folder: Path | None, **kwargs) -> TrajectoryRecorder:
    settings = {
        "save_len": np.inf,
        "max_seq_len": 1,
        "rng": np.random.default_rng(0),
        "writer_id": "00a",
        **kwargs,
    }
    return TrajectoryRecorder(ROWS, save_to=folder, **settings)


def record(recorder: TrajectoryRecorder, seed: int, steps: int, mean_length: float = 8.0) -> None:
    """Records `steps` steps of ROWS environments and cuts what is unfinished."""
    env = make_vector_env([lambda: AMAGOEnv(RandomLengths(mean_length))] * ROWS, env_mode="sync", seed=seed)
    recorder.begin(env.reset(), env.env_names)
    for actions in actions_of(steps):
        recorder.add(env.step(actions))
    recorder.cut()
    recorder.flush()


def in_order(pieces: list[tuple[str, FrozenTraj]]) -> list[tuple[str, FrozenTraj]]:
    """Sorted by (seed, episode, step) of their first observations."""
    return sorted(pieces, key=lambda piece: piece[1].obs["where"][0].tolist())


def read(folder: Path) -> list[tuple[str, FrozenTraj]]:
    return in_order([(parse_filename(path).env_name, load_trajectory(path)) for path in folder.iterdir()])


def assert_same(first: list[tuple[str, FrozenTraj]], second: list[tuple[str, FrozenTraj]]) -> None:
    assert [name for name, _ in first] == [name for name, _ in second]
    for (_, mine), (_, theirs) in zip(first, second, strict=True):
        mine_arrays, their_arrays = mine.to_dict(), theirs.to_dict()
        assert mine_arrays.keys() == their_arrays.keys()
        for name, array in mine_arrays.items():
            assert array.dtype == their_arrays[name].dtype
            np.testing.assert_array_equal(array, their_arrays[name], err_msg=name)


@pytest.fixture
def recorders():
    """Makes recorders and closes them."""
    made = []

    def make(*args, **kwargs):
        made.append(recorder_for(*args, **kwargs))
        return made[-1]

    yield make
    for recorder in made:
        recorder.close()


@pytest.fixture
def truth(tmp_path_factory):
    """The trajectories of `record` without failures; tests/envs/test_lossless.py checks these."""

    def recorded(seed: int, steps: int) -> list[tuple[str, FrozenTraj]]:
        folder = tmp_path_factory.mktemp("truth")
        recorder = recorder_for(folder)
        record(recorder, seed, steps)
        recorder.close()
        return read(folder)

    return recorded


def transitions(pieces: list[tuple[str, FrozenTraj]]) -> list[list[float]]:
    """Every transition as numbers: where from, where to, action, reward, done, time before and after."""
    return sorted(
        [*piece.obs["where"][t], *piece.obs["where"][t + 1], *piece.actions[t], *piece.rews[t], *piece.dones[t],
         *piece.time_idxs[t], *piece.time_idxs[t + 1], *piece.rl2s[t + 1]]
        for _, piece in pieces
        for t in range(len(piece))
    )  # fmt: skip


def test_staggered_lengths_vary_within_save_len_plus_minus_max_seq_len(recorders, tmp_path):
    record(recorders(tmp_path, save_len=6, max_seq_len=2), 0, 120, 10**9)
    lengths: dict[float, list[int]] = {}
    for _, piece in read(tmp_path):
        lengths.setdefault(piece.obs["where"][0][0], []).append(len(piece))
    assert len(lengths) == ROWS
    whole = [
        length for row in lengths.values() for length in row[:-1]
    ]  # the last of each row was cut at the end
    assert set(whole) == {4, 5, 6, 7, 8}
    assert all(len(set(row)) > 1 for row in lengths.values())


def test_lengths_do_not_vary_when_save_len_is_max_seq_len_or_staggering_is_off():
    rng = np.random.default_rng(0)
    assert set(SegmentLength.around(7, 7, True).sample(rng, 50)) == {7}
    assert set(SegmentLength.around(9, 7, False).sample(rng, 50)) == {9}
    assert SegmentLength.around(1e10, 128, True) == SegmentLength(10**10 - 128, 10**10 + 128)
    with pytest.raises(TypeError):  # the fault: the float goes to a function of whole numbers
        range(1e10 - 128, 1e10 + 128)


@pytest.mark.parametrize(
    ("save_len", "message"),
    [
        (4, "at least max_seq_len"),
        (7.5, "whole number"),
        (np.nan, "must be above 0"),
        (-np.inf, "must be above 0"),
    ],
)
def test_an_invalid_save_len_is_refused(save_len, message):
    with pytest.raises(ValueError, match=message):
        recorder_for(None, save_len=save_len, max_seq_len=5)


def test_a_reset_in_mid_episode_loses_nothing(recorders, tmp_path):
    recorder = recorders(tmp_path)
    env = make_vector_env([lambda: AMAGOEnv(RandomLengths(10**9))] * ROWS, env_mode="sync", seed=0)
    for steps in (3, 4):
        recorder.begin(env.reset(), env.env_names)
        for actions in actions_of(steps):
            recorder.add(env.step(actions))
    recorder.cut()
    recorder.flush()
    assert sorted(len(piece) for _, piece in read(tmp_path)) == [3] * ROWS + [4] * ROWS


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_files_are_written_in_every_format_and_counted(tmp_path, save_as, truth):
    written: list[Path] = []
    recorder = recorder_for(tmp_path / "new" / "folder", save_as=save_as, on_written=written.append)
    record(recorder, 0, 50)
    recorder.close()
    assert_same(read(tmp_path / "new" / "folder"), truth(0, 50))
    assert recorder.saved_files == len(written) == len(set(written))
    assert [parse_filename(path).file_id for path in written] == [f"00a{i:05x}" for i in range(len(written))]


def test_writers_with_equal_ids_and_other_first_numbers_share_a_folder(recorders, tmp_path, truth):
    for number in (0, 40_000):
        record(recorders(tmp_path, first_number=number), 0, 50)
    mine = truth(0, 50)
    assert_same(read(tmp_path), in_order(mine + mine))


def test_every_recorded_frame_is_counted(recorders, tmp_path):
    recorder = recorders(tmp_path)
    record(recorder, 0, 100)
    assert recorder.total_frames == 100 * ROWS == sum(len(piece) for _, piece in read(tmp_path))


def test_state_dict_restores_counters_lengths_and_file_numbers(recorders, tmp_path):
    def names_and_lengths(folder: Path, interrupted: bool) -> list[tuple[str, int]]:
        recorder = recorders(folder, save_len=6, max_seq_len=2)
        record(recorder, 0, 20, 10**9)
        if interrupted:
            state = json.loads(json.dumps(recorder.state_dict()))
            recorder.close()
            recorder = recorders(
                folder, save_len=6, max_seq_len=2, writer_id="fff", rng=np.random.default_rng(9)
            )
            recorder.load_state_dict(state)
        record(recorder, 1, 20, 10**9)
        assert recorder.total_frames == 40 * ROWS
        return sorted((parse_filename(path).file_id, len(load_trajectory(path))) for path in folder.iterdir())

    assert names_and_lengths(tmp_path / "a", False) == names_and_lengths(tmp_path / "b", True)


def big_steps(num: int, width: int = 1000):
    """Steps whose observations take `ROWS * width` bytes each, of episodes that never end."""
    arrays = {
        "actions": np.zeros((ROWS, 2), np.float32),
        "rewards": np.zeros(ROWS, np.float32),
        "terminated": np.zeros(ROWS, np.bool_),
        "truncated": np.zeros(ROWS, np.bool_),
        "done_rows": np.zeros(0, np.int64),
        "final_time_idxs": np.zeros(0, np.int64),
    }
    names = ["big"] * ROWS
    for i in range(num):
        inputs = PolicyInput(
            obs={"image": np.full((ROWS, width), i % 256, np.uint8)},
            rl2s=np.zeros((ROWS, 3), np.float32),
            time_idxs=np.full(ROWS, i),
        )
        final_obs = {"image": np.zeros((0, width), np.uint8)}
        yield VectorStep(inputs=inputs, final_obs=final_obs, metrics=[], env_names=names, **arrays)


def memory_kept(recorder, num: int = 500) -> int:
    """Bytes that stay allocated after recording `num` steps of 5,000 bytes."""
    steps = big_steps(num + 1)
    first = next(steps)
    recorder.begin(first.inputs, first.env_names)
    gc.collect()
    tracemalloc.start()
    for step in steps:
        recorder.add(step)
    del step
    recorder.flush()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


class KeepsTimesteps:
    """The fault: timesteps are collected although nothing will be saved."""

    def begin(self, inputs, env_names):
        self.timesteps = []

    def add(self, step):
        timestep = Timestep(
            step.inputs.obs, step.actions, step.rewards, step.inputs.time_idxs, step.terminated, ROWS
        )
        self.timesteps.append(timestep)

    def flush(self):
        pass


def test_nothing_is_kept_when_saving_is_off():
    assert memory_kept(recorder_for(None)) < 50_000
    assert memory_kept(KeepsTimesteps()) > 500 * 5_000


def test_memory_is_given_back_as_segments_are_written_not_when_collection_ends(recorders, tmp_path):
    recorder = recorders(tmp_path, save_len=50, max_seq_len=1, stagger=False)
    kept = memory_kept(recorder, 1000)
    assert recorder.saved_files == 20 * ROWS
    assert kept < 1000 * 5_000 / 4


def test_a_segment_does_not_keep_the_batch_alive():
    first, *steps = big_steps(3)
    buffer = EpisodeBuffer(first.inputs)
    for step in steps:
        buffer.add(step)
    for array in buffer.segment(0).to_dict().values():
        owner = array if array.base is None else array.base
        assert owner.nbytes <= 2 * array.nbytes
    # The fault: a view of one row.
    view = steps[-1].inputs.obs["image"][0]
    assert view.base.nbytes > 2 * view.nbytes


def test_a_failed_write_raises_names_the_folder_and_keeps_the_segment(tmp_path, truth):
    folder = tmp_path / "buffer"
    recorder = recorder_for(folder)
    shutil.rmtree(folder)
    with pytest.raises(TrajectoryWriteError, match=f"{folder}.*kept in memory") as raised:
        record(recorder, 0, 100)
    assert raised.value.__cause__.errno == errno.ENOENT
    folder.mkdir()
    recorder.flush()
    written = transitions(read(folder))
    recorder.close()
    everything = transitions(truth(0, 100))
    assert written
    assert all(transition in everything for transition in written)


def test_a_step_is_recorded_even_if_add_raises_a_write_error(tmp_path, truth):
    folder = tmp_path / "buffer"
    recorder = recorder_for(folder)
    shutil.rmtree(folder)
    env = make_vector_env([lambda: AMAGOEnv(RandomLengths())] * ROWS, env_mode="sync", seed=0)
    recorder.begin(env.reset(), env.env_names)
    failures = 0
    for i, actions in enumerate(actions_of(100)):
        if i == 50:
            folder.mkdir()
        try:
            recorder.add(env.step(actions))
            if i == 49:
                recorder.flush()
        except TrajectoryWriteError:
            failures += 1
    recorder.cut()
    recorder.close()
    assert failures >= 1
    assert_same(read(folder), truth(0, 100))


class SwallowsFailures:
    """The fault: a write that fails is passed over, and the trajectory is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, piece: FrozenTraj) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "piece").write_bytes(piece.rews.tobytes())


def test_a_failure_is_never_swallowed(tmp_path, make_frozen):
    def raises(save) -> bool:
        try:
            save(make_frozen())
        except OSError:
            return True
        return False

    recorder = recorder_for(tmp_path / "buffer")
    shutil.rmtree(tmp_path / "buffer")

    def save(piece):
        recorder._writer.put(piece, "name", "env")
        recorder.flush()

    assert raises(save)
    assert not raises(SwallowsFailures(tmp_path / "buffer").save)
    (tmp_path / "buffer").mkdir()
    recorder.close()


def test_a_recorder_that_is_collected_without_close_writes_its_queue(tmp_path, truth):
    recorder = recorder_for(tmp_path)
    env = make_vector_env([lambda: AMAGOEnv(RandomLengths())] * ROWS, env_mode="sync", seed=0)
    recorder.begin(env.reset(), env.env_names)
    for actions in actions_of(20):
        recorder.add(env.step(actions))
    recorder.cut()
    del recorder
    gc.collect()
    assert_same(read(tmp_path), truth(0, 20))


def test_add_before_begin_or_cut_after_close_is_an_error(tmp_path):
    recorder = recorder_for(tmp_path)
    step = next(big_steps(1))
    with pytest.raises(RuntimeError, match="begin"):
        recorder.add(step)
    with pytest.raises(ValueError, match="num_envs=5"):
        recorder.begin(step.inputs, ["one name"])
    recorder.begin(step.inputs, step.env_names)
    recorder.close()
    recorder.add(step)
    with pytest.raises(RuntimeError, match="closed"):
        recorder.cut()


def test_an_unknown_format_or_writer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="save_as"):
        recorder_for(tmp_path, save_as="pickle")
    with pytest.raises(ValueError, match="writer_id"):
        recorder_for(tmp_path, writer_id="first")


def test_an_unreported_final_observation_is_replaced_by_the_next_episodes_first_with_a_warning(
    recorders, tmp_path, counting_batch_env
):
    class Unreporting(gym.Wrapper):
        def step(self, action):
            return (*self.env.step(action)[:4], {})

    env = make_vector_env(
        [lambda: AMAGOEnv(Unreporting(counting_batch_env(ROWS)), "counting", batched_envs=ROWS)],
        env_mode="already_vectorized",
    )
    recorder = recorders(tmp_path)
    recorder.begin(env.reset(), env.env_names)
    recorder.add(env.step(np.zeros((ROWS, 1), np.int64)))
    with pytest.warns(
        UserWarning, match=r"'counting'.*the first one of the next episode is recorded.*final_obs"
    ):
        recorder.add(env.step(np.zeros((ROWS, 1), np.int64)))
    recorder.flush()
    (path,) = tmp_path.iterdir()
    piece = load_trajectory(path)
    np.testing.assert_array_equal(piece.obs["observation"], [[0], [1], [0]])
    np.testing.assert_array_equal(piece.time_idxs, [[0], [1], [2]])
    np.testing.assert_array_equal(piece.dones, [[False], [True]])
