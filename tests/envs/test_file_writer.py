"""FileWriter: a thread writes trajectories in order; failures are raised and nothing is lost."""

import threading

import pytest

from amago.envs.recorder import file_writer
from amago.envs.recorder.file_writer import FileWriter, TrajectoryWriteError

PATIENCE = 10.0  # seconds, far beyond what writing takes


class Acknowledged:
    """Counts files as they are acknowledged, and waits for a number of them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.changed = threading.Condition()

    def __call__(self, path) -> None:
        assert path.exists()
        with self.changed:
            self.names.append(path.name)
            self.changed.notify_all()

    def reaches(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.names) >= count, timeout=PATIENCE)


@pytest.fixture
def acknowledged():
    return Acknowledged()


@pytest.fixture
def writer(tmp_path, acknowledged):
    writer = FileWriter(tmp_path, "npz", acknowledged)
    yield writer
    writer.stop()


def put(writer: FileWriter, frozen, numbers) -> None:
    for number in numbers:
        writer.put(frozen, f"env_{number:08x}_1", "env")


def raise_until_failed(writer: FileWriter) -> None:
    while True:
        writer.raise_failure()


def test_trajectories_are_written_in_order_without_flush(writer, acknowledged, make_frozen):
    put(writer, make_frozen(), range(3))
    assert acknowledged.reaches(3)
    # Also those that come when the thread waits again.
    put(writer, make_frozen(), range(3, 5))
    assert acknowledged.reaches(5)
    assert acknowledged.names == [f"env_{number:08x}_1.npz" for number in range(5)]


def test_after_a_flush_everything_is_on_disk(writer, acknowledged, make_frozen, tmp_path):
    for files in (20, 40):
        put(writer, make_frozen(), range(files - 20, files))
        writer.flush()
        assert len(list(tmp_path.iterdir())) == len(acknowledged.names) == writer.files_written == files
        assert writer.pending_transitions == 0


def test_a_full_queue_makes_the_caller_wait(tmp_path, make_frozen, monkeypatch):
    monkeypatch.setattr(file_writer, "MAX_PENDING", 20)
    release = threading.Event()
    writer = FileWriter(tmp_path, "npz", lambda path: release.wait(PATIENCE) and None)
    filler = threading.Thread(target=put, args=(writer, make_frozen(1), range(21)))
    filler.start()
    filler.join(0.5)
    assert filler.is_alive()
    release.set()
    filler.join(PATIENCE)
    assert not filler.is_alive()
    writer.stop()
    assert writer.files_written == 21


def test_a_failed_write_is_raised_and_tried_again(tmp_path, make_frozen):
    failures = iter([OSError("no space")])
    written = []

    def acknowledge(path) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        written.append(path)

    writer = FileWriter(tmp_path, "npz", acknowledge)
    put(writer, make_frozen(), range(2))
    with pytest.raises(TrajectoryWriteError, match=r"no space.*2 are kept"):
        raise_until_failed(writer)
    writer.flush()
    assert len(set(written)) == 2
    writer.stop()


def test_stop_warns_of_trajectories_that_cannot_be_written(tmp_path, make_frozen):
    folder = tmp_path / "buffer"
    writer = FileWriter(folder, "npz", None)
    folder.rmdir()
    put(writer, make_frozen(3), [0])
    with pytest.raises(TrajectoryWriteError):
        writer.flush()
    with pytest.warns(
        UserWarning, match=r"1 trajectories could not be written .* are lost \(3 transitions\)"
    ):
        writer.stop()
    writer.flush()
    writer.stop()
