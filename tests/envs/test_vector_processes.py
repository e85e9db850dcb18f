"""Environments that start processes and threads of their own: they may, and none of these outlives the workers.

The processes that such an environment starts hold a pipe of the test open, which therefore ends with the last of
them.
"""

import functools
import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import EnvWorkerError, make_vector_env, processes
from amago.envs.vector.processes import has_ended, interrupts_waiting, kill_with_children

METHODS = ["fork", "spawn"]


def sleep_until_killed() -> None:
    signal.pause()


class Starter(gym.Env):
    """Starts processes of several kinds and ends none of them; "hang" and "die" are what it does in a step."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, held_open: int, then: str) -> None:
        self.then = then
        sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
        self.processes = [
            subprocess.Popen(sleeper, pass_fds=[held_open]),
            multiprocessing.get_context("fork").Process(target=sleep_until_killed),
        ]
        self.processes[1].start()
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if self.then == "hang":
            threading.Event().wait()
        if self.then == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return np.ones(2, np.float32), 1.0, False, False, {}


def is_held_open(reading_end: int, seconds: float) -> bool:
    """Whether another process still holds the writing end after `seconds`; ours was closed before."""
    return not select.select([reading_end], [], [], seconds)[0]


@pytest.mark.parametrize("then", ["go on", "hang", "die"])
def test_processes_that_environments_leave_behind_end_with_their_worker(then):
    reading, writing = os.pipe()
    envs, timeout = (1, 1.0) if then == "hang" else (2, 60.0)
    env = make_vector_env(
        [lambda: AMAGOEnv(Starter(writing, then), "starter")] * envs, env_mode="async", env_timeout=timeout
    )
    os.close(writing)
    env.reset()
    assert is_held_open(reading, 0.0)
    if then == "go on":
        env.step(np.zeros((envs, 1), np.int64))
    else:
        with pytest.raises(EnvWorkerError):
            env.step(np.zeros((envs, 1), np.int64))
    env.close()
    assert not is_held_open(reading, 5.0)
    os.close(reading)


# Systems that know less than this one

waitid = os.waitid


@pytest.fixture(params=["Linux", "macOS"])
def system(request, monkeypatch) -> str:
    """As this system is, and without what macOS lacks before Python 3.13."""
    if request.param == "macOS":
        monkeypatch.delattr(os, "waitid")
        monkeypatch.delattr(os, "pidfd_open")
    return request.param


@pytest.fixture(params=["forked", "started"])
def leader(request):
    """A process with a child in a group of their own, as workers are, and a pipe that both hold open.

    A child that was forked also holds open what tells of its parent's end; one that was started does not.
    """

    def lead() -> None:
        os.setpgid(0, 0)
        if request.param == "forked":
            os.fork()
        else:
            sleeper = "import os, signal, sys; os.write(int(sys.argv[1]), b'x'); signal.pause()"
            subprocess.Popen([sys.executable, "-c", sleeper, str(writing)], pass_fds=[writing])
        os.write(writing, b"x")
        signal.pause()

    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=lead)
    process.start()
    os.close(writing)
    assert os.read(reading, 1) + os.read(reading, 1) == b"xx"
    yield request.param, process, reading
    if is_held_open(reading, 0.0):
        os.killpg(process.pid, signal.SIGKILL)
    assert not is_held_open(reading, 5.0)
    os.close(reading)
    process.join()
    # One that a test has waited for by itself would count as running for good.
    multiprocessing.process._children.discard(process)


def test_whether_a_process_has_ended_is_told_everywhere(leader, system):
    child, process, _ = leader
    assert not has_ended(process, 0.0)
    os.kill(process.pid, signal.SIGKILL)
    waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(process, 0.5) == (system == "Linux" or child == "started")
    os.waitpid(process.pid, 0)
    assert has_ended(process, 0.0)


def test_a_worker_that_runs_is_killed_with_its_children_everywhere(leader, system):
    _, process, reading = leader
    kill_with_children(process)
    assert not is_held_open(reading, 5.0)
    process.join()


@pytest.mark.parametrize("waited_for", [False, True])
def test_a_group_whose_number_may_be_that_of_another_process_by_now_is_left_alone(leader, system, waited_for):
    """Of a worker that has ended this is known only while nobody has waited for it, and not on every system."""
    child, process, reading = leader
    os.kill(process.pid, signal.SIGKILL)
    waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if waited_for:
        os.waitpid(process.pid, 0)
    kill_with_children(process)
    is_unsure = system == "macOS" and child == "started"
    assert is_held_open(reading, 0.5) == (waited_for or is_unsure)


def test_an_interrupt_that_another_thread_receives_waits_as_well():
    """The system hands a signal to any thread that does not block it."""
    released = threading.Event()
    other = threading.Thread(target=released.wait, daemon=True)
    other.start()
    reached = []

    def be_interrupted() -> None:
        with interrupts_waiting(multiprocessing.get_context("fork")):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.05)
            reached.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            be_interrupted()
    finally:
        released.set()
        other.join()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_vector_environments_close_everywhere(system):
    before = set(multiprocessing.active_children())
    env = make_vector_env([lambda: AMAGOEnv(MetaFrozenLake(3), "lake")] * 3, env_mode="async")
    env.reset()
    env.step(np.zeros((3, 1), np.int64))
    env.close()
    assert set(multiprocessing.active_children()) == before


LIKE_WINDOWS = """
import faulthandler, os, signal, sys
missing = {
    signal: ("SIGUSR1", "SIGUSR2", "SIGALRM", "pthread_sigmask", "setitimer"),
    os: ("killpg", "setpgid", "setsid", "getpgid", "pidfd_open", "waitid", "memfd_create", "sysconf"),
    faulthandler: ("register", "unregister"),
}
for module, names in missing.items():
    for name in names:
        vars(module).pop(name, None)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None

