"""`amago-run watch`: running, finished and dead runs in the terminal."""

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests.runner.run_folders import make_run, write_status
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli.run_figures import Curve
from amago.cli.watch import plot, watch_run


def watch(tmp_path: Path, *arguments: str, width: int = 80) -> tuple[str, int]:
    """Output and exit status of the command."""
    words = ["watch", "lake", "--run-dir", str(tmp_path), *arguments]
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(width)}, catch_exceptions=False)
    assert max(map(len, result.output.splitlines())) <= width
    return result.output, result.exit_code


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing happened within 30 seconds"
        threading.Event().wait(0.01)


@pytest.mark.parametrize("arguments", [(), ("--once",)])
def test_a_running_run_shows_progress_and_processes(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    folder = make_run(tmp_path, "lake", finished=False)
    write_status(folder, os.getpid())
    shown, status = watch(tmp_path, *arguments)
    assert status == 0
    for text in (
        "running",
        "epoch 2 of 3",
        "about 10 s left",
        "last validation 2.000",
        "collecting",
        "1,234",
        "Loss",
        "Attempt",
    ):
        assert text in shown


def test_a_finished_run_shows_its_summary(tmp_path: Path) -> None:
    make_run(tmp_path, "lake")
    shown, status = watch(tmp_path)
    assert status == 0
    for text in ("finished", "4,800 steps", "300 updates", "return 3.000", "1 min 5 s", "75.0%"):
        assert text in shown


def test_a_dead_run_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "lake", finished=False)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_status(folder, ended.pid)
    shown, status = watch(tmp_path)
    assert status == 1
    assert "No process of this run is alive" in shown
    assert "dead" in shown


def test_a_terminal_follows_the_run_until_it_ends(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "lake", finished=False)
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_status(folder, worker.pid, phase="learning")
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=60)
    results: list[bool] = []
    watching = threading.Thread(target=lambda: results.append(watch_run(folder, once=False, console=console)))
    watching.start()
    try:
        wait_for(lambda: "learning" in output.getvalue())
        write_status(folder, worker.pid, phase="evaluating")
        wait_for(lambda: "evaluating" in output.getvalue())
        assert watching.is_alive()
    finally:
        worker.communicate(b"\n")
        watching.join(timeout=30)
    assert results == [False]
    assert "No process of this run is alive" in output.getvalue()


def test_the_plot_rises_with_its_curve() -> None:
    curve = Curve(env_steps=[0, 1000], gradient_steps=[0, 0], returns=[0.0, 10.0])
    lines = plot(curve, "env_steps", width=40, rows=4).plain.splitlines()
    assert lines[0].lstrip().startswith("10.00")
    assert lines[3].lstrip().startswith("0.000")
    assert lines[4].split() == ["0", "1k", "environment", "steps"]
    drawn = [row.partition("▕")[2] for row in lines[:4]]
    first = [min(x for x, dots in enumerate(row) if dots != "\u2800") for row in drawn]
    assert first == sorted(first, reverse=True)
    assert drawn[0].rstrip("\u2800") == drawn[0], "the end of the curve is at the top right"


def test_a_flat_curve_can_be_plotted() -> None:
    curve = Curve(env_steps=[0, 1000], gradient_steps=[0, 0], returns=[2.0, 2.0])
    assert "2.000" in plot(curve, "env_steps", width=40).plain


@pytest.mark.parametrize("command", ["report", "sweep", "watch"])
def test_help_fits_80_columns(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    assert max(len(line.rstrip()) for line in result.output.splitlines()) <= 80
