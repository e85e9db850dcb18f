"""Trajectory files: names, both formats, slices, and files that are torn, foreign or dangerous."""

import json
import os
import pickle
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

from amago.hindsight import (
    CorruptTrajectoryError,
    FrozenTraj,
    PickledTrajectoryError,
    Trajectory,
    load_slice,
    load_trajectory,
    parse_filename,
    save_trajectory,
    trajectory_filename,
    trajectory_length,
)

FORMATS = ["npz", "npz-compressed", "traj"]


def assert_same(left: FrozenTraj, right: FrozenTraj) -> None:
    assert left.to_dict().keys() == right.to_dict().keys()
    for name, array in left.to_dict().items():
        np.testing.assert_array_equal(right.to_dict()[name], array, err_msg=name)
        assert right.to_dict()[name].dtype == array.dtype, name


@pytest.mark.parametrize("save_as", FORMATS)
def test_a_trajectory_survives_the_disk(tmp_path, make_frozen, save_as):
    frozen = make_frozen()
    path = save_trajectory(frozen, tmp_path / "env_00000000_1", save_as, "env")
    assert path.name == "env_00000000_1" + (".traj" if save_as == "traj" else ".npz")
    loaded = load_trajectory(path)
    assert_same(frozen, loaded)
    assert trajectory_length(path) == len(frozen)
    assert all(array.flags.writeable for array in loaded.to_dict().values())


@pytest.mark.parametrize("save_as", FORMATS)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2, 5), (6, 7), (0, 7)])
def test_a_slice_holds_its_transitions_and_the_timesteps_around_them(
    tmp_path, make_frozen, save_as, start, stop
):
    frozen = make_frozen(length=7)
    part = load_slice(save_trajectory(frozen, tmp_path / "x", save_as, "env"), start, stop)
    assert len(part) == stop - start
    for name, array in frozen.to_dict().items():
        rows = slice(start, stop if name in ("rews", "dones", "actions") else stop + 1)
        np.testing.assert_array_equal(part.to_dict()[name], array[rows], err_msg=name)
    assert all(array.flags.writeable for array in part.to_dict().values())


@pytest.mark.parametrize("save_as", FORMATS)
@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 3), (5, 8), (8, 9), (20, 25)])
def test_a_slice_outside_of_the_trajectory_is_an_index_error(tmp_path, make_frozen, save_as, start, stop):
    path = save_trajectory(make_frozen(length=7), tmp_path / "x", save_as, "env")
    with pytest.raises(IndexError):
        load_slice(path, start, stop)


def test_a_slice_of_an_uncompressed_file_reads_only_its_part(tmp_path, make_frozen):
    path = save_trajectory(make_frozen(length=50), tmp_path / "x", "npz", "env")
    expected = load_slice(path, 20, 30)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("_OBS_KEY_image.npy")
    raw = bytearray(path.read_bytes())
    # Spoils the last image, which lies far outside of the slice; a whole read would fail its checksum.
    end = raw.index(b"PK", member.header_offset + 4)
    raw[end - 10] ^= 0xFF
    path.write_bytes(raw)
    assert_same(expected, load_slice(path, 20, 30))
    with pytest.raises(CorruptTrajectoryError):
        load_trajectory(path)


def test_an_npz_is_readable_by_numpy_alone(tmp_path, make_frozen):
    frozen = make_frozen()
    path = save_trajectory(frozen, tmp_path / "x", "npz", "env")
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == set(frozen.to_dict())
        np.testing.assert_array_equal(archive["rews"], frozen.rews)


def test_an_npz_of_other_origin_with_looser_dtypes_is_read(tmp_path, make_frozen):
    frozen = make_frozen()
    arrays = {
        **frozen.to_dict(),
        "rews": frozen.rews.astype(np.float64),
        "time_idxs": np.arange(8, dtype=np.int32)[:, None],
    }
    np.savez(tmp_path / "x.npz", **arrays)
    assert_same(frozen, load_trajectory(tmp_path / "x.npz"))


