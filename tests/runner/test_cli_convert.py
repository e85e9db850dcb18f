"""`amago-run convert`: conversion between all formats, atomic and without overwriting."""

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.hindsight import FrozenTraj, load_trajectory, parse_filename

Fill = Callable[..., list[Path]]
ENDINGS = {"npz": ".npz", "npz-compressed": ".npz", "traj": ".traj"}


def run(*arguments: str | Path) -> Result:
    # So wide that no path is broken, however long the folder of the tests is.
    width = {"COLUMNS": "400"}
    return CliRunner().invoke(app, ["convert", *map(str, arguments)], env=width, catch_exceptions=False)


def converted(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def assert_same_files(first: Path, second: Path) -> None:
    """The same trajectories under the same names, but for the ending."""
    mine, theirs = (sorted(folder.iterdir(), key=lambda path: path.stem) for folder in (first, second))
    assert [path.stem for path in mine] == [path.stem for path in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert_same(load_trajectory(one), load_trajectory(other))


def assert_same(one: FrozenTraj, other: FrozenTraj) -> None:
    arrays, others = one.to_dict(), other.to_dict()
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.parametrize("to", ENDINGS)
@pytest.mark.parametrize("save_as", ENDINGS)
def test_a_folder_of_any_format_becomes_one_of_any_other(tmp_path: Path, fill: Fill, save_as: str, to: str):
    source = tmp_path / "source"
    source.mkdir()
    fill(source, 4, transitions=[3, 1, 7, 2], save_as=save_as)
    said = converted(source, tmp_path / "target", "--to", to)
    assert "4 trajectories of 13 transitions" in said
    assert {path.suffix for path in (tmp_path / "target").iterdir()} == {ENDINGS[to]}
    assert_same_files(source, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_single_file_is_converted_by_the_ending_of_the_new_one(tmp_path: Path, fill: Fill):
    (source,) = fill(tmp_path, 1)
    converted(source, tmp_path / "new" / "one.traj")
    assert_same(load_trajectory(source), load_trajectory(tmp_path / "new" / "one.traj"))


def test_a_buffer_is_converted_without_its_quarantine(tmp_path: Path, fill: Fill):
    for i, name in enumerate(("fifo", "protected", "quarantine")):
        folder = tmp_path / "dataset" / "buffer" / name
        folder.mkdir(parents=True)
        fill(folder, 2, first=10 * i)
    said = converted(tmp_path / "dataset", tmp_path / "target")
    assert "4 trajectories" in said
    assert len(list((tmp_path / "target").glob("*.traj"))) == 4


@pytest.mark.parametrize("name", ["arrays.npz", "arrays.h5", "arrays.hdf5"])
def test_whole_episodes_survive_a_conversion_to_arrays_and_back(tmp_path: Path, fill: Fill, name: str):
    source = tmp_path / "source"
    source.mkdir()
    fill(source, 5, transitions=[3, 1, 7, 2, 4], save_as="traj")
    converted(source, tmp_path / name)
    converted(tmp_path / name, tmp_path / "back", "--env-name", "maze")
    back = sorted((tmp_path / "back").iterdir())
    assert [parse_filename(path).env_name for path in back] == ["maze"] * 5
    for one, other in zip(sorted(source.iterdir()), back, strict=True):
        assert_same(load_trajectory(one), load_trajectory(other))


def test_exported_arrays_have_the_names_and_shapes_of_d4rl(tmp_path: Path, fill: Fill):
    source = tmp_path / "source"
    source.mkdir()
    fill(source, 2, transitions=[3, 2])
    converted(source, tmp_path / "arrays.h5")
    with h5py.File(tmp_path / "arrays.h5") as file:
        assert file["observations"].shape == file["next_observations"].shape == (5, 2)
        assert file["actions"].shape == (5, 2)
        assert file["rewards"].shape == (5,)
        np.testing.assert_array_equal(file["terminals"], [0, 0, 1, 0, 1])
        np.testing.assert_array_equal(file["timeouts"], 0)


def npz_of_arrays(path: Path, actions: np.ndarray) -> Path:
    count = len(actions)
    np.savez(
        path,
        observations=np.arange(2 * count, dtype=np.float32).reshape(count, 2),
        next_observations=np.arange(2, 2 * count + 2, dtype=np.float32).reshape(count, 2),
        actions=actions,
        rewards=np.ones(count),
        terminals=np.arange(count) == count - 1,
    )
    return path


@pytest.mark.parametrize(
    ("actions", "kind", "expected"),
    [
        (np.array([2, 0]), "discrete:3", [[0, 0, 1], [1, 0, 0]]),
        (np.array([[1, 0], [0, 1]]), "discrete:2,3", [[0, 1, 1, 0, 0], [1, 0, 0, 1, 0]]),
        (np.array([[-2.0, 2.0], [0.0, 1.0]]), "box:-2:2", [[-1, 1], [0, 0.5]]),
        (np.array([[1, 0], [1, 1]], np.int8), "binary", [[1, 0], [1, 1]]),
        (np.array([[0.5, -0.5], [1.0, 0.0]]), None, [[0.5, -0.5], [1, 0]]),
    ],
)
def test_actions_of_arrays_are_converted_by_the_given_space(tmp_path: Path, actions, kind, expected):
    source = npz_of_arrays(tmp_path / "arrays.npz", actions)
    converted(source, tmp_path / "out", *(["--actions", kind] if kind else []), "--env-name", "my_task")
    (path,) = (tmp_path / "out").iterdir()
    assert parse_filename(path).env_name == "mytask"
    np.testing.assert_allclose(load_trajectory(path).actions, expected)


def test_nothing_is_overwritten(tmp_path: Path, fill: Fill):
    (source,) = fill(tmp_path, 1)
    (tmp_path / "there.traj").write_text("mine")
    (tmp_path / "folder").mkdir()
    assert "exists" in refused(source, tmp_path / "there.traj")
    assert "exists" in refused(tmp_path, tmp_path / "folder")
    assert (tmp_path / "there.traj").read_text() == "mine"


def test_bad_files_are_skipped_and_named(tmp_path: Path, fill: Fill):
    source = tmp_path / "source"
    source.mkdir()
    files = fill(source, 3)
    files[1].write_bytes(files[1].read_bytes()[:100])
    result = run(source, tmp_path / "target")
    assert result.exit_code == 1
    assert f"skipped {files[1].name}" in result.output
    assert "2 trajectories" in result.output


def test_when_nothing_can_be_read_nothing_is_written(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "env_00000000_1.npz").write_bytes(b"PK")
    assert "no trajectory could be read" in refused(source, tmp_path / "target")
    assert "no episode" in refused(source, tmp_path / "target.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("out.h5", ["--to", "traj"], "need a folder"),
        ("out", ["--to", "arrays"], "one file with the suffix"),
        ("out", ["--to", "pickle"], "choose one of npz, npz-compressed, traj, arrays"),
        ("out", ["--actions", "discrete:3"], "converted already"),
    ],
)
def test_incompatible_arguments_are_refused(tmp_path: Path, fill: Fill, target, options, message):
    source = tmp_path / "source"
    source.mkdir()
    fill(source, 1)
    assert message in refused(source, tmp_path / target, *options)
    assert not (tmp_path / target).exists()


def test_a_missing_or_unknown_action_space_is_refused(tmp_path: Path):
    source = npz_of_arrays(tmp_path / "arrays.npz", np.array([0, 1]))
    assert "--actions discrete:4" in refused(source, tmp_path / "out")
    assert "not an action space" in refused(source, tmp_path / "out", "--actions", "integers")
    assert "outside" in refused(source, tmp_path / "out", "--actions", "discrete:1")


@pytest.mark.parametrize("target", ["/proc/nowhere/target", "/dev/null/target", "file/target.traj"])
def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, fill: Fill, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "file").write_text("mine")
    (source,) = fill(tmp_path / "source", 1)
    assert "cannot be converted" in refused(source if target.endswith(".traj") else source.parent, target)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["data.h5", "data.npz"])
