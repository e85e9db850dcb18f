"""Worker processes: how failures are reported, methods of environments, and that nothing is left behind."""

import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import EnvWorkerError, make_vector_env

ACTIONS = np.array([[0], [1], [0], [1]])


class Failing(gym.Env):
    """Calls `fail` in the phase "making", "reset" or "step"; appends a line to `closed_log` when closed."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, phase: str = "never", fail=None, closed_log: Path | None = None) -> None:
        self.phase, self.fail, self.closed_log = phase, fail, closed_log
        self._enter("making")

    def _enter(self, phase: str) -> None:
        if phase == self.phase:
            self.fail()

    def reset(self, *, seed=None, options=None):
        self._enter("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._enter("step")
        return np.ones(2, np.float32), 1.0, False, False, {}

    def close(self):
        if self.closed_log is not None:
            with self.closed_log.open("a") as file:
                file.write("closed\n")


def divide_by_zero():
    return 1 / 0


def die():
    os._exit(3)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def four(phase: str, fail, **kwargs) -> list:
    """Four environments of which the last one fails."""
    return [lambda: AMAGOEnv(Failing(**kwargs), "healthy")] * 3 + [
        lambda: AMAGOEnv(Failing(phase, fail, **kwargs), "frail")
    ]


def use(make_envs, **kwargs) -> None:
    env = make_vector_env(make_envs, env_mode="async", envs_per_worker=2, **kwargs)
    env.reset()
    env.step(ACTIONS)


def traces_left() -> tuple[int, int, list[str]]:
    """Child processes, open files and named shared memory of this moment."""
    gc.collect()
    return (
        len(multiprocessing.active_children()),
        len(os.listdir("/proc/self/fd")),
        shared_memory_names(),
    )


def shared_memory_names() -> list[str]:
    """Named blocks of Python's own or ours; other programs of the machine come and go with theirs."""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "amago")))


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ("making", r"environment 3 raised while being made: ZeroDivisionError"),
        ("reset", r"environment 3 \('frail'\) raised while being reset: ZeroDivisionError"),
        ("step", r"environment 3 \('frail'\) raised while stepping with action \[\[1\]\]: ZeroDivisionError"),
    ],
)
def test_an_exception_in_a_worker_is_raised_with_environment_action_and_traceback(phase, message):
    before = traces_left()
    with pytest.raises(EnvWorkerError, match=message) as raised:
        use(four(phase, divide_by_zero))
    assert "in divide_by_zero\n    return 1 / 0" in str(raised.value)
    raised = None
    assert traces_left() == before


@pytest.mark.parametrize("phase", ["making", "reset", "step"])
@pytest.mark.parametrize(("fail", "how"), [(die, "exit code 3"), (kill_itself, "killed by SIGKILL")])
def test_a_worker_that_dies_is_reported_and_all_others_end(phase, fail, how):
    before = traces_left()
    names = "not made yet" if phase == "making" else "'healthy', 'frail'"
    doing = {
        "making": "making its environments",
        "reset": "resetting",
        "step": "stepping with actions [[0], [1]]",
    }[phase]
    message = f"environments 2 to 3 ({names}) died without a Python exception while {doing} ({how})"
    with pytest.raises(EnvWorkerError, match=re.escape(message)):
        use(four(phase, fail))
    assert traces_left() == before


def leave_the_program():
    sys.exit("there is nothing more to do")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["making", "step"])
@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (leave_the_program, "SystemExit: there is nothing more to do"),
        (interrupt, "KeyboardInterrupt"),
    ],
)
def test_sys_exit_and_keyboard_interrupt_in_an_environment_are_reported(phase, fail, error, capfd):
    before = traces_left()
    with pytest.raises(EnvWorkerError, match=re.escape(error)) as raised:
        use(four(phase, fail))
    assert f"in {fail.__name__}\n" in str(raised.value)
    raised = None
    assert traces_left() == before
    assert capfd.readouterr().err == ""


class FailsToClose(Failing):
    def close(self):
        divide_by_zero()


