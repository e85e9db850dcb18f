"""No transition is lost or doubled: against a slow recorder, through failures, and when the process is killed.

`numbered_episodes.py` has the environment, whose observations tell their row, episode and step, and the program
that is killed.
"""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amago.envs import AMAGOEnv
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import EnvWorkerError, make_vector_env
from amago.hindsight import FrozenTraj, load_trajectory, remove_unfinished

PROGRAM = Path(__file__).with_name("numbered_episodes.py")
_spec = importlib.util.spec_from_file_location("numbered_episodes", PROGRAM)
numbered: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(numbered)

Episodes = Sequence[list[int]]  # lengths of each row's episodes, over and over


class NumberedBatch(gym.Env):
    """The same environments as one, which resets its rows itself and reports their final observations."""

    def __init__(self, lengths: Episodes) -> None:
        self.envs = [numbered.NumberedEpisodes(row, each) for row, each in enumerate(lengths)]
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space

    def reset(self, *, seed=None, options=None):
        return _stacked([env.reset(seed=seed)[0] for env in self.envs]), {}

    def step(self, action):
        results = [env.step(each) for env, each in zip(self.envs, action, strict=True)]
        obs, rewards, terminated, truncated, _ = map(list, zip(*results, strict=True))
        info = {"final_obs": _stacked(obs)}
        for row, env in enumerate(self.envs):
            if terminated[row] or truncated[row]:
                obs[row] = env.reset()[0]
        return _stacked(obs), np.array(rewards), np.array(terminated), np.array(truncated), info


def _stacked(obs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.stack([each[key] for each in obs]) for key in obs[0]}


def one_by_one(lengths: Episodes, **mode):
    def maker(row: int, each: list[int]) -> Callable[[], AMAGOEnv]:
        return lambda: AMAGOEnv(numbered.NumberedEpisodes(row, each), "numbered")

    return make_vector_env([maker(row, each) for row, each in enumerate(lengths)], **mode)


def as_one(env: Any, rows: int):
    return make_vector_env(
        [lambda: AMAGOEnv(env, "numbered", batched_envs=rows)], env_mode="already_vectorized"
    )


def gymnasium_vector(lengths: Episodes):
    modes = getattr(gym.vector, "AutoresetMode", None)  # gymnasium 0.29 has one mode
    kwargs = {} if modes is None else {"autoreset_mode": modes.SAME_STEP}
    makers = [
        lambda row=row, each=each: numbered.NumberedEpisodes(row, each) for row, each in enumerate(lengths)
    ]
    return as_one(gym.vector.SyncVectorEnv(makers, **kwargs), len(lengths))


KINDS: dict[str, Callable[[Episodes], Any]] = {
    "sync": lambda lengths: one_by_one(lengths, env_mode="sync"),
    "async": lambda lengths: one_by_one(lengths, env_mode="async", envs_per_worker=2),
    "already-vectorized": lambda lengths: as_one(NumberedBatch(lengths), len(lengths)),
    "gymnasium-vector": gymnasium_vector,
}


def record(env: Any, folder: Path, steps: int, save_len: float, max_seq_len: int, stagger: bool) -> int:
    """Records `steps` vector steps, cuts what is unfinished and returns the frames counted."""
    recorder = TrajectoryRecorder(
        env.num_envs,
        save_to=folder,
        save_len=save_len,
        max_seq_len=max_seq_len,
        stagger=stagger,
        rng=np.random.default_rng(0),
    )
    inputs = env.reset()
    recorder.begin(inputs, env.env_names)
    for _ in range(steps):
        step = env.step(numbered.action_for(inputs.obs["where"]))
        inputs = step.inputs
        recorder.add(step)
    recorder.cut()
    recorder.close()
    env.close()
    assert recorder.unsaved_frames == 0
    return recorder.total_frames


