"""Trajectory files that were made to do harm, or have gone wrong in ways that no writer of ours causes.

Whatever lies in a buffer is read by learners, so a file may cost neither code, nor memory out of proportion to its
size, nor any error but the one that has it thrown out.
"""

import io
import json
import os
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from amago.hindsight import (
    CorruptTrajectoryError,
    FrozenTraj,
    TrajectoryTooLargeError,
    load_slice,
    load_trajectory,
    memory_limit,
    save_trajectory,
    verify_trajectory,
)
from amago.hindsight.layout import opened_trajectory, read_layout
from amago.hindsight.stored_array import open_unchecked

Array = np.ndarray


def whole(path: Path) -> object:
    return load_trajectory(path)


def part(path: Path) -> object:
    return load_slice(path, 0, 1)


@pytest.fixture
def arrays(make_frozen) -> dict[str, Array]:
    """What a trajectory of 7 transitions is stored as."""
    return make_frozen(length=7).to_dict()


def write_zip(path: Path, members: Iterable[tuple[str, Array]], method: int = zipfile.ZIP_STORED) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile, about names that it gets twice
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, array in members:
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array)
    return path


def write_traj(path: Path, header: bytes, content: bytes = bytes(1000)) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + content)
    return path


def traj_header(arrays: dict[str, Array], change: Callable[[dict], object]) -> tuple[bytes, bytes]:
    """The header of a .traj with these arrays, changed, and their content."""
    entries: dict[str, dict] = {}
    content, names = b"", {"f": "F", "i": "I", "u": "U", "b": "BOOL"}
    for name, array in arrays.items():
        kind = names[array.dtype.kind]
        dtype = kind if kind == "BOOL" else f"{kind}{8 * array.itemsize}"
        place = [len(content), len(content) + array.nbytes]
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": place}
        content += array.tobytes()
    change(entries)
    return json.dumps(entries).encode(), content


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Memory


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Sets the memory that the container may have."""

    def set_limit(nbytes: int, place: str = "memory.max", own: str = "0::/\n") -> None:
        (tmp_path / "own").write_text(own)
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"{nbytes}\n")
        memory_limit.machine_memory.cache_clear()

    monkeypatch.setattr(memory_limit, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory_limit, "_OWN_CGROUPS", tmp_path / "own")
    yield set_limit
    memory_limit.machine_memory.cache_clear()


@pytest.mark.parametrize(
    ("place", "own"),
    [
        ("memory.max", ""),
        ("user.slice/memory.max", "0::/user.slice/session.scope\n"),
        ("user.slice/session.scope/memory.max", "0::/user.slice/session.scope\n"),
        ("memory/jobs/memory.limit_in_bytes", "5:cpu,cpuacct:/x\n4:memory:/jobs/7\n0::/\n"),
        ("memory/memory.limit_in_bytes", "4:memory:/docker/0123\n"),
    ],
    ids=["container", "around its own", "its own", "version 1", "container of version 1"],
)
def test_the_memory_is_that_of_the_control_group_wherever_its_limit_is_told(memory, place, own):
    memory(3 << 20, place, own)
    assert memory_limit.machine_memory() == 3 << 20


@pytest.fixture(scope="module")
def constant_frames(tmp_path_factory, make_frozen) -> Path:
    """280 transitions of 1000 x 1000 black pixels as our own writer compresses them."""
    arrays = make_frozen(length=280).to_dict() | {"_OBS_KEY_image": np.zeros((281, 1000, 1000), np.uint8)}
    folder = tmp_path_factory.mktemp("constant")
    return save_trajectory(FrozenTraj.from_dict(arrays), folder / "x", "npz-compressed", "env")


def test_what_our_writer_compresses_our_reader_reads_up_to_the_limits(constant_frames):
    assert constant_frames.stat().st_size < 1 << 20, "a thousandth"
    trajectory = load_trajectory(constant_frames)
    assert trajectory.obs["image"].shape == (281, 1000, 1000)
    assert not trajectory.obs["image"].any()


def test_content_that_shrinks_out_of_proportion_may_not_fill_the_memory(constant_frames, memory):
    memory(1 << 30)

    def refuse() -> None:
        with pytest.raises(TrajectoryTooLargeError, match="a quarter of the memory") as caught:
            load_trajectory(constant_frames)
        assert not isinstance(caught.value, (CorruptTrajectoryError, OSError)), (
            "nothing is wrong with the file"
        )
        for part in (str(constant_frames), "needs 2810", f"may take {1 << 28},", "Read windows of it"):
            assert part in str(caught.value)

    assert peak_of(refuse) < 1 << 20, "it is refused before it is inflated"


def frames_of(path: Path, side: int, *, padding: int = 0, steps: int = 2) -> Path:
    """An archive of compressed black frames of side x side pixels, and beside it a stored array of some bytes."""
    transitions = {"rews": np.float32, "dones": np.bool_}
    arrays = {name: np.zeros((steps, 1), dtype) for name, dtype in transitions.items()}
    arrays |= {"actions": np.zeros((steps, 2), np.float32), "rl2s": np.zeros((steps + 1, 3), np.float32)}
    arrays["time_idxs"] = np.arange(steps + 1)[:, None]
    write_zip(path, arrays.items())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("_OBS_KEY_image.npy", "w") as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": (steps + 1, side, side)}
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(steps + 1):
                member.write(bytes(side * side))
        if padding:
            archive.compression = zipfile.ZIP_STORED
            with archive.open("_OBS_KEY_padding.npy", "w") as member:
                np.lib.format.write_array(member, np.zeros((steps + 1, padding), np.uint8))
    return path


@pytest.mark.parametrize("padding", [0, 1 << 20], ids=["alone", "padded"])
def test_a_window_out_of_proportion_is_refused_however_much_memory_there_is(tmp_path, memory, padding):
    """Windows are drawn by the batch: what one may take, all of them may; and padding makes no data honest."""
    path = frames_of(tmp_path / "x.npz", 12_000, padding=padding)
    memory(1 << 50)

    def refuse() -> None:
        with pytest.raises(CorruptTrajectoryError, match="for one window"):
            load_slice(path, 0, 1)

    assert peak_of(refuse) < 1 << 20


def test_padding_does_not_raise_what_a_whole_trajectory_may_take(tmp_path, memory):
    path = frames_of(tmp_path / "x.npz", 12_000, padding=1 << 20)
    memory(1 << 20)
    with pytest.raises(TrajectoryTooLargeError, match="a quarter of the memory"):
        load_trajectory(path)


def test_a_trajectory_is_verified_in_pieces_and_damage_is_found(constant_frames, tmp_path, memory):
    memory(1 << 20)
    assert peak_of(lambda: verify_trajectory(constant_frames)) < 4 << 20
    assert verify_trajectory(constant_frames) == 280
    compressed = frames_of(tmp_path / "x.npz", 300)
    stored = write_zip(tmp_path / "y.npz", load_trajectory(compressed).to_dict().items())
    for path in (compressed, stored):
        assert verify_trajectory(path) == 2
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
        with pytest.raises(CorruptTrajectoryError):
            verify_trajectory(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_the_copies_for_another_order_byte_order_or_dtype_are_counted(tmp_path, arrays, dtype, order):
    steps = len(arrays["rews"])
    wide = {
        "actions": np.zeros((steps, 20_000), dtype, order),
        "rl2s": np.zeros((steps + 1, 20_001), dtype, order),
    }
    path = write_zip(tmp_path / "x.npz", (arrays | wide).items(), zipfile.ZIP_DEFLATED)
    with opened_trajectory(path) as file:
        layout = read_layout(file, path)
        counted, _ = layout._memory_of(0, layout.length)
        peak = peak_of(lambda: layout.read_whole(file))
    assert peak < counted + (1 << 20)


def test_a_window_of_what_would_fill_the_memory_takes_that_of_the_window(constant_frames, memory):
    memory(1 << 30)
    windows = []
    assert peak_of(lambda: windows.append(load_slice(constant_frames, 270, 272))) < 8 << 20
    assert windows[0].obs["image"].shape == (3, 1000, 1000)


def test_a_header_that_claims_more_than_its_stream_could_give_is_refused_before_it_is_inflated(
    tmp_path, arrays
):
    path = write_zip(tmp_path / "x.npz", arrays.items(), zipfile.ZIP_DEFLATED)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("_OBS_KEY_zeros.npy", "w") as member,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (8, 10**8)}
        np.lib.format.write_array_header_1_0(member, header)
        member.write(bytes(10**5))

    def refuse() -> None:
        with pytest.raises(CorruptTrajectoryError, match="claims 800000000 bytes"):
            load_trajectory(path)

    assert peak_of(refuse) < 1 << 20


def test_a_window_of_a_compressed_file_takes_the_memory_of_the_window(tmp_path, make_frozen):
    frozen = make_frozen(length=4000)
    path = save_trajectory(frozen, tmp_path / "x", "npz-compressed", "env")
    total = sum(array.nbytes for array in frozen.to_dict().values())
    assert peak_of(lambda: load_slice(path, 3990, 3999)) < total / 2 + (1 << 19)
    # the fault: everything up to the window is inflated into one piece, and then copied
    assert peak_of(lambda: load_trajectory(path)) > total


def test_arrays_that_share_their_bytes_are_refused(tmp_path, arrays):
    """A few bytes read as many arrays: the way to make a small file large without compression."""

    def overlap(entries: dict) -> None:
        for i in range(50):
            entries[f"_OBS_KEY_{i}"] = entries["_OBS_KEY_image"]

    with pytest.raises(CorruptTrajectoryError, match="over one another"):
        load_trajectory(write_traj(tmp_path / "x.traj", *traj_header(arrays, overlap)))
    data = bytearray(write_zip(tmp_path / "x.npz", arrays.items()).read_bytes())
    end = data.rindex(b"PK\x05\x06")
    size, offset = struct.unpack_from("<2I", data, end + 12)
    entry = data.index(b"_OBS_KEY_image.npy", offset) - 46
    one = data[entry : entry + 46 + len("_OBS_KEY_image.npy")]
    copies = b"".join(one.replace(b"image", f"imag{i:x}".encode()) for i in range(9))
    count = len(arrays) + 9
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size + len(copies), offset, 0)
    (tmp_path / "x.npz").write_bytes(data[:end] + copies + tail)
    with pytest.raises(CorruptTrajectoryError, match="over one another"):
        load_trajectory(tmp_path / "x.npz")


def test_an_archive_of_very_many_arrays_is_refused_at_once(tmp_path):
    path = write_zip(tmp_path / "x.npz", ((f"_OBS_KEY_{i}", np.zeros((2, 1))) for i in range(5000)))
    with pytest.raises(CorruptTrajectoryError, match="5000 arrays"):
        load_trajectory(path)


@pytest.mark.parametrize("nbytes", [2**22 + 1, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_claims_a_huge_length_is_not_allocated(tmp_path, nbytes):
    path = tmp_path / "x.traj"
    path.write_bytes(struct.pack("<Q", nbytes) + b"{" + bytes(1000))

    def refuse() -> None:
        with pytest.raises(CorruptTrajectoryError, match="cut off"):
            load_trajectory(path)

    assert peak_of(refuse) < 1 << 20


# Contradictions


def test_an_array_that_is_there_twice_is_refused(tmp_path, arrays):
    members = [*arrays.items(), ("actions", arrays["actions"])]
    with pytest.raises(CorruptTrajectoryError, match=r"\d+ arrays under \d+ names"):
        load_trajectory(write_zip(tmp_path / "x.npz", members))
    header, content = traj_header(arrays, lambda entries: None)
    header = header[:-1] + b', "rews": ' + json.dumps(json.loads(header)["rews"]).encode() + b"}"
    with pytest.raises(CorruptTrajectoryError, match="twice"):
        load_trajectory(write_traj(tmp_path / "x.traj", header, content))


@pytest.mark.parametrize(
    "header",
    [
        *(b"[]", b'"text"', b"5", b"null", b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 3000),
        *(b'{"__metadata__": []}', b'{"__metadata__": "1"}', b'{"__metadata__": {"version": 1}}'),
        *(b'{"rews": []}', b'{"rews": {}}', b'{"rews": "F32"}', b'{"rews": null}'),
    ],
    ids=str,
)
def test_a_header_of_another_form_is_corrupt(tmp_path, header):
    with pytest.raises(CorruptTrajectoryError):
        load_trajectory(write_traj(tmp_path / "x.traj", header))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [float("nan"), 1]},
        {"shape": [float("inf"), 1]},
        {"shape": [-7, -1]},
        {"shape": [7.5, 1]},
        {"shape": "71"},
        {"shape": []},
        {"shape": [2**62, 2**62]},
        {"shape": [7] + [1] * 80},
        {"dtype": "F128"},
        {"dtype": []},
        {"dtype": None},
        {"data_offsets": [0]},
        {"data_offsets": ["a", "b"]},
        {"data_offsets": [-28, 0]},
        {"data_offsets": [2**70, 2**70 + 28]},
    ],
    ids=str,
)
def test_an_array_of_impossible_shape_dtype_or_place_is_corrupt(tmp_path, arrays, change):
    header = traj_header(arrays, lambda entries: entries["rews"].update(change))
    for read in (whole, part):
        with pytest.raises(CorruptTrajectoryError):
            read(write_traj(tmp_path / "x.traj", *header))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rews", np.zeros((6, 1), np.float32)),
        ("rews", np.zeros((7, 2), np.float32)),
        ("rews", np.zeros(7, np.float32)),
        ("rews", np.zeros((0, 1), np.float32)),
        ("rews", np.zeros((7, 1), np.complex64)),
        ("dones", np.zeros((7, 1), np.float32)),
        ("actions", np.zeros((7, 0), np.float32)),
        ("time_idxs", np.zeros((8, 1), np.float64)),
        ("rl2s", np.full((8, 3), "text")),
        ("_OBS_KEY_image", np.float32(1)),
        ("_OBS_KEY_image", np.zeros((3, 4), np.uint8)),
        ("_OBS_KEY_image", np.zeros(8, [("a", "f4")])),
        ("_OBS_KEY_image", np.zeros(8, "M8[s]")),
        ("_OBS_KEY_image", np.zeros((8, 2), np.longdouble)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}{value.shape}",
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_that_do_not_fit_together_are_corrupt(tmp_path, arrays, name, wrong, method):
    path = write_zip(tmp_path / "x.npz", {**arrays, name: wrong}.items(), method)
    for read in (whole, part):
        with pytest.raises(CorruptTrajectoryError):
            read(path)


def test_names_that_lead_out_of_the_folder_lead_nowhere(tmp_path, arrays):
    folder = tmp_path / "folder"
    folder.mkdir()
    outside = write_zip(folder / "x.npz", [*arrays.items(), ("../../outside", np.zeros(3))])
    with pytest.raises(CorruptTrajectoryError, match=r"\.\./\.\./outside"):
        load_trajectory(outside)
    keyed = write_zip(folder / "y.npz", [*arrays.items(), ("_OBS_KEY_../../key", np.zeros((8, 1)))])
    assert "../../key" in load_trajectory(keyed).obs
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "x.npz", "y.npz"]


# What is under the name


def test_links_to_trajectories_are_read_and_links_to_devices_are_not(tmp_path, make_frozen):
    save_trajectory(make_frozen(length=7), tmp_path / "x", "npz", "env")
    os.symlink(tmp_path / "x.npz", tmp_path / "link.npz")
    assert len(load_trajectory(tmp_path / "link.npz")) == 7
    for device in ("/dev/zero", "/dev/null"):
        os.symlink(device, tmp_path / "device.npz")
        with pytest.raises(CorruptTrajectoryError, match="no regular file"):
            load_trajectory(tmp_path / "device.npz")
        os.unlink(tmp_path / "device.npz")


def test_trying_to_open_folders_uses_up_no_file_handles(tmp_path):
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = handles()
    for _ in range(10):
        with pytest.raises(IsADirectoryError):
            open_unchecked(tmp_path)
    assert handles() == before
    # the fault: a descriptor that is not closed when it turns out to be a folder's
    with pytest.raises(IsADirectoryError):
        io.FileIO(left := os.open(tmp_path, os.O_RDONLY))
    assert handles() == before + 1
    os.close(left)


class Trickling(io.FileIO):
    """Reads at most 1,000 bytes at once, as systems do with 2 GiB, and network file systems when they like."""

    def readinto(self, buffer: object) -> int:
        return super().readinto(memoryview(buffer).cast("B")[:1000])


@pytest.mark.parametrize("save_as", ["npz", "traj"])
def test_reads_that_end_early_are_gone_on_with(tmp_path, make_frozen, save_as):
    frozen = make_frozen(length=500)
    path = save_trajectory(frozen, tmp_path / "x", save_as, "env")
    with opened_trajectory(path) as file:
        layout = read_layout(file, path)
    loaded = layout.read(Trickling(path), 0, 500)
    for name, array in frozen.to_dict().items():
        np.testing.assert_array_equal(loaded.to_dict()[name], array)
    os.truncate(path, path.stat().st_size - 5000)
    with pytest.raises(ValueError, match="cut off"):
        layout.read(Trickling(path), 0, 500)


def test_whatever_two_bytes_are_spoilt_the_file_is_corrupt_or_whole(tmp_path, make_frozen):
    """Compressed ones too, which the reader inflates piece by piece."""
    frozen = make_frozen(length=5)
    rng = np.random.default_rng(2)
    path = save_trajectory(frozen, tmp_path / "x", "npz-compressed", "env")
    raw = path.read_bytes()
    for place in rng.integers(0, len(raw), 400):
        path.write_bytes(raw[:place] + rng.bytes(2) + raw[place + 2 :])
        for read in (whole, part):
            try:
                read(path)
            except (CorruptTrajectoryError, IndexError):
                continue
