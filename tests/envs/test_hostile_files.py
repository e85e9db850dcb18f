"""Trajectory files that were made to do harm: no code runs, no memory is exhausted, one error names the file."""

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
    load_slice,
    load_trajectory,
    save_trajectory,
    trajectory_files,
)

Array = np.ndarray
Arrays = dict[str, Array]


def write_zip(path: Path, members: Iterable[tuple[str, Array]], method: int = zipfile.ZIP_STORED) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about repeated names
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, array in members:
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array)


def claim_shape(path: Path, arrays: Arrays, shape: tuple[int, ...], content: int) -> None:
    """Adds an array with a header of `shape` to compressed ones, and `content` zero bytes of data."""
    write_zip(path, arrays.items(), zipfile.ZIP_DEFLATED)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("_OBS_KEY_zeros.npy", "w", force_zip64=True) as member,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(content >> 24):
            member.write(bytes(1 << 24))


def more_than_its_data(path: Path, arrays: Arrays) -> None:
    claim_shape(path, arrays, (8, 10**12), 1 << 24)


def more_than_the_limit(path: Path, arrays: Arrays) -> None:
    claim_shape(path, arrays, (8, 2 << 20), 16 << 20)


def header_of_terabytes(path: Path, arrays: Arrays) -> None:
    path.write_bytes(struct.pack("<Q", 2**42) + b"{" + bytes(500))


def header_of_another_form(path: Path, arrays: Arrays) -> None:
    path.write_bytes(struct.pack("<Q", 2) + b"[]" + bytes(500))


def repeated_array(path: Path, arrays: Arrays) -> None:
    write_zip(path, [*arrays.items(), ("actions", arrays["actions"])])


def name_outside_the_folder(path: Path, arrays: Arrays) -> None:
    write_zip(path, [*arrays.items(), ("../../outside", np.zeros(3))])


def rows_missing(path: Path, arrays: Arrays) -> None:
    write_zip(path, {**arrays, "rews": arrays["rews"][:-1]}.items())


def text(path: Path, arrays: Arrays) -> None:
    write_zip(path, {**arrays, "_OBS_KEY_image": np.full((8, 3), "text")}.items())


def no_time_axis(path: Path, arrays: Arrays) -> None:
    write_zip(path, {**arrays, "_OBS_KEY_image": np.float32(1)}.items(), zipfile.ZIP_DEFLATED)


def device(path: Path, arrays: Arrays) -> None:
    os.symlink("/dev/zero", path)


def pipe(path: Path, arrays: Arrays) -> None:
    os.mkfifo(path)


def folder(path: Path, arrays: Arrays) -> None:
    path.mkdir()


def noise(path: Path, arrays: Arrays) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(1000))


KINDS: list[tuple[Callable[[Path, Arrays], None], str]] = [
    (more_than_its_data, ".npz"),
    (more_than_the_limit, ".npz"),
    (header_of_terabytes, ".traj"),
    (header_of_another_form, ".traj"),
    (repeated_array, ".npz"),
    (name_outside_the_folder, ".npz"),
    (rows_missing, ".npz"),
    (text, ".npz"),
    (no_time_axis, ".npz"),
    (device, ".npz"),
    (pipe, ".npz"),
    (folder, ".traj"),
    (noise, ".npz"),
    (noise, ".traj"),
]


@pytest.mark.parametrize(("write", "suffix"), KINDS)
def test_a_hostile_file_is_corrupt_and_costs_no_memory(
    tmp_path, make_frozen, monkeypatch, write, suffix
) -> None:
    monkeypatch.setattr(trajectory_files, "MAX_DECOMPRESSED_BYTES", 8 << 20)
    path = tmp_path / f"x{suffix}"
    write(path, make_frozen(length=7).to_dict())
    tracemalloc.start()
    for read in (load_trajectory, lambda path: load_slice(path, 0, 1)):
        with pytest.raises(CorruptTrajectoryError, match="x"):
            read(path)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert [path.name for path in tmp_path.iterdir()] == [f"x{suffix}"]


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_a_file_with_two_changed_bytes_is_corrupt_or_readable(tmp_path, make_frozen, save_as) -> None:
    path = save_trajectory(make_frozen(length=5), tmp_path / "x", save_as, "env")
    raw = path.read_bytes()
    rng = np.random.default_rng(0)
    for offset in rng.integers(0, len(raw), 200):
        path.write_bytes(raw[:offset] + rng.bytes(2) + raw[offset + 2 :])
        for read in (load_trajectory, lambda path: load_slice(path, 0, 2)):
            try:
                read(path)
            except (CorruptTrajectoryError, IndexError):
                continue


def test_links_to_trajectories_are_read(tmp_path, make_frozen) -> None:
    save_trajectory(make_frozen(length=7), tmp_path / "x", "npz", "env")
    os.symlink(tmp_path / "x.npz", tmp_path / "link.npz")
    assert len(load_trajectory(tmp_path / "link.npz")) == 7
