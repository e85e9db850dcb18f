"""Ctrl-C in a real `amago-run train`, with workers for environments and for batches: what is left of it.

The interrupt goes to the whole process group, as a terminal sends it. Every process holds the program's output
open, so reading all of that returns when the last of them has ended.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from amago.hindsight import load_trajectory, trajectory_length

pytestmark = pytest.mark.source_only

COMMAND = """
    train TMazeAltPassive --env-arg corridor_length=4 --actors 4 --env-mode async --loader-workers 1
    --traj-encoder ff --memory-size 16 --memory-layers 1 --batch-size 2 --max-seq-len 8 --val-interval 1000
    --run-name run
"""
FOREVER = "100000000"


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "amago.cli", *COMMAND.split(), "--run-dir", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )


def files(folder: Path) -> list[Path]:
    return sorted((folder / "run" / "buffer" / "fifo").glob("[!.]*"))


def steps_in(folder: Path) -> int:
    return sum(trajectory_length(path) for path in files(folder))


def wait_until(condition: Callable[[], bool], program: "subprocess.Popen[str]") -> None:
    while not condition():
        with pytest.raises(subprocess.TimeoutExpired):  # or the program has ended
            program.wait(0.05)


@pytest.mark.parametrize("moment", ["collecting", "learning"])
def test_ctrl_c_writes_what_was_collected_and_leaves_no_process_and_no_traceback(moment, tmp_path):
    steps, batches = (FOREVER, "1") if moment == "collecting" else ("50", FOREVER)
    program = start(tmp_path, "--timesteps-per-epoch", steps, "--batches-per-epoch", batches)
    # Episodes last 5 steps, so that all 4 * 50 steps are on disk when collecting has ended.
    wait_until(
        lambda: len(files(tmp_path)) >= 50 if moment == "collecting" else steps_in(tmp_path) == 200, program
    )
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert err == ""
    assert "The same command with --overwrite starts again." in " ".join(out.split())
    assert "Traceback" not in out
    lengths = [len(load_trajectory(path)) for path in files(tmp_path)]
    # Every actor has made the same number of steps, and all of them are there.
    assert sum(lengths) % 4 == 0
    assert sum(lengths) == 200 or moment == "collecting"
