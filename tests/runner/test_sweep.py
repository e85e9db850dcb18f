"""`amago-run sweep`: which runs it makes, what it writes, and how it continues."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runner.run_folders import make_run
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.cli.sweep import plan_sweep

pytestmark = pytest.mark.source_only

TINY = [
    *("--memory-size", "16", "--memory-layers", "1", "--actors", "4", "--batch-size", "4", "--threads", "1"),
    *("--timesteps-per-epoch", "60", "--batches-per-epoch", "3", "--eval-episodes", "8"),
    *("--val-interval", "1", "--traj-encoder", "ff"),
]


def sweep(run_dir: Path, *arguments: str) -> Result:
    words = ["sweep", "--run-dir", str(run_dir), *arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "80"})


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def plan(folder: Path, *assignments: str, seeds: int = 1, **changes: Any) -> list[list[str]]:
    """The commands of a sweep, without the folder."""
    jobs = plan_sweep(folder, changes, seeds=seeds, assignments=assignments, gin_files=())
    return [[word for word in job.command if word not in ("--run-dir", str(folder))] for job in jobs]


def test_all_combinations_run_with_every_seed(tmp_path: Path) -> None:
    settings = ["Agent.gamma=0.9,0.99", "learning-rate=1e-3"]
    commands = plan(tmp_path, *settings, seeds=2, env="CartPole-v1", seed=3, env_args={"k": "a"})
    assert len(commands) == 4
    assert commands[1] == [
        *("train", "CartPole-v1", "--run-name", "Agent.gamma=0.99_learning_rate=1e-3-seed3", "--seed", "3"),
        *("--env-arg", "k='a'", "--set", "Agent.gamma=0.99", "--learning-rate", "1e-3"),
    ]
    assert [command[command.index("--seed") + 1] for command in commands] == ["3", "3", "4", "4"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity")
def test_runs_share_the_cores_that_the_sweep_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(
        "amago.cli.sweep._run_all", lambda runs, count, threads, console: started.extend([count, threads])
    )
    assert "5 runs, 1 at a time" in sweep(tmp_path, *TINY).output
    assert started == [1, 1]


def test_commas_inside_brackets_do_not_separate_values(tmp_path: Path) -> None:
    commands = plan(tmp_path, "Actor.sizes=(64, 64),[32,32],'a,b',1")
    values = [command[-1].partition("=")[2] for command in commands]
    assert values == ["(64, 64)", "[32,32]", "'a,b'", "1"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "traj_encodr=rnn"], "neither a gin setting nor an option of train"),
        (["--set", "epochs=1,2", "--epochs", "3"], "'epochs' is given twice"),
        (["--set", "Agent.gamma=0.9,0.9"], "has a value twice"),
        (["--set", "Agent.gamma"], "is not of the form KEY=VALUE"),
        (["--set", "seed=1,2"], "neither a gin setting nor an option of train"),
    ],
)
def test_what_cannot_be_swept_is_refused(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = sweep(tmp_path, *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    assert not list(tmp_path.iterdir())


def test_other_options_need_another_name_but_more_epochs_and_seeds_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart-sweep"
    plan(folder, batch_size=4, epochs=1)
    assert len(plan(folder, batch_size=4, epochs=2, seeds=2)) == 2
    result = sweep(tmp_path, "--batch-size", "8")
    assert result.exit_code == 2
    assert "--batch-size" in result.output


def test_finished_runs_are_kept_and_longer_ones_continued(tmp_path: Path) -> None:
    make_run(tmp_path, "seed0")
    make_run(tmp_path, "seed1", finished=False)
    for epochs, states in ((3, ["finished", "waiting"]), (4, ["waiting", "waiting"])):
        jobs = plan_sweep(tmp_path, {"epochs": epochs}, seeds=2, assignments=(), gin_files=())
        assert [job.state for job in jobs] == states


def test_a_sweep_writes_its_results_and_names_what_failed(tmp_path: Path) -> None:
    settings = ["--set", "Agent.gamma=0.9,7", "--seeds", "1", "--jobs", "2", "--epochs", "1"]
    result = sweep(tmp_path, *settings, *TINY)
    assert result.exit_code == 1, result.output
    assert "Agent.gamma=7-seed0 failed" in result.output
    assert "gamma must be" in result.output
    folder = tmp_path / "quickstart-sweep"
    summary = json.loads((folder / "Agent.gamma=0.9-seed0" / "summary.json").read_text())
    results = rows(folder / "results.csv")
    assert [(row["Agent.gamma"], row["seeds"]) for row in results] == [("0.9", "1"), ("7", "0")]
    assert float(results[0]["return_iqm"]) == pytest.approx(summary["mean_return"])
    assert [row["state"] for row in rows(folder / "runs.csv")] == ["finished", "failed"]
    assert "| 0.9 | 1 |" in (folder / "results.md").read_text()
    assert "Agent.gamma=0.9-seed0" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_stopped_sweep_is_continued(tmp_path: Path) -> None:
    settings = ["--seeds", "2", "--jobs", "1", "--epochs", "120", "--ckpt-interval", "1", *TINY]
    command = [sys.executable, "-m", "amago.cli", "sweep", "--run-dir", str(tmp_path), *settings]
    folder = tmp_path / "quickstart-sweep"
    first = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 120
    while len(list(folder.glob("seed0/ckpts/training_states/seed0_epoch_*"))) < 3:
        assert time.monotonic() < deadline
        assert first.poll() is None
        threading.Event().wait(0.02)
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 128 + signal.SIGTERM
    assert "The same command continues the sweep" in output
    assert not (folder / "seed1").exists()
    second = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert second.returncode == 0, second.stdout + second.stderr
    for seed in (0, 1):
        summary = json.loads((folder / f"seed{seed}" / "summary.json").read_text())
        assert summary["env_steps"] == 120 * 60 * 4
    assert rows(folder / "results.csv")[0]["seeds"] == "2"
