"""Waiting awake for what other processes answer: what it may change is time, never what arrives."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection

import gymnasium as gym
import pytest

from amago.envs import AMAGOEnv
from amago.envs.vector import make_vector_env, watching, workers
from amago.envs.vector.hanging import limit_waiting
from amago.envs.vector.watching import PATIENCE_SECONDS, Watch

CAN_STAY_AWAKE = pytest.mark.skipif(
    not hasattr(os, "sched_yield"), reason="processes cannot stay awake on this system"
)
TIMEOUT = 0.2

Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = multiprocessing.Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def after_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], list[int]]:
    """Does something when a watch has looked so many times in vain; returns the list of all such looks."""
    looks: list[int] = []

    def arrange(number: int, then: Callable[[], object]) -> list[int]:
        def looked_in_vain() -> None:
            looks.append(1)
            if len(looks) == number:
                then()

        monkeypatch.setattr(watching.os, "sched_yield", looked_in_vain)
        return looks

    return arrange


@pytest.mark.parametrize("awake", [True, False])
def test_messages_arrive_in_order_and_whole(ends: Ends, awake: bool) -> None:
    ours, theirs = ends
    messages = [bytes([i]) * i * 100 for i in range(20)]
    sender = threading.Thread(target=lambda: [theirs.send_bytes(message) for message in messages])
    watch = Watch(ours, awake=awake)
    sender.start()
    received = [watch.receive() for _ in messages]
    sender.join()
    assert received == messages


@CAN_STAY_AWAKE
def test_a_message_that_comes_soon_is_received_without_sleeping(ends: Ends, after_looks) -> None:
    ours, theirs = ends
    looks = after_looks(3, lambda: theirs.send_bytes(b"soon"))
    # Nobody else sends, so falling asleep before the third look would be forever.
    assert Watch(ours, clock=lambda: 0.0).receive() == b"soon"
    assert len(looks) == 3


@CAN_STAY_AWAKE
def test_after_a_message_that_came_late_the_next_one_is_waited_for_asleep(ends: Ends, after_looks) -> None:
    ours, theirs = ends
    now = 0.0

    def much_later() -> None:
        nonlocal now
        now += 2 * PATIENCE_SECONDS
        theirs.send_bytes(b"late")

    after_looks(1, much_later)
    watch = Watch(ours, clock=lambda: now)
    look, looks = watch._look, []
    watch._look = lambda milliseconds: looks.append(milliseconds) or look(milliseconds)
    assert watch.receive() == b"late"
    assert looks == [0, 0]

    looks.clear()
    theirs.send_bytes(b"asleep")
    assert watch.receive() == b"asleep"
    assert looks == []

    # The clock stood still, so that one came in time.
    theirs.send_bytes(b"awake")
    assert watch.receive() == b"awake"
    assert looks == [0]


class SentWhenAskedFor:
    """A connection on which nothing arrives until somebody sleeps on it."""

    def __init__(self, ends: Ends) -> None:
        self.ours, self.theirs = ends
        self.fileno = self.ours.fileno

    def recv_bytes(self) -> bytes:
        self.theirs.send_bytes(b"at last")
        return self.ours.recv_bytes()


@CAN_STAY_AWAKE
def test_patience_ends(ends: Ends, after_looks) -> None:
    seconds = iter(i * PATIENCE_SECONDS / 10 for i in range(100))
    looks = after_looks(0, lambda: None)
    assert Watch(SentWhenAskedFor(ends), clock=lambda: next(seconds)).receive() == b"at last"
    assert len(looks) == 9


@pytest.mark.parametrize("awake", [True, False])
def test_the_end_of_the_other_process_is_told(ends: Ends, awake: bool) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(EOFError):
        Watch(ours, awake=awake).receive()


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.skipif(os.name == "nt", reason="waiting has no limit there")
def test_the_time_limit_holds_awake_and_asleep(ends: Ends, awake: bool) -> None:
    ours, _ = ends
    limit_waiting(ours, TIMEOUT)
    with pytest.raises(BlockingIOError):
        Watch(ours, awake=awake).receive()


@pytest.mark.parametrize(
    ("cores", "envs_per_worker", "awake"), [(1, 4, False), (2, 4, True), (2, 2, True), (2, 1, False)]
)
def test_nobody_stays_awake_where_workers_outnumber_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, envs_per_worker: int, awake: bool
) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: cores)
    told: list[bool] = []
    watch = workers.Watch
    monkeypatch.setattr(
        workers, "Watch", lambda conn, *, awake: told.append(awake) or watch(conn, awake=awake)
    )
    setups: list[bool] = []
    setup = workers.WorkerSetup
    monkeypatch.setattr(
        workers, "WorkerSetup", lambda **given: setups.append(given["awake"]) or setup(**given)
    )
    make_env = partial(AMAGOEnv, gym.make("CartPole-v1"), env_name="CartPole")
    envs = make_vector_env([make_env] * 4, env_mode="async", envs_per_worker=envs_per_worker)
    envs.close()
    assert told == setups == [awake] * (4 // envs_per_worker)