def record_slowly(row: int, lengths: list[int], transitions: int, save_len: float) -> list[FrozenTraj]:
    """The pieces of one row, in plain loops over one environment at a time."""
    env = numbered.NumberedEpisodes(row, lengths)
    pieces: list[FrozenTraj] = []
    obs, rl2, time_idx = env.reset()[0], np.zeros(1 + numbered.ACTIONS), 0
    seen, rl2s, times, dones = [obs], [rl2], [time_idx], []
    for taken in range(1, transitions + 1):
        action = int(numbered.action_for(obs["where"][None])[0, 0])
        obs, reward, terminated, truncated, _ = env.step(action)
        rl2, time_idx = np.array([reward, *np.eye(numbered.ACTIONS)[action]]), time_idx + 1
        seen.append(obs)
        rl2s.append(rl2)
        times.append(time_idx)
        dones.append(terminated)
        if terminated or truncated or len(dones) >= save_len or taken == transitions:
            stacked = np.array(rl2s, np.float32)
            pieces.append(
                FrozenTraj(
                    obs=_stacked(seen),
                    rl2s=stacked,
                    time_idxs=np.array(times)[:, None],
                    rews=stacked[1:, :1],
                    dones=np.array(dones)[:, None],
                    actions=stacked[1:, 1:],
                )
            )
            if terminated or truncated:
                obs, rl2, time_idx = env.reset()[0], np.zeros(1 + numbered.ACTIONS), 0
            seen, rl2s, times, dones = [obs], [rl2], [time_idx], []
    return pieces


def pieces_by_row(folder: Path, rows: int) -> list[list[FrozenTraj]]:
    """The pieces in `folder`, by row and in the order of their steps."""
    by_row: list[list[FrozenTraj]] = [[] for _ in range(rows)]
    for path in folder.iterdir():
        piece = load_trajectory(path)
        by_row[int(piece.obs["where"][0, 0])].append(piece)
    for pieces in by_row:
        pieces.sort(key=lambda piece: piece.obs["where"][0, 1:3].tolist())
    return by_row


def assert_equal(mine: FrozenTraj, theirs: FrozenTraj) -> None:
    mine_arrays, their_arrays = mine.to_dict(), theirs.to_dict()
    assert mine_arrays.keys() == their_arrays.keys()
    for name, array in mine_arrays.items():
        assert array.dtype == their_arrays[name].dtype
        np.testing.assert_array_equal(array, their_arrays[name], err_msg=name)


def joined(pieces: list[FrozenTraj]) -> list[FrozenTraj]:
    """Pieces of the same episode put together; each begins with the last timestep of the one before."""
    episodes: list[FrozenTraj] = []
    for piece in pieces:
        if piece.time_idxs[0, 0] == 0:
            episodes.append(piece)
            continue
        before = episodes[-1].to_dict()
        arrays = piece.to_dict()
        for name in before:
            overlap = 0 if name in ("rews", "dones", "actions") else 1
            np.testing.assert_array_equal(before[name][len(before[name]) - overlap :], arrays[name][:overlap])
            before[name] = np.concatenate([before[name], arrays[name][overlap:]])
        episodes[-1] = FrozenTraj.from_dict(before)
    return episodes


row_lengths = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=4)


def check_against_slow_recorder(kind, folder, lengths, steps, save_len, max_seq_len, stagger) -> None:
    frames = record(KINDS[kind](lengths), folder, steps, save_len, max_seq_len, stagger)
    by_row = pieces_by_row(folder, len(lengths))
    assert sum(len(piece) for pieces in by_row for piece in pieces) == frames
    for row, pieces in enumerate(by_row):
        transitions = sum(map(len, pieces))
        assert transitions == steps
        expected = record_slowly(row, lengths[row], transitions, np.inf if stagger else save_len)
        found = joined(pieces) if stagger else pieces
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_equal(mine, theirs)
        if stagger:
            longest = save_len + max_seq_len if save_len > max_seq_len else save_len
            assert max(map(len, pieces)) <= longest


@pytest.mark.parametrize(("kind", "examples"), [(kind, 6 if kind == "async" else 20) for kind in KINDS])
def test_files_equal_those_of_a_slow_recorder(kind, examples, tmp_path_factory):
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(
        lengths=row_lengths,
        steps=st.integers(1, 40),
        max_seq_len=st.integers(1, 4),
        longer=st.one_of(st.just(np.inf), st.integers(0, 6)),
        stagger=st.booleans(),
    )
    def check(lengths, steps, max_seq_len, longer, stagger):
        folder = tmp_path_factory.mktemp("recorded")
        check_against_slow_recorder(kind, folder, lengths, steps, max_seq_len + longer, max_seq_len, stagger)

    check()