def test_an_exception_in_close_is_printed_and_leaves_no_process(capfd):
    before = traces_left()
    env = make_vector_env(
        [lambda: AMAGOEnv(Failing(), "healthy"), lambda: AMAGOEnv(FailsToClose(), "frail")], env_mode="async"
    )
    env.reset()
    env.close()
    assert "ZeroDivisionError" in capfd.readouterr().err
    del env
    assert traces_left() == before


def wait_for_nothing():
    threading.Event().wait()


@pytest.mark.parametrize(
    ("phase", "doing"),
    [
        (
            "making",
            "environments 2 to 3 (not made yet) has not answered for 0.5 s while making its environments",
        ),
        ("reset", "environments 2 to 3 ('healthy', 'frail') has not answered for 0.5 s while resetting"),
        ("step", "('healthy', 'frail') has not answered for 0.5 s while stepping with actions [[0], [1]]"),
    ],
)
def test_a_worker_that_does_not_answer_in_time_is_killed_and_reported(phase, doing):
    before = traces_left()
    with pytest.raises(EnvWorkerError, match=re.escape(doing)):
        use(four(phase, wait_for_nothing), env_timeout=0.5)
    assert traces_left() == before


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_an_invalid_timeout_is_refused(seconds):
    with pytest.raises(ValueError, match=r"env_timeout must be at least 0\.001 seconds, or None"):
        make_vector_env(four("never", None), env_mode="async", env_timeout=seconds)


class SlowStep(Failing):
    """Interrupts the main process as Ctrl-C does in the middle of its step, and then takes its time."""

    def step(self, action):
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait(0.2)
        return super().step(action)


def test_an_interrupted_step_closes_the_environments():
    before = traces_left()
    env = make_vector_env([lambda: AMAGOEnv(SlowStep(), "slow")], env_mode="async")
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.step(ACTIONS[:1])
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()
    del env
    assert traces_left() == before


def test_a_worker_killed_from_outside_is_reported_by_the_next_call():
    before = set(multiprocessing.active_children())
    env = make_vector_env(four("never", None), env_mode="async", envs_per_worker=2)
    env.reset()
    victim = (set(multiprocessing.active_children()) - before).pop()
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(EnvWorkerError, match="SIGKILL"):
        env.step(ACTIONS)
    assert set(multiprocessing.active_children()) == before
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_sync_environments_raise_their_own_exceptions():
    env = make_vector_env(four("step", divide_by_zero), env_mode="sync")
    env.reset()
    with pytest.raises(ZeroDivisionError):
        env.step(ACTIONS)


@pytest.mark.parametrize("mode", [{"env_mode": "sync"}, {"env_mode": "async", "envs_per_worker": 2}])
def test_closing_closes_every_environment_once_and_leaves_nothing(mode, tmp_path):
    before = traces_left()
    log = tmp_path / "log"
    env = make_vector_env(four("never", None, closed_log=log), **mode)
    env.reset()
    env.step(ACTIONS)
    env.close()
    env.close()
    assert log.read_text().count("closed") == 4
    del env
    assert traces_left() == before


@pytest.mark.parametrize("mode", [{"env_mode": "sync"}, {"env_mode": "async", "envs_per_worker": 4}])
def test_environments_made_before_one_that_fails_are_closed(mode, tmp_path):
    log = tmp_path / "log"
    with pytest.raises((EnvWorkerError, ZeroDivisionError)):
        make_vector_env(four("making", divide_by_zero, closed_log=log), **mode)
    assert log.read_text().count("closed") == 3


@pytest.mark.parametrize("begin", [lambda env: env.step_async(ACTIONS), lambda env: env.call_async("close")])
def test_closing_during_a_step_leaves_no_process_or_file(begin):
    before = traces_left()
    env = make_vector_env(four("never", None), env_mode="async", envs_per_worker=2)
    env.reset()
    begin(env)
    env.close()
    with pytest.raises(RuntimeError, match="is closed"):
        env.step_wait()
    del env
    assert traces_left() == before


