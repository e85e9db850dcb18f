"""Layouts that are told by their headers are those that the headers say, whatever a file was made to look like."""

import io
from pathlib import Path

import numpy as np
import pytest

from amago.hindsight import CorruptTrajectoryError, save_trajectory
from amago.hindsight import structures as module
from amago.hindsight.layout import FileIdentity, TrajectoryLayout, read_layout
from amago.hindsight.structures import Structures


def identity(content: bytes) -> FileIdentity:
    return FileIdentity(1, len(content), 2)


def plain(content: bytes, path: str = "x.npz") -> TrajectoryLayout | str:
    """What the headers say, or that they are damaged."""
    try:
        return read_layout(io.BytesIO(content), path, identity(content))
    except (CorruptTrajectoryError, ValueError) as error:
        return type(error).__name__


def by_structure(structures: Structures, content: bytes, path: str = "x.npz") -> TrajectoryLayout | str:
    try:
        return structures.layout(content, path, identity(content))
    except Exception as error:
        return "CorruptTrajectoryError" if not isinstance(error, ValueError) else type(error).__name__


def assert_same(one: TrajectoryLayout | str, other: TrajectoryLayout | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert isinstance(one, str)
        assert isinstance(other, str)
        return
    assert (one.identity, one.length, one.arrays, one.is_direct) == (
        other.identity,
        other.length,
        other.arrays,
        other.is_direct,
    )


def saved(tmp_path: Path, frozen: object, save_as: str = "npz") -> bytes:
    return save_trajectory(frozen, tmp_path / "x", save_as, "env").read_bytes()


@pytest.mark.parametrize("save_as", ["npz", "npz-compressed", "traj"])
def test_files_of_all_lengths_have_the_layouts_that_their_headers_say(tmp_path, make_frozen, save_as):
    structures = Structures()
    rng = np.random.default_rng(0)
    for seed in range(60):
        content = saved(tmp_path, make_frozen(int(rng.integers(1, 6)), seed), save_as)
        path = "x.traj" if save_as == "traj" else "x.npz"
        assert_same(structures.layout(content, path, identity(content)), plain(content, path))


def test_files_that_numpy_wrote_have_them_too(tmp_path, make_frozen):
    structures = Structures()
    for seed in range(6):
        np.savez(tmp_path / "x.npz", **make_frozen(5, seed).to_dict())
        content = (tmp_path / "x.npz").read_bytes()
        assert_same(structures.layout(content, "x.npz", identity(content)), plain(content))


def test_checksums_are_those_of_the_file_itself(tmp_path, make_frozen):
    structures = Structures()
    first, second = (saved(tmp_path, make_frozen(5, seed)) for seed in range(2))
    structures.layout(first, "x.npz", identity(first))
    spoilt = bytearray(second)
    spoilt[spoilt.index(make_frozen(5, 1).rews.tobytes())] ^= 1
    layout = structures.layout(bytes(spoilt), "x.npz", identity(second))
    with pytest.raises(ValueError, match="checksum"):
        layout.read(io.BytesIO(spoilt), 0, 5)
    assert len(layout.read(io.BytesIO(second), 0, 5)) == 5


def test_a_file_that_only_looks_alike_is_judged_by_its_own_headers(tmp_path, make_frozen):
    """Every byte of the headers is changed once, in a file whose structure is known."""
    structures = Structures()
    content = saved(tmp_path, make_frozen(3, 0))
    structures.layout(content, "x.npz", identity(content))
    rng, judged = np.random.default_rng(0), set()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] = (changed[place] + int(rng.integers(1, 256))) % 256
        expected = plain(bytes(changed))
        assert_same(by_structure(structures, bytes(changed)), expected)
        judged.add(isinstance(expected, str))
    assert judged == {True, False}


def test_what_is_remembered_has_a_bound(tmp_path, make_frozen, monkeypatch):
    monkeypatch.setattr(module, "MOST_KNOWN", 5)
    structures = Structures()
    for length in range(1, 30):
        content = saved(tmp_path, make_frozen(length))
        assert_same(structures.layout(content, "x.npz", identity(content)), plain(content))
        assert len(structures._known) <= 5