# Killed while recording


def run_until_killed(folder: Path, save_as: str, env_mode: str, lines: int, files: int) -> list[list[str]]:
    """Starts the program, kills it when it has said as many lines, `files` of them of files, or some more.

    Returns:
        All that it said. How many files there are at a time depends on the disk.
    """
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), save_as, env_mode, "4"], stdout=subprocess.PIPE
    )
    first = b""
    while lines > 0 or files > 0:
        line = program.stdout.readline()
        assert line, "the program has ended"
        first, lines, files = first + line, lines - 1, files - line.startswith(b"file")
    os.kill(program.pid, signal.SIGKILL)
    # Workers inherited the pipe, which therefore ends with the last of them.
    said = (first + program.stdout.read()).decode()
    program.stdout.close()
    assert program.wait() == -signal.SIGKILL
    return [line.split() for line in said.splitlines()]


def check_after_kill(folder: Path, said: list[list[str]]) -> int:
    """Checks all that holds when the program was killed; returns the number of transitions that were lost."""
    acknowledged = {name: int(length) for what, name, length in said if what == "file"}
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    stored = {path.name: load_trajectory(path) for path in visible}  # raises for a torn one
    for name, length in acknowledged.items():
        assert len(stored[name]) == length
    transitions = [
        tuple(piece.obs["where"][t, :3].tolist()) for piece in stored.values() for t in range(len(piece))
    ]
    assert len(transitions) == len(set(transitions))
    steps = [(int(frames), int(unsaved)) for what, frames, unsaved in said if what == "step"]
    frames, unsaved = steps[-1]
    # The last count was made before the kill: files may have been written since, and one more step been taken.
    assert frames - unsaved <= len(transitions) <= frames + 4
    return max(0, frames - len(transitions))


@pytest.mark.parametrize(
    "rounds", [pytest.param(4, id="4-times"), pytest.param(50, id="50-times", marks=pytest.mark.slow)]
)
def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path, rounds):
    rng = random.Random(rounds)
    lost, acknowledged = [], 0
    for i in range(rounds):
        folder = tmp_path / str(i)
        said = run_until_killed(
            folder,
            save_as=("npz", "traj", "npz-compressed")[i % 3],
            env_mode=("sync", "async")[i % 2],
            lines=rng.randrange(1, 800),
            files=rng.randrange(4),
        )
        lost.append(check_after_kill(folder, said))
        acknowledged += sum(line[0] == "file" for line in said)
    assert acknowledged >= rounds
    assert max(lost) > 0  # or nothing was ever at risk, and nothing tested


WRITE_TO_A_FULL_STOP = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from amago.hindsight import FrozenTraj, save_trajectory

def write_in_place(piece, path, save_as, env_name):
    with path.with_suffix(".npz").open("wb") as file:
        np.savez(file, **piece.to_dict())