def test_workers_end_when_the_vector_environment_is_garbage_collected():
    before = traces_left()
    env = make_vector_env(four("never", None), env_mode="async", envs_per_worker=2)
    env.reset()
    del env
    assert traces_left() == before


class Counting(Failing):
    """Has a method and an attribute that can be called for and read."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def plus(self, one: int, *, other: int = 0) -> int:
        return self.number + one + other

    def divide_by_zero(self) -> float:
        return divide_by_zero()


@pytest.fixture(params=[{"env_mode": "sync"}, {"env_mode": "async", "envs_per_worker": 2}])
def counting(request):
    env = make_vector_env([lambda i=i: AMAGOEnv(Counting(i), "counting") for i in range(4)], **request.param)
    env.reset()
    yield env
    env.close()


def test_a_method_is_called_on_every_environment(counting):
    counting.call_async("plus", 10, other=100)
    assert counting.call_wait() == [110, 111, 112, 113]
    counting.call_async("number")
    assert counting.call_wait() == [0, 1, 2, 3]
    assert counting.step(ACTIONS).rewards.tolist() == [1.0] * 4


def test_a_second_call_before_the_wait_of_the_first_is_refused(counting):
    with pytest.raises(RuntimeError, match=r"call step_async\(\) first"):
        counting.step_wait()
    counting.step_async(ACTIONS)
    with pytest.raises(RuntimeError, match=r"call step_wait\(\) first"):
        counting.call_async("number")
    assert counting.step_wait().rewards.tolist() == [1.0] * 4
    counting.call_async("number")
    with pytest.raises(RuntimeError, match=r"call call_wait\(\) first"):
        counting.step(ACTIONS)
    # A reset discards it.
    counting.reset()
    assert counting.step(ACTIONS).rewards.tolist() == [1.0] * 4


def test_a_method_that_raises_is_named_with_its_environment():
    env = make_vector_env([lambda: AMAGOEnv(Counting(0), "counting")], env_mode="async")
    env.reset()
    env.call_async("divide_by_zero")
    with pytest.raises(
        EnvWorkerError, match=r"environment 0 \('counting'\) raised.*'divide_by_zero'.*ZeroDiv"
    ):
        env.call_wait()


def test_a_lambda_with_spawn_is_an_error_with_the_remedy():
    before = multiprocessing.active_children()
    with pytest.raises(ValueError, match=r"environments from number 0 on.*<lambda>.*mp_context='fork'"):
        make_vector_env(
            [AMAGOEnv, lambda: AMAGOEnv(MetaFrozenLake(3), "lake")],
            env_mode="async",
            envs_per_worker=2,
            mp_context="spawn",
        )
    assert multiprocessing.active_children() == before


class CountingConnection:
    """Passes messages on and keeps a copy of each."""

    def __init__(self, conn, sent: list[bytes], received: list[bytes]) -> None:
        self.conn, self.sent, self.received = conn, sent, received

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(message)
        self.conn.send_bytes(message)

    def recv_bytes(self) -> bytes:
        self.received.append(self.conn.recv_bytes())
        return self.received[-1]

    def poll(self) -> bool:
        return self.conn.poll()

    def close(self) -> None:
        self.conn.close()


def assert_one_small_round_trip(sent: list[bytes], received: list[bytes]) -> None:
    assert [len(message) for message in sent] == [0]
    assert [len(message) for message in received] == [0]


def test_a_step_is_one_round_trip_that_carries_no_observation():
    env = make_vector_env(
        [lambda: AMAGOEnv(MetaFrozenLake(3), "lake")] * 4, env_mode="async", envs_per_worker=4, seed=0
    )
    env.reset()
    sent: list[bytes] = []
    received: list[bytes] = []
    env._conns[:] = [CountingConnection(conn, sent, received) for conn in env._conns]
    env.step(np.zeros((4, 1), np.int64))
    assert_one_small_round_trip(sent, received)
    env.close()
    # The fault: extra calls for name and timestep, and observations pickled that shared memory already holds.
    with pytest.raises(AssertionError):
        assert_one_small_round_trip([b"", b"n", b"t"], [b"", b"lake", np.zeros((4, 4)).tobytes()])
