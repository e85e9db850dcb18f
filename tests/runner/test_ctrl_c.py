"""Signals to a real `amago-run train`, with workers for environments and for batches: what is left of it.

Every process holds the program's output
open, so reading all of that returns when the last of them has ended.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from amago.experiment.checkpointer import Checkpointer, read_state
from amago.hindsight import load_trajectory, trajectory_length

pytestmark = pytest.mark.source_only

COMMAND = """
    train TMazeAltPassive --env-arg corridor_length=4 --actors 4 --env-mode async --loader-workers 1
    --traj-encoder ff --memory-size 16 --memory-layers 1 --batch-size 2 --max-seq-len 8 --val-interval 1000
    --run-name run
"""
FOREVER = "100000000"
MANY = "1000000"  # the loader lists the batches of an epoch


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


# A signal from the keyboard or a cluster's scheduler goes to all processes of the run, or to its main one alone.
SENDERS = {"group": os.killpg, "process": os.kill}


@pytest.mark.parametrize(
    ("moment", "number", "send"),
    [
        ("collecting", signal.SIGINT, "group"),
        ("learning", signal.SIGINT, "group"),
        ("learning", signal.SIGTERM, "group"),
        ("collecting", signal.SIGUSR1, "group"),
        ("learning", signal.SIGTERM, "process"),
    ],
)
def test_a_signal_writes_what_was_collected_and_a_checkpoint_and_leaves_no_process(
    moment, number, send, tmp_path
):
    steps, batches = (FOREVER, "1") if moment == "collecting" else ("50", MANY)
    program = start(tmp_path, "--timesteps-per-epoch", steps, "--batches-per-epoch", batches)
    # Episodes last 5 steps, so that all 4 * 50 steps are on disk when collecting has ended.
    wait_until(
        lambda: len(files(tmp_path)) >= 50 if moment == "collecting" else steps_in(tmp_path) == 200, program
    )
    SENDERS[send](program.pid, number)
    out, err = program.communicate(timeout=120)
    assert program.returncode == 128 + number, err
    assert f"stopped by {number.name} in epoch 0" in err
    assert "The same command with --resume continues the run." in " ".join(out.split())
    assert "Traceback" not in out + err
    lengths = [len(load_trajectory(path)) for path in files(tmp_path)]
    # Every actor has made the same number of steps, and all of them are there.
    assert sum(lengths) % 4 == 0
    assert sum(lengths) == 200 or moment == "collecting"
    state = read_state(Checkpointer(tmp_path / "run", "run").training_state(0))
    assert state["counters"]["env_steps"] == sum(lengths)
    assert state["unfinished_epoch"]["collected"] is (moment == "learning")
