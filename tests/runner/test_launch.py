"""`amago-run launch` and `train --mode`: processes on one run folder, killed, restarted and ended together."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli.launch import LaunchTable, launch_run
from amago.cli.launch_process import command
from amago.cli.options import UsageProblem
from amago.cli.separate import plan_collector
from amago.distributed.launch import MAX_EARLY_EXITS, LocalLaunch
from amago.experiment.shared_run import read_collected
from amago.experiment.status import read_status

DEADLINE = 200.0
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
SMALL = [
    *("CartPole-v1", "--actors", "2", "--timesteps-per-epoch", "50", "--batches-per-epoch", "5"),
    *("--batch-size", "4", "--eval-episodes", "2", "--run-name", "run", "--threads", "1"),
]


def wait_until(reached: Callable[[], Any], what: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


@pytest.fixture
def make_launch(tmp_path: Path) -> Iterator[Callable[..., tuple[LocalLaunch, list[str]]]]:
    """Starts launches of the given commands; they are ended with the test."""
    launches: list[LocalLaunch] = []

    def make(learner: list[str], collector: list[str], collectors: int = 1) -> tuple[LocalLaunch, list[str]]:
        reported: list[str] = []
        logs = tmp_path / "run" / "logs"
        launches.append(
            LocalLaunch(learner, collector, collectors=collectors, log_dir=logs, report=reported.append)
        )
        launches[-1].start()
        return launches[-1], reported

    yield make
    for launch in launches:
        launch.stop()


def status_at_end(launch: LocalLaunch) -> int:
    deadline = time.monotonic() + DEADLINE
    while (status := launch.poll(0.05)) is None:
        assert time.monotonic() < deadline
    return status


def test_a_collector_that_dies_at_once_is_given_up_after_some_restarts(
    make_launch: Callable[..., tuple[LocalLaunch, list[str]]],
) -> None:
    launch, reported = make_launch(
        SLEEP, [sys.executable, "-c", "raise SystemExit('no such environment')"], 2
    )
    assert status_at_end(launch) == 1
    assert sum("is started again" in text for text in reported) == 2 * (MAX_EARLY_EXITS - 1)
    assert sum("is not started again.\n    no such environment" in text for text in reported) == 2
    assert reported[-1] == "No collector is left."


def test_a_learner_that_dies_ends_the_launch_and_its_last_lines_are_told(
    make_launch: Callable[..., tuple[LocalLaunch, list[str]]],
) -> None:
    launch, reported = make_launch(
        [sys.executable, "-c", "print('first'); raise SystemExit('disk full')"], SLEEP
    )
    assert status_at_end(launch) == 1
    assert reported[0].startswith("The learner ended with exit status 1.")
    assert "disk full" in reported[0]
    launch.stop()
    assert launch._managed["collector-0"].process.returncode == -signal.SIGINT


def test_a_launch_ends_with_its_learner(make_launch: Callable[..., tuple[LocalLaunch, list[str]]]) -> None:
    launch, reported = make_launch([sys.executable, "-c", ""], SLEEP, 2)
    assert status_at_end(launch) == 0
    assert reported == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity")
def test_processes_share_the_cores_that_the_launch_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    launch = LocalLaunch([], [], collectors=1, log_dir=tmp_path, report=print)
    assert launch._environ["OMP_NUM_THREADS"] == "1"


def launch_command(tmp_path: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "amago.cli", "launch", *SMALL, "--run-dir", str(tmp_path), *options]


def members(folder: Path) -> dict[str, int]:
    """The running processes: process IDs by role and number."""
    return {f"{each['role']}-{each['index']}": each["pid"] for each in read_status(folder)}


@pytest.mark.slow
def test_launch_trains_restarts_a_killed_collector_and_holds_the_ratio(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--collectors", "2", "--epochs", "12", "--ratio", "0.02")
    with subprocess.Popen(
        launch_command(tmp_path, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        wait_until(lambda: len(members(folder)) == 3 or process.poll() is not None)
        killed = members(folder)["collector-1"]
        os.kill(killed, signal.SIGKILL)
        printed, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, printed
    assert "ended with signal SIGKILL and is started again" in printed
    assert "ratio" in printed
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["gradient_steps"] == 60
    # The learner is never ahead; collectors are, by a round and by what they collected before the first update.
    assert 60 / summary["env_steps"] <= 0.02 * 1.01
    assert not (folder / "status").exists()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == [
        *("collector-0.log", "collector-1.log", "learner.log"),
    ]


@pytest.mark.slow
def test_the_ratio_holds_from_the_start_and_after_a_resume(tmp_path: Path) -> None:
    for epochs, updates in ((2, 10), (4, 20)):
        # In a round of 200 timesteps an episode ends, so that the learner finds its first data.
        options = (
            "--epochs",
            str(epochs),
            "--ratio",
            "0.01",
            "--timesteps-per-epoch",
            "200",
            "--auto-resume",
        )
        subprocess.run(launch_command(tmp_path, *options), check=True, timeout=DEADLINE)
        env_steps = read_collected(tmp_path / "run").env_steps
        # A round ahead, and what each of two collectors may collect before it looks again.
        assert updates / 0.01 <= env_steps <= updates / 0.01 + 400 + 2 * 400 / 8 + 2 * 2


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_of_a_launch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen(
        launch_command(tmp_path, "--epochs", "100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        wait_until(lambda: len(members(folder)) == 3 or process.poll() is not None)
        pids = members(folder).values()
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, printed
    assert "Stopping the learner and all collectors." in printed
    assert not any(is_running(pid) for pid in pids)
    assert not (folder / "status").exists()


@pytest.mark.slow
def test_all_processes_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen(
        launch_command(tmp_path, "--epochs", "100000", "--ratio", "0.01"), stdout=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: len(members(folder)) == 3 or process.poll() is not None)
        pids = members(folder).values()
        process.kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids), lambda: read_status(folder))


@pytest.mark.slow
def test_collectors_that_wait_for_a_dead_learner_end_with_the_launch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--epochs", "100000", "--ratio", "100")
    with subprocess.Popen(
        launch_command(tmp_path, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        # They also wait before the learner is there.
        wait_until(lambda: (waiting(folder), len(members(folder))) == (2, 3) or process.poll() is not None)
        pids = members(folder)
        os.kill(pids["learner-0"], signal.SIGKILL)
        printed, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, printed
    assert "The learner ended with signal SIGKILL." in printed
    assert "is killed" not in printed  # nobody had to be
    assert not any(is_running(pid) for pid in pids.values())


def test_a_cluster_without_ray_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageProblem, match=r"pip install 'amago-runner\[ray\]'"):
        launch_run(
            tmp_path / "run",
            {"env": "CartPole-v1"},
            gin_files=(),
            assignments=(),
            resume=False,
            overwrite=False,
            log_to_wandb=False,
            log_to_tensorboard=False,
            collectors=1,
            ratio=None,
            cluster=True,
            address=None,
            trust=(),
            console=Console(),
        )
    assert not (tmp_path / "run").exists()


def waiting(folder: Path) -> int:
    """Number of collectors that wait for the learner."""
    return sum(each["phase"] == "waiting for learner" for each in read_status(folder))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


@pytest.mark.slow
def test_collectors_may_start_before_the_learner_and_return_after_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = [sys.executable, "-m", "amago.cli", "train", *SMALL, "--epochs", "4", "--run-dir", str(tmp_path)]

    def collect() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*train, "--mode", "collect"], stdout=subprocess.DEVNULL)

    first = collect()
    try:
        wait_until(lambda: read_collected(folder).env_steps > 0 or first.poll() is not None)
        first.kill()
        first.wait()
        before = read_collected(folder).env_steps
        first = collect()
        subprocess.run([*train, "--mode", "learn"], stdout=subprocess.DEVNULL, check=True, timeout=DEADLINE)
        wait_until(lambda: read_status(folder)[0]["epoch"] == 4)
        assert list(members(folder)) == ["collector-0"]
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(timeout=DEADLINE)
    assert read_collected(folder).env_steps > before
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["gradient_steps"] == 20
    assert summary["env_steps"] >= before


@pytest.mark.parametrize(("setting", "own", "other"), [("memory_size", 64, 32), ("seed", 5, 7)])
def test_a_collector_refuses_another_network_or_seed_than_the_learners(
    tmp_path: Path, setting: str, own: int, other: int
) -> None:
    recipe = {"env": "CartPole-v1", "actors": 2, "traj_encoder": "ff", "memory_size": 64, "seed": 5}
    (tmp_path / "run.json").write_text(json.dumps({"environment": {"recipe": recipe}}))
    with pytest.raises(UsageProblem, match=f"has {own}, so a collector cannot have {other}: leave it out"):
        plan_collector(tmp_path, {setting: other})


@pytest.mark.parametrize("option", ["--resume", "--auto-resume", "--overwrite", "--tensorboard"])
def test_a_collector_refuses_what_only_the_learner_does(tmp_path: Path, option: str) -> None:
    arguments = ["train", *SMALL, "--run-dir", str(tmp_path), "--mode", "collect", option]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", "").split())
    assert f"Invalid value for {option}: it has no effect on a collector: give it to the learner" in said


def test_the_table_sums_over_processes(tmp_path: Path) -> None:
    def write(role: str, index: int, **figures: Any) -> None:
        shared = {"phase": "learning", "epoch": 3, "epochs": 10, "policy_epoch": 2, "env_steps": 0}
        rates = {"gradient_steps": 0, "steps_per_second": 0.0, "updates_per_second": 0.0}
        rest = {"role": role, "index": index, "buffer_files": None, "return": None}
        status = shared | rates | rest | figures
        path = tmp_path / "status" / f"{role}-{index}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(status))

    write("learner", 0, gradient_steps=50, updates_per_second=5.0, buffer_files=7)
    for index in range(2):
        write("collector", index, steps_per_second=100.0, env_steps=500, **{"return": 1.0 + index})
        (tmp_path / "collectors").mkdir(exist_ok=True)
        totals = {"env_steps": 500, "env_steps_by_name": {"e": 500}, "exploration": []}
        (tmp_path / "collectors" / f"{index}.json").write_text(json.dumps(totals))
    table = LaunchTable(tmp_path, 0.1, 10)
    assert table.line() == (
        "epoch 3/10  1,000 steps  50 updates  200 steps/s  5 updates/s  ratio 0.05 of 0.1  buffer 7  "
        "policy – s old  return 1.5"
    )
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table.render())
    shown = console.export_text()
    assert "collector 1" in shown
    assert "-1" in shown  # its policy is one epoch behind


LOUD = """
import os

print("the module is imported")
os._exit(9)  # as a process that is killed
"""


@pytest.mark.parametrize("role", ["check-env", "collector"])
def test_what_is_printed_reaches_a_file_at_once(tmp_path: Path, role: str) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    words = [sys.executable, "-m", "amago.cli", "check-env", "loud:Env"]
    if role == "collector":
        changes = {"env": "loud:Env"}
        rest = {"changes": changes, "trust": ["loud"], "gin_files": [], "assignments": []}
        words = command("collector", tmp_path / "run", None, **rest)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(words, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (9, b"the module is imported\n")


def test_the_command_of_a_process_can_be_repeated_by_hand(tmp_path: Path) -> None:
    words = command("collector", tmp_path, 0.5, changes={"env": "CartPole-v1"}, gin_files=[], assignments=[])
    assert words[:3] == [sys.executable, "-m", "amago.cli.launch_process"]
    assert json.loads(words[3])["ratio"] == 0.5