import numpy as np
from amago.envs import AMAGOEnv, recorder
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import make_vector_env
env = make_vector_env([lambda: AMAGOEnv(MetaFrozenLake(3), "lake")] * 3, env_mode=sys.argv[1])
env.reset()
env.step(np.zeros((3, 1), np.int64))
env.close()
print("closed")
"""


@pytest.mark.parametrize("env_mode", ["sync", "async"])
def test_environments_can_be_stepped_without_what_windows_lacks(env_mode):
    done = subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS, env_mode],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "closed\n", done.stderr


class LeavesAProcess(MetaFrozenLake):
    """Starts a process and tells its number in a file."""

    def __init__(self, told: Path) -> None:
        super().__init__(3)
        sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        told.write_text(str(sleeper.pid))


def leaves_a_process(told: Path) -> AMAGOEnv:
    return AMAGOEnv(LeavesAProcess(told), "lake")


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie, which only waits to be noted by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_environments_start_ends_too_where_workers_are_children_of_a_server(tmp_path):
    told = tmp_path / "pid"
    env = make_vector_env(
        [functools.partial(leaves_a_process, told)], env_mode="async", mp_context="forkserver"
    )
    env.reset()
    pid = int(told.read_text())
    assert runs(pid)
    env.close()
    # It was killed by now, but may need a moment to be gone.
    tries = itertools.takewhile(lambda _: runs(pid), range(500))
    for _ in tries:
        threading.Event().wait(0.01)
    assert not runs(pid)


class SmallLake(MetaFrozenLake):
    """Named at the top level, so that it can be sent to processes that are not forked."""

    def __init__(self) -> None:
        super().__init__(3)


def lakes_in_processes_of_their_own() -> AMAGOEnv:
    modes = getattr(gym.vector, "AutoresetMode", None)  # gymnasium 0.29 has one way only
    kwargs = {} if modes is None else {"autoreset_mode": modes.SAME_STEP}
    return AMAGOEnv(gym.vector.AsyncVectorEnv([SmallLake] * 2, **kwargs), "lakes", batched_envs=2)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_may_hold_environments_with_processes_of_their_own(method):
    before = set(multiprocessing.active_children())
    env = make_vector_env(
        [lakes_in_processes_of_their_own] * 2, env_mode="async", envs_per_worker=1, mp_context=method
    )
    env.reset(seed=0)
    for _ in range(30):
        step = env.step(np.zeros((4, 1), np.int64))
    assert step.inputs.time_idxs.tolist() == [step.inputs.time_idxs[0]] * 4
    env.close()
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", None), ("100000 100000", 1), ("150000 100000", 2), ("1000 100000", 1)]
)
def test_the_limit_of_a_container_counts(limit, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_CPU_QUOTA", tmp_path / "cpu.max")
    allowed = len(os.sched_getaffinity(0))
    assert processes.available_cores() == allowed
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert processes.available_cores() == (allowed if cores is None else min(allowed, cores))


@pytest.mark.parametrize(
    ("cores", "envs_per_worker", "workers"), [(1, None, 1), (2, None, 2), (None, 2, 3), (None, 1, 5)]
)
def test_environments_are_spread_over_the_cores_or_as_they_are_told(cores, envs_per_worker, workers):
    before = multiprocessing.active_children()
    allowed = os.sched_getaffinity(0)
    if cores is not None and cores > len(allowed):
        cores, workers = len(allowed), len(allowed)
    try:
        if cores is not None:
            os.sched_setaffinity(0, sorted(allowed)[:cores])
        env = make_vector_env(
            [lambda: AMAGOEnv(MetaFrozenLake(3), "lake")] * 5,
            env_mode="async",
            envs_per_worker=envs_per_worker,
        )
        assert len(multiprocessing.active_children()) - len(before) == workers
        env.close()
    finally:
        os.sched_setaffinity(0, allowed)