def test_a_traj_tells_its_version_length_and_environment(tmp_path, make_frozen):
    path = save_trajectory(make_frozen(length=7), tmp_path / "x", "traj", "ALE/Pong_v5")
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        checksums = {name: zlib.crc32(file.get_tensor(name).data) for name in file.keys()}  # noqa: SIM118
    assert json.loads(metadata.pop("crc32")) == checksums
    assert metadata == {
        "format": "amago-trajectory",
        "version": "1",
        "length": "7",
        "env_name": "ALE/Pong_v5",
    }


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_a_flipped_bit_in_an_array_is_found_when_the_file_is_read(tmp_path, make_frozen, save_as):
    path = save_trajectory(make_frozen(length=7), tmp_path / "x", save_as, "env")
    whole = path.read_bytes()
    arrays_begin = 4096 if save_as == "traj" else 256  # behind the header of the file
    places = np.random.default_rng(0).integers(min(arrays_begin, len(whole) // 2), len(whole), 64)
    expected = load_trajectory(path)
    for place in places.tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = load_trajectory(path)
        except CorruptTrajectoryError:
            continue
        assert_same(expected, found)  # the bit is in a part of the archive that no array depends on


def test_a_traj_of_an_earlier_release_has_no_checksums_and_is_read(tmp_path, make_frozen):
    frozen = make_frozen(length=7)
    metadata = {"format": "amago-trajectory", "version": "1", "length": "7", "env_name": "env"}
    (tmp_path / "x.traj").write_bytes(to_safetensors(frozen.to_dict(), metadata=metadata))
    assert_same(frozen, load_trajectory(tmp_path / "x.traj"))


def test_trajectory_objects_save_themselves(tmp_path, space_env):
    from amago.envs import AMAGOEnv

    env = AMAGOEnv(space_env(), env_name="space")
    trajectory = Trajectory([env.reset(seed=0)[0]])
    for _ in range(4):
        trajectory.add_timestep(env.step(np.array([[1]]))[0])
    trajectory.save_to_disk(tmp_path / "space_00000001_12.traj", save_as="traj")
    assert_same(trajectory.freeze(), load_trajectory(tmp_path / "space_00000001_12.traj"))


def test_unknown_formats_and_python_objects_are_refused(tmp_path, make_frozen):
    with pytest.raises(ValueError, match=r"'pickle'.*npz-compressed"):
        save_trajectory(make_frozen(), tmp_path / "x", "pickle", "env")
    frozen = make_frozen()
    frozen.obs["image"] = np.full((8, 1), None)
    with pytest.raises(ValueError, match="Python objects"):
        save_trajectory(frozen, tmp_path / "x", "npz", "env")
    assert list(tmp_path.iterdir()) == []


# Names


@pytest.mark.parametrize(
    "env_name", ["ALE/Pong-v5", "meta_world_ml45", "..", "", "CartPole-v1", "a\\b:c", "ü" * 300]
)
def test_every_environment_name_gives_one_file_with_two_underscores(tmp_path, make_frozen, env_name):
    name = trajectory_filename(env_name, "0af", 17, 1700000000.9)
    assert name.count("_") == 2
    path = save_trajectory(make_frozen(), tmp_path / name, "npz", env_name)
    assert path.parent == tmp_path
    assert not path.name.startswith(".")
    parsed = parse_filename(path)
    assert parsed.file_id == "0af00011"
    assert parsed.unix_time == 1700000000


def test_a_slash_in_the_environment_name_does_not_lose_the_file(tmp_path, make_frozen):
    faulty_name = "ALE/Pong-v5_00000000_1"
    with pytest.raises(OSError, match="cannot write trajectories"):
        save_trajectory(make_frozen(), tmp_path / faulty_name, "npz", "ALE/Pong-v5")
    assert parse_filename(trajectory_filename("ALE/Pong-v5", 0, 0, 1)).env_name == "ALEPong-v5"


def test_names_sort_in_the_order_of_writing_whatever_the_clock_says():
    names = [trajectory_filename("env", 3, number, time=1000 - number) for number in range(300)]
    assert sorted(names) == names


def test_the_sequence_number_wraps_instead_of_ending_a_long_run():
    assert parse_filename(trajectory_filename("env", 1, 2**20 + 5, 10)).file_id == "00100005"


@pytest.mark.parametrize(("writer", "number"), [(4096, 0), ("zzz", 0), ("12", 0), (0, -1)])
def test_writers_and_numbers_out_of_range_are_refused(writer, number):
    with pytest.raises(ValueError, match=r"writer_id|sequence_number"):
        trajectory_filename("env", writer, number, 0)


def test_names_written_elsewhere_are_understood():
    assert parse_filename("Pendulum_1f2e3d4c_1700000000.25.traj") == ("Pendulum", "1f2e3d4c", 1700000000.25)
    assert parse_filename(Path("/some_folder/a.b-v1_00000000_5.npz")).env_name == "a.b-v1"


@pytest.mark.parametrize(
    "name", ["notes.txt", ".x.npz.1-2-0.part", "a_b_c_d.npz", "env_0000_5.npz", "env_00000000_soon.npz"]
)
def test_foreign_names_are_a_value_error(name):
    def parse_by_splitting(name: str) -> tuple[str, str, int]:
        # The fault: any name with two underscores passes, others fail with whatever error comes first.
        env_name, file_id, time = name.split("_")
        return env_name, file_id, int(time.split(".")[0])

    with pytest.raises(ValueError, match="not the name of a trajectory file"):
        parse_filename(name)
    if name == "env_0000_5.npz":
        assert parse_by_splitting(name) == ("env", "0000", 5)


# Torn, damaged and dangerous files


@pytest.mark.parametrize("save_as", FORMATS)
@pytest.mark.parametrize("kept", [0.0, 0.05, 0.5, 0.99])
def test_a_torn_file_is_reported_as_corrupt(tmp_path, make_frozen, save_as, kept):
    path = save_trajectory(make_frozen(), tmp_path / "x", save_as, "env")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * kept)])
    for read in (load_trajectory, trajectory_length, lambda path: load_slice(path, 0, 2)):
        with pytest.raises(CorruptTrajectoryError, match="x"):
            read(path)


