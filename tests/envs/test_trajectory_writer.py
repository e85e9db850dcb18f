"""When the writing thread writes: soon by itself, at once when somebody waits for it."""

import threading

import pytest

from amago.envs.recorder import writer as writer_module
from amago.envs.recorder.writer import TrajectoryWriter

PATIENCE = 10.0  # seconds, far beyond what writing takes


class Counter:
    """Counts files as they are acknowledged, and lets others wait for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = threading.Condition()

    def __call__(self, path) -> None:
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def reaches(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, timeout=PATIENCE)


@pytest.fixture
def counter():
    return Counter()


@pytest.fixture
def writer(tmp_path, counter):
    writer = TrajectoryWriter(tmp_path, "npz", counter)
    yield writer
    writer.stop()


def put(writer: TrajectoryWriter, frozen, numbers) -> None:
    for number in numbers:
        writer.put(frozen, f"env_{number:08x}_1", "env")


def test_trajectories_are_written_without_being_asked_for(writer, counter, make_frozen):
    put(writer, make_frozen(), range(3))
    assert counter.reaches(3)
    # Also those that come when the thread has gone back to waiting.
    put(writer, make_frozen(), range(3, 5))
    assert counter.reaches(5)


@pytest.fixture
def patient(monkeypatch):
    """The thread would gather for longer than a test may take."""
    monkeypatch.setattr(writer_module, "GATHER_SECONDS", 1000.0)


@pytest.mark.usefixtures("patient")
def test_whoever_waits_for_files_does_not_wait_for_more_to_gather(writer, counter, make_frozen):
    for files in (2, 4, 6):
        put(writer, make_frozen(), range(files - 2, files))
        writer.flush()
        assert counter.count == files


@pytest.mark.usefixtures("patient")
def test_ending_writes_what_was_gathered(writer, counter, make_frozen):
    put(writer, make_frozen(), range(2))
    writer.stop()
    assert counter.count == 2


@pytest.mark.usefixtures("patient")
def test_a_full_queue_is_written_before_it_takes_more(writer, counter, make_frozen, monkeypatch):
    frozen = make_frozen()
    monkeypatch.setattr(writer_module, "MAX_PENDING_BYTES", 2 * frozen.nbytes)
    put(writer, frozen, range(5))
    assert counter.reaches(3)