rows = 20_000
piece = FrozenTraj(
    obs={"observation": np.zeros((rows + 1, 4), np.float32)}, rl2s=np.zeros((rows + 1, 2), np.float32),
    time_idxs=np.arange(rows + 1)[:, None], rews=np.zeros((rows, 1), np.float32),
    dones=np.zeros((rows, 1), bool), actions=np.zeros((rows, 1), np.float32),
)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
save = {"whole": save_trajectory, "in-place": write_in_place}[sys.argv[1]]
save(piece, Path(sys.argv[2]), sys.argv[3], "env")
"""


def visible_after_death_in_mid_write(folder: Path, how: str, save_as: str = "npz") -> list[Path]:
    """The kernel kills the process when the file grows past 100 kB, which is in the middle of it."""
    command = [sys.executable, "-c", WRITE_TO_A_FULL_STOP, how, str(folder / "a_00000000_1"), save_as]
    assert subprocess.run(command, check=False).returncode == -signal.SIGXFSZ
    assert len(list(folder.iterdir())) == 1
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("save_as", ["npz", "traj"])
def test_a_process_that_dies_in_the_middle_of_a_write_leaves_no_torn_file_to_see(tmp_path, save_as):
    assert visible_after_death_in_mid_write(tmp_path, "whole", save_as) == []


def test_writing_in_place_would_leave_a_torn_file(tmp_path):
    assert len(visible_after_death_in_mid_write(tmp_path, "in-place")) == 1


def test_what_killed_writers_left_is_removed_when_it_is_old_by_the_next_writer(tmp_path):
    visible_after_death_in_mid_write(tmp_path, "whole")
    assert remove_unfinished(tmp_path) == 0  # it may be another process's, which is writing right now
    (left,) = tmp_path.iterdir()
    os.utime(left, (time.time() - 7200,) * 2)
    TrajectoryRecorder(1, save_to=tmp_path, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0))
    assert list(tmp_path.iterdir()) == []


# Ends of other kinds


class DiesAt(numbered.NumberedEpisodes):
    """Kills its process in the middle of a step."""

    def __init__(self, row: int, at: int) -> None:
        super().__init__(row, [5, 3])
        self.left = at

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("at", [1, 4, 23])
def test_the_death_of_a_worker_loses_no_step_that_was_recorded(tmp_path, at):
    env = make_vector_env(
        [lambda row=row: AMAGOEnv(DiesAt(row, at if row == 3 else 10**9), "n") for row in range(4)],
        env_mode="async",
        envs_per_worker=2,
    )
    recorder = TrajectoryRecorder(
        4, save_to=tmp_path, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0)
    )
    inputs = env.reset()
    recorder.begin(inputs, env.env_names)
    for _ in range(at - 1):
        recorder.add(env.step(numbered.action_for(inputs.obs["where"])))
    with pytest.raises(EnvWorkerError, match="SIGKILL"):
        env.step(numbered.action_for(inputs.obs["where"]))
    assert recorder.total_frames == 4 * (at - 1)
    recorder.cut()
    recorder.close()
    for row, pieces in enumerate(pieces_by_row(tmp_path, 4)):
        for mine, theirs in zip(pieces, record_slowly(row, [5, 3], at - 1, np.inf), strict=True):
            assert_equal(mine, theirs)


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [("", 0), ("1 / 0", 1), ("import signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT)],
    ids=["end", "exception", "ctrl-c"],
)
def test_a_process_that_ends_without_closing_writes_its_unfinished_pieces(tmp_path, ending, exit_code):
    script = f"""
import importlib.util, os
from pathlib import Path
import numpy as np
from amago.envs import AMAGOEnv
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env

spec = importlib.util.spec_from_file_location("numbered_episodes", {str(PROGRAM)!r})
numbered = importlib.util.module_from_spec(spec)
spec.loader.exec_module(numbered)
env = make_vector_env([lambda: AMAGOEnv(numbered.NumberedEpisodes(0, [5]), "n")], env_mode="async")
recorder = TrajectoryRecorder(1, save_to=Path({str(tmp_path)!r}), save_len=1e10, max_seq_len=1,
                              rng=np.random.default_rng(0))
recorder.begin(env.reset(), env.env_names)
for _ in range(13):
    recorder.add(env.step(np.zeros((1, 1), np.int64)))
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == exit_code
    assert "Exception ignored" not in done.stderr
    assert sorted(len(load_trajectory(path)) for path in tmp_path.iterdir()) == [3, 5, 5]


def test_unsaved_frames_are_those_in_unfinished_pieces(tmp_path):
    env = one_by_one([[5], [7]], env_mode="sync")
    recorder = TrajectoryRecorder(
        2, save_to=tmp_path, save_len=np.inf, max_seq_len=1, rng=np.random.default_rng(0)
    )
    assert recorder.unsaved_frames == 0
    recorder.begin(env.reset(), env.env_names)
    counts = []
    for _ in range(8):
        recorder.add(env.step(np.zeros((2, 1), np.int64)))
        recorder.flush()
        counts.append(recorder.unsaved_frames)
    assert counts == [2, 4, 6, 8, 5, 7, 2, 4]
    recorder.cut()
    recorder.close()
    assert recorder.unsaved_frames == 0