def test_a_damaged_source_is_named(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"no such format")
    assert name in refused(tmp_path / name, tmp_path / ("out" if name == "data.h5" else "out.traj"))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, fill: Fill):
    import resource
    import signal

    (tmp_path / "source").mkdir()
    fill(tmp_path / "source", 3, transitions=[5, 2000, 5])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        for target in ("target", "target.npz"):
            assert "cannot be converted" in refused(tmp_path / "source", tmp_path / target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_files_in_the_layout_of_older_programs_are_read(tmp_path: Path):
    # np.savez_compressed of the documented names, in whatever precision the program had
    source = tmp_path / "old"
    source.mkdir()
    np.savez_compressed(
        source / "cartpole_0a1b2c3d_1700000000.npz",
        _OBS_KEY_observation=np.zeros((4, 2), np.float64),
        rl2s=np.zeros((4, 3), np.float64),
        time_idxs=np.arange(4, dtype=np.int32)[:, None],
        rews=np.ones((3, 1), np.float64),
        dones=np.zeros((3, 1), bool),
        actions=np.zeros((3, 2), np.float64),
    )
    converted(source, tmp_path / "new")
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "cartpole_0a1b2c3d_1700000000.traj"
    assert load_trajectory(path).rl2s.dtype == np.float32


GOOD: dict[str, np.ndarray] = {
    "observations": np.zeros((6, 2), np.float32),
    "actions": np.zeros((6, 2), np.float32),
    "rewards": np.zeros(6, np.float32),
    "terminals": np.array([0, 0, 1, 0, 0, 1], np.bool_),
}


WRONG = [
    ({"actions": None}, "there is no array 'actions'"),
    ({"observations": np.zeros((6, 2), np.complex64)}, "plain numbers"),
    ({"observations": np.float32(1)}, "one per row"),
    ({"rewards": np.full(6, 1e300)}, "beyond float32"),
]
WRONG_IN_NPZ = [
    ({"observations/a": np.zeros((6, 1))}, "both an array and a mapping with the key 'a'"),
]


@pytest.mark.parametrize(
    ("ending", "change", "message"),
    [(".npz", *wrong) for wrong in WRONG + WRONG_IN_NPZ] + [(".h5", *wrong) for wrong in WRONG],
)
def test_arrays_that_cannot_be_trajectories_are_refused(tmp_path: Path, ending: str, change, message: str):
    source, target = tmp_path / f"source{ending}", tmp_path / "target"
    arrays = {name: array for name, array in (GOOD | change).items() if array is not None}
    if ending == ".npz":
        np.savez(source, **arrays)
    else:
        with h5py.File(source, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    assert message in refused(source, target)
    assert not target.exists()


def test_a_file_without_transitions_is_skipped(tmp_path: Path, fill: Fill):
    source = tmp_path / "source"
    source.mkdir()
    (path,) = fill(source, 1)
    arrays = load_trajectory(path).to_dict()
    short = {n: array[: n not in ("rews", "dones", "actions")] for n, array in arrays.items()}
    np.savez(source / "env_00000100_1.npz", **short)
    result = run(source, tmp_path / "target")
    assert result.exit_code == 1
    assert "skipped env_00000100_1.npz: it holds no transition" in result.output
    assert len(list((tmp_path / "target").iterdir())) == 1


def test_a_format_that_is_not_supported_is_answered_with_those_that_are(tmp_path: Path, fill: Fill) -> None:
    (tmp_path / "trajectories").mkdir()
    fill(tmp_path / "trajectories", 2)
    table = tmp_path / "table.csv"
    table.write_text("observation,action\n0,1\n")
    for arguments in ((tmp_path / "trajectories", tmp_path / "written.csv"), (table, tmp_path / "written")):
        said = refused(*arguments)
        assert ".csv is not a format" in said
        assert all(suffix in said for suffix in (".npz", ".traj", ".h5"))
    assert not (tmp_path / "written.csv").exists()
