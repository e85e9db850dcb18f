"""Vector environments stepped in two parts: the same steps, files and errors as of all rows at once."""

import gc
import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv, EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import EnvWorkerError, PartedVectorEnv, VectorStep, make_vector_env
from amago.envs.vector.watching import Watch
from amago.hindsight import load_trajectory, parse_filename

ROWS = 5


class Renamed(gym.Env):
    """Episodes of random lengths that are named anew, report metrics now and then, and end in both ways."""

    def __init__(self, fail: Any = None, fail_at: int = 0) -> None:
        self.observation_space = gym.spaces.Box(-1, 2**40, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(4)
        self.fail, self.fail_at = fail, fail_at
        self.episode, self.life = -1, 0

    @property
    def env_name(self) -> str:
        return f"task{self.episode % 3}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return self._observe(-1), {}

    def step(self, action):
        self.steps += 1
        self.life += 1
        if self.life == self.fail_at:
            self.fail()
        terminated, truncated = (self.np_random.random(2) < 0.1).tolist()
        info = {f"{AMAGO_ENV_LOG_PREFIX} luck": self.np_random.random()} if self.steps % 3 == 0 else {}
        return self._observe(int(action)), self.np_random.random(), terminated, truncated, info

    def _observe(self, action: int):
        return np.array([self.episode, self.steps, action], np.float64)


def policy(inputs) -> np.ndarray:
    return (inputs.obs["observation"] @ np.array([3, 1, 2])).astype(np.int64)[:, None] % 4


def make_env(rows: int = ROWS, env_mode: str = "async", **kwargs) -> Any:
    settings = {"seed": 3, "exploration_wrapper_type": EpsilonGreedy, **kwargs}
    if env_mode == "async":
        settings.setdefault("envs_per_worker", 2)
    return make_vector_env([lambda: AMAGOEnv(Renamed())] * rows, env_mode=env_mode, **settings)


def failing_env(row: int, fail: Any, **kwargs) -> Any:
    """Four environments in two workers, of which one fails in its second step."""
    makers = [
        lambda i=i: AMAGOEnv(Renamed(fail, 2 if i == row else 0), env_name=f"number {i}") for i in range(4)
    ]
    return make_vector_env(makers, env_mode="async", envs_per_worker=2, **kwargs)


def contents(step: VectorStep, first_row: int = 0) -> list[tuple[Any, ...]]:
    """What a step says of each of its rows."""
    metrics = dict(step.metrics)
    finals = {
        row: (step.final_obs["observation"][k].tolist(), int(step.final_time_idxs[k]))
        for k, row in enumerate(step.done_rows.tolist())
    }
    return [
        (
            first_row + row,
            step.inputs.obs["observation"][row].tolist(),
            step.inputs.rl2s[row].tolist(),
            int(step.inputs.time_idxs[row]),
            step.actions[row].tolist(),
            float(step.rewards[row]),
            bool(step.terminated[row]),
            bool(step.truncated[row]),
            finals.get(row),
            metrics.get(row),
            step.env_names[row],
        )
        for row in range(len(step.rewards))
    ]


def test_parts_cover_all_rows_between_environments_and_workers():
    with make_env(5) as env:
        assert isinstance(env, PartedVectorEnv)
        assert env.parts == (slice(0, 2), slice(2, 5))
    with make_env(5, envs_per_worker=1) as env:
        assert env.parts == (slice(0, 2), slice(2, 5))
    with make_env(5, envs_per_worker=5) as env:
        assert env.parts == (slice(0, 5),)
    with make_env(2, env_mode="sync") as env:
        assert not isinstance(env, PartedVectorEnv)


def test_steps_in_turns_are_those_of_all_rows_together():
    with make_env() as together, make_env() as in_turns:
        inputs = together.reset()
        in_turns.reset()
        expected = []
        for _ in range(60):
            step = together.step(policy(inputs))
            inputs = step.inputs
            expected += contents(step)
        found = []
        for part in range(2):
            in_turns.send(part, policy(in_turns.inputs_of(part)))
        for i in range(60):
            for part, rows in enumerate(in_turns.parts):
                step = in_turns.receive(part)
                found += contents(step, rows.start)
                if i < 59:
                    in_turns.send(part, policy(step.inputs))
        assert found == expected
        assert in_turns.env_names == together.env_names


def test_a_part_s_list_of_names_is_another_one_only_when_a_name_has_changed():
    with make_env() as env:
        env.reset()
        names: list[Any] = [None, None]
        changes = 0
        for _ in range(60):
            for part in range(2):
                env.send(part, policy(env.inputs_of(part)))
            for part in range(2):
                step = env.receive(part)
                if names[part] is not step.env_names:
                    assert names[part] != step.env_names
                    changes += 1
                names[part] = step.env_names
        assert changes > 4


def test_a_part_is_sent_and_received_in_turn():
    with make_env() as env:
        env.reset()
        actions = np.zeros((2, 1), np.int64)
        with pytest.raises(RuntimeError, match="part 0 is not in flight"):
            env.receive(0)
        env.send(0, actions)
        with pytest.raises(RuntimeError, match="part 0 is in flight"):
            env.send(0, actions)
        with pytest.raises(RuntimeError, match="part 0 is in flight"):
            env.step(np.zeros((ROWS, 1), np.int64))
        with pytest.raises(ValueError, match=r"shape \(2, 1\), expected \(3, 1\) \(3 rows of"):
            env.send(1, actions)
        assert len(env.receive(0).rewards) == 2
        assert len(env.step(np.zeros((ROWS, 1), np.int64)).rewards) == ROWS


def test_a_reset_does_not_take_answers_in_flight_for_its_own():
    with make_env() as env, make_env() as other:
        env.reset()
        env.send(0, policy(env.inputs_of(0)))
        env.send(1, policy(env.inputs_of(1)))
        inputs, expected = env.reset(seed=5), other.reset(seed=5)
        assert inputs.time_idxs.tolist() == expected.time_idxs.tolist() == [0] * ROWS
        with pytest.raises(RuntimeError, match="not in flight"):
            env.receive(0)
        steps = [e.step(np.zeros((ROWS, 1), np.int64)) for e in (env, other)]
        assert steps[0].rewards.tolist() == steps[1].rewards.tolist()


def test_what_is_asked_in_between_waits_for_the_step_and_leaves_it_to_be_received():
    with make_env() as env, make_env() as other:
        for e in (env, other):
            e.reset()
        other.send(0, policy(other.inputs_of(0)))
        expected = contents(other.receive(0))
        env.send(0, policy(env.inputs_of(0)))
        states = env.exploration_state()
        env.load_exploration_state(states)
        assert len(states) == ROWS
        assert contents(env.receive(0)) == expected


def test_closing_with_parts_in_flight_leaves_nothing():
    before = len(os.listdir("/proc/self/fd"))
    env = make_env()
    env.reset()
    env.send(0, policy(env.inputs_of(0)))
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.receive(0)
    del env
    gc.collect()
    assert (multiprocessing.active_children(), len(os.listdir("/proc/self/fd"))) == ([], before)


def divide_by_zero():
    return 1 / 0


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_nothing():
    threading.Event().wait()


def use_in_flight(env: Any, failing: int, asked: str) -> None:
    """Lets the second step of the part `failing` be in flight with the other's, and asks for something."""
    actions = np.zeros((2, 1), np.int64)
    env.send(failing, actions)
    env.send(1 - failing, actions)
    if asked in ("receive", "send"):
        env.receive(1 - failing)
        if asked == "send":
            env.send(1 - failing, actions)
        env.receive(failing)
    else:
        getattr(env, asked)()


@pytest.mark.parametrize("row", [1, 3])
@pytest.mark.parametrize("asked", ["receive", "send", "reset", "exploration_state"])
@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (
            divide_by_zero,
            "environment {row} ('number {row}') raised while stepping with action [[0]]: ZeroDivision",
        ),
        (kill_itself, "died without a word while stepping with actions [[0], [0]] (killed by SIGKILL)"),
        (wait_for_nothing, "has not answered for 0.3 s while stepping with actions [[0], [0]]"),
    ],
)
def test_a_worker_that_fails_in_flight_is_reported_as_in_any_step(row, asked, fail, message):
    env = failing_env(row, fail, env_timeout=0.3)
    env.reset()
    env.step(np.zeros((4, 1), np.int64))
    with pytest.raises(EnvWorkerError, match=re.escape(message.format(row=row))) as raised:
        use_in_flight(env, row // 2, asked)
    assert multiprocessing.active_children() == []
    assert fail is not divide_by_zero or "in divide_by_zero" in str(raised.value)
    with pytest.raises(RuntimeError, match="closed"):
        env.receive(1 - row // 2)


class InterruptedConnection:
    """Is interrupted where it would wait for an answer."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.conn, name)

    def recv_bytes(self) -> bytes:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError


@pytest.mark.parametrize("asked", ["receive", "reset"])
def test_an_interrupt_while_a_part_is_waited_for_closes_the_environments(asked):
    env = failing_env(0, None)
    env.reset()
    env._answers[0] = Watch(InterruptedConnection(env._conns[0]), awake=False)
    with pytest.raises(KeyboardInterrupt):
        use_in_flight(env, 0, asked)
    with pytest.raises(RuntimeError, match="closed"):
        env.receive(1)
    assert multiprocessing.active_children() == []


# Recorded


def record(env: Any, folder: Path | None, plan: list[str], **options: Any) -> TrajectoryRecorder:
    """Records the steps that `plan` has, taken together or in turns, and cuts what is unfinished."""
    recorder = TrajectoryRecorder(
        env.num_envs, save_to=folder, rng=np.random.default_rng(0), writer_id="00a", **options
    )
    inputs = env.reset()
    recorder.begin(inputs, env.env_names)
    for how in plan:
        if how == "together":
            recorder.add(env.step(policy(inputs)))
            continue
        parts = (0, 1) if how == "in turns" else (1, 0)
        for part in parts:
            env.send(part, policy(env.inputs_of(part)))
        for part in parts:
            recorder.add(env.receive(part), env.parts[part])
    recorder.cut()
    recorder.close()
    env.close()
    assert recorder.unsaved_frames == 0
    return recorder


def stored(folder: Path) -> list[Any]:
    """Name and arrays of every file, in an order of their contents."""
    files = []
    for path in folder.iterdir():
        arrays = {key: array.tolist() for key, array in load_trajectory(path).to_dict().items()}
        files.append((parse_filename(path).env_name, arrays))
    return sorted(files, key=repr)


@pytest.mark.parametrize("save_len", [np.inf, 3, 7])
@pytest.mark.parametrize("stagger", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_files_are_the_same_however_the_rows_were_stepped(save_len, stagger, seed, tmp_path):
    ways = ["together", "in turns", "in turns", "in turns"]
    # Lengths are drawn as pieces end, so the order of the parts decides which is whose.
    ways += [] if stagger else ["the other way round"] * 3
    plan = np.random.default_rng(seed).choice(ways, 100).tolist()
    options = {"save_len": save_len, "max_seq_len": 2, "stagger": stagger}
    one = record(make_env(), tmp_path / "one", plan, **options)
    other = record(make_env(env_mode="sync"), tmp_path / "other", ["together"] * 100, **options)
    assert stored(tmp_path / "one") == stored(tmp_path / "other")
    assert one.state_dict() == other.state_dict()


class InTurn(Renamed):
    """Episodes of four steps that are named even and odd in turn."""

    @property
    def env_name(self) -> str:
        return ("even", "odd")[self.episode % 2]

    def step(self, action):
        self.steps += 1
        return self._observe(int(action)), 0.0, self.steps == 4, False, {}


def test_names_that_changed_while_all_rows_were_stepped_together_are_those_of_the_files(tmp_path):
    env = make_vector_env([lambda: AMAGOEnv(InTurn())] * 2, env_mode="async", envs_per_worker=1)
    # The names are the same before and after the steps of all rows, and others in between.
    plan = ["in turns"] * 3 + ["together"] * 5 + ["in turns"] * 4
    recorder = record(env, tmp_path, plan, save_len=np.inf, max_seq_len=2)
    for path in tmp_path.iterdir():
        episode = int(load_trajectory(path).obs["observation"][0, 0])
        assert parse_filename(path).env_name == ("even", "odd")[episode % 2]
    assert recorder.frames_by_env_name == {"even": 16, "odd": 8}


def test_frames_are_counted_in_parts_when_nothing_is_saved():
    recorder = record(make_env(), None, ["in turns"] * 7, save_len=np.inf, max_seq_len=2)
    assert recorder.total_frames == 7 * ROWS == sum(recorder.frames_by_env_name.values())


@pytest.fixture
def half_way(tmp_path):
    """A recorder whose first two rows are a step ahead, after three steps of all; with its environments."""
    env = make_env()
    recorder = TrajectoryRecorder(
        ROWS, save_to=tmp_path, save_len=np.inf, max_seq_len=2, rng=np.random.default_rng(0)
    )
    inputs = env.reset()
    recorder.begin(inputs, env.env_names)
    for _ in range(3):
        recorder.add(env.step(policy(inputs)))
    env.send(0, policy(env.inputs_of(0)))
    recorder.add(env.receive(0), env.parts[0])
    yield recorder, env
    recorder.close()
    env.close()


def test_rows_that_are_ahead_are_cut_where_they_are(half_way, tmp_path):
    recorder, _ = half_way
    assert recorder.unsaved_frames == recorder.total_frames == 3 * ROWS + 2
    recorder.cut()
    recorder.flush()
    assert recorder.unsaved_frames == 0
    assert sum(len(load_trajectory(path)) for path in tmp_path.iterdir()) == 3 * ROWS + 2


def test_rows_that_were_cut_while_they_were_ahead_go_on_from_there(half_way, tmp_path):
    recorder, env = half_way
    recorder.cut()
    env.send(1, policy(env.inputs_of(1)))
    recorder.add(env.receive(1), env.parts[1])
    recorder.add(env.step(policy(env.inputs_of(0)).repeat(3, axis=0)[:ROWS]))
    recorder.cut()
    recorder.flush()
    pieces = [load_trajectory(path) for path in tmp_path.iterdir()]
    assert sum(map(len, pieces)) == 5 * ROWS == recorder.total_frames
    ends = {tuple(piece.rl2s[-1].tolist()) for piece in pieces}  # rewards are drawn, so each is another
    for piece in pieces:
        assert (np.diff(piece.time_idxs[:, 0]) == 1).all()
        assert piece.time_idxs[0, 0] == 0 or tuple(piece.rl2s[0].tolist()) in ends


def test_no_part_gets_more_than_a_step_ahead(half_way):
    recorder, env = half_way
    env.send(0, policy(env.inputs_of(0)))
    with pytest.raises(RuntimeError, match="rows 0 to 1 of 5 are a step ahead: add the step of the others"):
        recorder.add(env.receive(0), env.parts[0])
    with pytest.raises(RuntimeError, match="not that of all rows"):
        recorder.add(env.step(np.zeros((ROWS, 1), np.int64)))


def test_a_failed_write_between_two_parts_leaves_both_to_be_recorded(tmp_path):
    folder = tmp_path / "buffer"
    env = make_env()
    recorder = TrajectoryRecorder(
        ROWS, save_to=folder, save_len=2, max_seq_len=2, stagger=False, rng=np.random.default_rng(0)
    )
    recorder.begin(env.reset(), env.env_names)
    folder.rmdir()
    folder.write_text("in the way")
    failures = steps = 0
    while failures < 3:
        steps += 1
        for part in range(2):
            env.send(part, policy(env.inputs_of(part)))
        for part in range(2):
            try:
                recorder.add(env.receive(part), env.parts[part])
            except TrajectoryWriteError:
                failures += 1
    folder.unlink()
    folder.mkdir()
    recorder.cut()
    recorder.close()
    env.close()
    assert sum(len(load_trajectory(path)) for path in folder.iterdir()) == steps * ROWS
