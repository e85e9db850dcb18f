"""Who writes trajectory files, and when: the caller while the disk is quick, else a thread, soon or when asked."""

import threading

import pytest

from amago.envs.recorder import writer as writer_module
from amago.envs.recorder.file_writer import TrajectoryWriteError, FileWriter

PATIENCE = 10.0  # seconds, far beyond what writing takes


class Counter:
    """Counts files as they are acknowledged, and lets others wait for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.threads: list[threading.Thread] = []
        self.changed = threading.Condition()

    def __call__(self, path) -> None:
        with self.changed:
            self.count += 1
            self.threads.append(threading.current_thread())
            self.changed.notify_all()

    def reaches(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, timeout=PATIENCE)


@pytest.fixture
def counter():
    return Counter()


@pytest.fixture
def writer(tmp_path, counter):
    writer = FileWriter(tmp_path, "npz", counter)
    yield writer
    writer.stop()


def put(writer: FileWriter, frozen, numbers) -> None:
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
    """Neither the thread nor the caller would write before a test has ended."""
    monkeypatch.setattr(writer_module, "THREAD_SECONDS", 1000.0)
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


@pytest.fixture
def eager(monkeypatch):
    """The caller writes all that waits at each call and finds nothing slow; the thread does what it is told to."""
    monkeypatch.setattr(writer_module, "THREAD_SECONDS", 1000.0)
    monkeypatch.setattr(writer_module, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(writer_module, "BATCH_SECONDS", 1000.0)
    monkeypatch.setattr(writer_module, "QUICK_SECONDS", 1000.0)


def by_the_caller(counter: Counter) -> list[bool]:
    """For every file that was written, whether this thread wrote it."""
    return [thread is threading.current_thread() for thread in counter.threads]


@pytest.mark.usefixtures("eager")
def test_the_caller_writes_small_files_while_the_disk_is_quick(writer, counter, make_frozen):
    put(writer, make_frozen(), range(4))
    assert by_the_caller(counter) == [True] * 4
    assert writer.pending_transitions == 0


@pytest.mark.usefixtures("eager")
def test_compressing_is_left_to_the_thread(tmp_path, counter, make_frozen):
    writer = FileWriter(tmp_path, "npz-compressed", counter)
    put(writer, make_frozen(), range(2))
    writer.stop()
    assert by_the_caller(counter) == [False, False]


@pytest.mark.usefixtures("eager")
def test_a_large_file_and_what_comes_after_it_are_left_to_the_thread(
    writer, counter, make_frozen, monkeypatch
):
    small, large = make_frozen(length=3), make_frozen(length=30)
    monkeypatch.setattr(writer_module, "MAX_BATCHED_BYTES", small.nbytes)
    for number, frozen in enumerate((small, large, small)):
        put(writer, frozen, [number])
    writer.stop()
    assert by_the_caller(counter) == [True, False, False]


@pytest.mark.usefixtures("eager")
def test_after_a_slow_write_the_thread_takes_over_until_the_pause_is_over(
    writer, counter, make_frozen, monkeypatch
):
    monkeypatch.setattr(writer_module, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(writer_module, "PAUSE_AFTER_SLOW", 1e9)
    put(writer, make_frozen(), range(3))
    writer.flush()
    assert by_the_caller(counter) == [True, False, False]

    monkeypatch.setattr(writer, "_quick_from", 0.0)
    put(writer, make_frozen(), [3])
    assert by_the_caller(counter) == [True, False, False, True]


@pytest.mark.usefixtures("eager")
def test_a_batch_that_takes_too_long_is_left_to_the_thread(writer, counter, make_frozen, monkeypatch):
    monkeypatch.setattr(writer_module, "GATHER_SECONDS", 1000.0)
    put(writer, make_frozen(), range(3))
    monkeypatch.setattr(writer_module, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(writer_module, "BATCH_SECONDS", 1e-9)
    put(writer, make_frozen(), [3])
    assert len(counter.threads) <= 1
    writer.stop()
    assert counter.count == 4


@pytest.mark.usefixtures("eager")
def test_a_write_by_the_caller_that_fails_is_reported_and_tried_again(tmp_path, make_frozen):
    failures = iter([OSError("no space"), None, None])
    written = []

    def acknowledge(path) -> None:
        if (failure := next(failures)) is not None:
            raise failure
        written.append(path)

    writer = FileWriter(tmp_path, "npz", acknowledge)
    put(writer, make_frozen(), range(2))
    with pytest.raises(TrajectoryWriteError, match=r"no space.*2 are kept"):
        writer.raise_failure()
    writer.flush()
    assert len(set(written)) == 2
    writer.stop()


@pytest.mark.usefixtures("eager")
def test_a_write_by_the_caller_that_is_interrupted_loses_nothing(tmp_path, make_frozen):
    interrupts = iter([KeyboardInterrupt, None, None])
    written = []

    def acknowledge(path) -> None:
        if (interrupt := next(interrupts)) is not None:
            raise interrupt
        written.append(path)

    writer = FileWriter(tmp_path, "npz", acknowledge)
    with pytest.raises(KeyboardInterrupt):
        put(writer, make_frozen(), [0])
    assert writer.pending_transitions == len(make_frozen())
    put(writer, make_frozen(), [1])
    assert len(set(written)) == 2
    writer.stop()


@pytest.mark.usefixtures("patient")
def test_an_interrupted_flush_hurries_nobody_afterwards(writer, counter, make_frozen, monkeypatch):
    monkeypatch.setattr(writer, "_write_batch", lambda until: None)

    wait = writer._changed.wait

    def interrupt(timeout=None):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait(timeout)

    put(writer, make_frozen(), range(2))
    with monkeypatch.context() as patch:
        patch.setattr(writer._changed, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.flush()
    assert not writer._is_urgent()


class Interrupted(FileWriter):
    """Its caller is interrupted once between taking a trajectory and writing it."""

    is_due = True

    def _write(self, head) -> bool:
        if self.is_due and threading.current_thread() is threading.main_thread():
            self.is_due = False
            raise KeyboardInterrupt
        return super()._write(head)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("next_call", ["flush", "put", "stop"])
@pytest.mark.usefixtures("patient")
def test_what_a_caller_had_taken_when_it_was_interrupted_is_written_all_the_same(
    tmp_path, counter, make_frozen, next_call
):
    writer = Interrupted(tmp_path, "npz", counter)
    put(writer, make_frozen(), range(3))
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    writer._quick_from = float("inf")  # from here on the thread writes, as where a disk is slow
    if next_call == "put":
        put(writer, make_frozen(), [3])
    if next_call != "stop":
        writer.flush()
        assert writer.files_written == (4 if next_call == "put" else 3)
    writer.stop()
    assert len(list(tmp_path.iterdir())) == counter.count == writer.files_written


@pytest.mark.usefixtures("eager")
def test_a_signal_that_flushes_while_the_caller_writes_loses_nothing_and_removes_nothing_else(
    tmp_path, make_frozen
):
    written = []

    def acknowledge(path) -> None:
        written.append(path)
        if len(written) == 1:
            # What a handler does that makes a checkpoint before the machine is taken away.
            writer.flush()

    writer = FileWriter(tmp_path, "npz", acknowledge)
    put(writer, make_frozen(), range(3))
    writer.stop()
    assert len(set(written)) == len(list(tmp_path.iterdir())) == writer.files_written == 3


@pytest.mark.usefixtures("eager")
def test_slow_failures_count_as_slow(tmp_path, make_frozen, monkeypatch):
    monkeypatch.setattr(writer_module, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(writer_module, "PAUSE_AFTER_SLOW", 1e9)
    threads = []

    def refuse(path) -> None:
        threads.append(threading.current_thread())
        raise OSError("timed out")

    writer = FileWriter(tmp_path, "npz", refuse)
    for number in range(3):
        put(writer, make_frozen(), [number])
        with pytest.raises(TrajectoryWriteError):
            writer.flush()
    assert threads.count(threading.current_thread()) == 1
    with pytest.warns(UserWarning, match="3 trajectories could not be written"):
        writer.stop()


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("patient")
def test_an_interpreter_that_starts_no_thread_any_more_still_writes(
    tmp_path, counter, make_frozen, monkeypatch
):
    def refuse(self) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(writer_module, "MAX_PENDING", 2)
    writer = FileWriter(tmp_path, "npz-compressed", counter)
    put(writer, make_frozen(), range(4))
    writer.flush()
    assert counter.count == 4
    put(writer, make_frozen(), [4])
    writer.stop()
    assert counter.count == 5