def test_a_complete_file_that_is_no_trajectory_is_reported_as_corrupt(tmp_path):
    np.savez(tmp_path / "x.npz", weights=np.zeros(3))
    with pytest.raises(CorruptTrajectoryError, match="weights"):
        load_trajectory(tmp_path / "x.npz")
    with pytest.raises(CorruptTrajectoryError):
        load_trajectory(tmp_path / "x.pt")


def test_a_missing_file_is_not_called_corrupt(tmp_path):
    for name in ("x.npz", "x.traj"):
        with pytest.raises(FileNotFoundError):
            load_trajectory(tmp_path / name)


class RunsCode:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_unread_and_the_error_says_how_to_convert_it(tmp_path, protocol):
    path = tmp_path / "env_00000000_1.traj"
    path.write_bytes(pickle.dumps(RunsCode(tmp_path / "ran"), protocol=protocol))
    for read in (load_trajectory, trajectory_length, lambda path: load_slice(path, 0, 2)):
        with pytest.raises(PickledTrajectoryError, match="save_as='npz'"):
            read(path)
    assert not (tmp_path / "ran").exists()
    # The fault: loading what lies in the buffer runs it.
    pickle.loads(path.read_bytes())
    assert (tmp_path / "ran").exists()


def test_a_pickle_inside_an_npz_is_refused_unread(tmp_path):
    np.savez(tmp_path / "x.npz", rews=np.array([RunsCode(tmp_path / "ran")], dtype=object))
    for read in (load_trajectory, lambda path: load_slice(path, 0, 1)):
        with pytest.raises(CorruptTrajectoryError):
            read(tmp_path / "x.npz")
    assert not (tmp_path / "ran").exists()


def test_readers_never_meet_half_a_file(tmp_path, make_frozen):
    frozen = make_frozen(length=2000)
    path = save_trajectory(frozen, tmp_path / "x", "npz", "env")
    stop = threading.Event()

    def write_again_and_again() -> None:
        while not stop.is_set():
            save_trajectory(frozen, tmp_path / "x", "npz", "env")

    writer = threading.Thread(target=write_again_and_again)
    writer.start()
    try:
        for _ in range(30):
            assert len(load_trajectory(path)) == 2000
    finally:
        stop.set()
        writer.join()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_is_raised_with_the_folder_and_leaves_nothing(tmp_path, make_frozen):
    with pytest.raises(OSError, match="gone"):
        save_trajectory(make_frozen(), tmp_path / "gone" / "x", "npz", "env")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a POSIX resource limit")
@pytest.mark.parametrize("save_as", FORMATS)
def test_a_full_disk_is_raised_and_leaves_nothing_behind(tmp_path, make_frozen, save_as):
    import resource
    import signal

    frozen = make_frozen(length=2000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot write trajectories"):
            save_trajectory(frozen, tmp_path / "x", save_as, "env")
        assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_the_other_byte_order_are_read(tmp_path, make_frozen, save):
    frozen = make_frozen(length=7)
    arrays = {
        **frozen.to_dict(),
        "actions": frozen.actions.astype(">f4"),
    }
    save(tmp_path / "x.npz", **arrays)
    assert_same(frozen, load_trajectory(tmp_path / "x.npz"))
    part = load_slice(tmp_path / "x.npz", 2, 5)
    np.testing.assert_array_equal(part.actions, frozen.actions[2:5])
