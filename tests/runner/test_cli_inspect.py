"""`amago-run inspect`: statistics of a buffer as a table and as JSON."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.hindsight import save_trajectory

Fill = Callable[..., list[Path]]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(
        app, ["inspect", *map(str, arguments)], env={"COLUMNS": "120"}, catch_exceptions=False
    )


@pytest.fixture
def buffer(tmp_path: Path, fill: Fill) -> Path:
    """Files of two environments in fifo, one in protected; beside them a torn, an unfinished and a foreign one."""
    root = tmp_path / "dataset" / "buffer"
    for name in ("fifo", "protected"):
        (root / name).mkdir(parents=True)
    fill(root / "fifo", 3, transitions=[2, 4, 6], env_name="maze", save_as="traj")
    fill(root / "fifo", 1, first=10, transitions=5, env_name="lake")
    fill(root / "protected", 1, first=20, transitions=10, env_name="maze")
    (root / "fifo" / "maze_00000009_1.npz").write_bytes(b"PK")
    (root / "fifo" / ".maze_00000008_1.npz.1-1-1.part").write_bytes(b"")
    (root / "fifo" / "notes.txt").write_text("mine")
    return tmp_path / "dataset"


def test_statistics_are_grouped_by_folder_and_environment(buffer: Path):
    result = run(buffer, "--json")
    report = json.loads(result.output)
    fifo, protected = report["folders"]["fifo"], report["folders"]["protected"]
    maze = fifo["environments"]["maze"]
    assert (maze["files"], maze["transitions"]) == (3, 12)
    assert maze["length"] == {"mean": 4.0, "min": 2.0, "max": 6.0}
    # rewards are 1, 2, ..., T
    assert maze["return"] == {"mean": (3 + 10 + 21) / 3, "min": 3.0, "max": 21.0}
    assert maze["terminated"] == 1.0
    assert maze["formats"] == {".traj": 3}
    assert maze["arrays"]["actions"] == "float32(2,)"
    sizes = sum(path.stat().st_size for path in (buffer / "buffer" / "fifo").glob("maze*.traj"))
    assert maze["megabytes"] == sizes / 1e6
    assert fifo["environments"]["lake"]["files"] == 1
    assert protected["environments"]["maze"]["transitions"] == 10


def test_bad_unfinished_and_foreign_files_are_reported(buffer: Path):
    result = run(buffer, "--json")
    fifo = json.loads(result.output)["folders"]["fifo"]
    assert result.exit_code == 1
    assert list(fifo["bad"]) == ["maze_00000009_1.npz"]
    assert fifo["unfinished"] == [".maze_00000008_1.npz.1-1-1.part"]
    assert fifo["foreign"] == ["notes.txt"]


def test_the_table_shows_the_same(buffer: Path):
    output = run(buffer).output
    assert "5 trajectory files, 27 transitions" in output
    assert "maze" in output
    assert "Terminated" in output
    assert "4 (2 to 6)" in output
    assert "1 bad files in fifo" in output
    assert "maze_00000009_1.npz:" in output


def test_a_folder_or_a_single_file_is_accepted(tmp_path: Path, fill: Fill):
    (file,) = fill(tmp_path, 1, transitions=7)
    for path in (tmp_path, file):
        result = run(path)
        assert result.exit_code == 0
        assert "1 trajectory files, 7 transitions" in result.output


def test_a_path_that_is_not_there_is_refused(tmp_path: Path):
    result = run(tmp_path / "nowhere")
    assert result.exit_code == 2
    # The panel around an error wraps it where a long path leaves no room.
    assert "there is no file or folder" in " ".join(result.output.replace("│", " ").split())


def test_an_empty_folder_is_reported(tmp_path: Path):
    assert "0 trajectory files" in run(tmp_path).output


def test_entries_that_are_not_trajectories_are_reported(tmp_path: Path):
    (tmp_path / "empty_00000000_1.npz").write_bytes(b"")
    (tmp_path / "empty_00000001_1.traj").write_bytes(b"")
    (tmp_path / "folder_00000002_1.npz").mkdir()
    os.mkfifo(tmp_path / "pipe_00000003_1.npz")
    os.symlink("/dev/zero", tmp_path / "device_00000004_1.npz")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling_00000005_1.npz")
    os.symlink(tmp_path / "loop_00000006_1.npz", tmp_path / "loop_00000006_1.npz")
    result = run(tmp_path, "--json")
    assert result.exit_code == 1
    (folder,) = json.loads(result.output)["folders"].values()
    assert [name.split("_")[0] for name in sorted(folder["bad"])] == sorted(
        ["empty", "empty", "folder", "pipe", "device", "dangling", "loop"]
    )
    assert all(folder["bad"].values())
    output = run(tmp_path).output
    assert "7 bad files" in output
    assert (
        "device_00000004_1.npz: is torn, damaged or not a trajectory file: it is not a regular file" in output
    )


def test_files_with_other_arrays_are_reported(tmp_path: Path, fill: Fill, make_traj):
    fill(tmp_path, 3)
    save_trajectory(make_traj(4, width=5), tmp_path / "env_00000009_1", "npz", "env")
    (folder,) = json.loads(run(tmp_path, "--json").output)["folders"].values()
    assert folder["environments"]["env"]["other_arrays"] == ["env_00000009_1.npz"]
    output = run(tmp_path).output
    assert "1 files of env with other arrays" in output
    assert "env_00000009_1.npz" in output


def test_names_are_printed_without_markup_and_control_characters(tmp_path: Path, fill: Fill):
    folder = tmp_path / "runs [red]1"
    folder.mkdir()
    fill(folder, 1, env_name="[bold]env")
    (file,) = fill(folder, 1, first=1)
    file.rename(folder / "a\x1b[2J\nb_00000001_1.npz")
    (folder / os.fsdecode(b"\xfe_00000002_1.npz")).write_bytes(b"")
    output = run(folder).output
    for name in ("runs [red]1", "[bold]env", r"a\x1b[2J\nb", r"\udcfe_00000002_1.npz"):
        assert name in output
    assert "\x1b" not in output


def test_a_path_that_is_too_long_is_refused(tmp_path: Path):
    result = run(tmp_path / ("x" * 300))
    assert result.exit_code == 2
    assert "too long" in " ".join(result.output.split())
