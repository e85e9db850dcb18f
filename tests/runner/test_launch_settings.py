"""Processes that a launcher starts: settings count or are refused, cores are shared, deaths are noticed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runner.ranks import clean_environment, finish, start_ranks

from amago.distributed.launch_settings import check_launch_settings
from amago.envs.env_utils import available_cores
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16", "mixed_precision='bf16'"),
        ("ACCELERATE_MIXED_PRECISION", "fp16", "only 'no' and 'bf16' exist"),
        ("ACCELERATE_USE_FSDP", "true", "fsdp=True"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "fsdp=True"),
        ("ACCELERATE_DYNAMO_BACKEND", "inductor", "compile=True"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "batches_per_update"),
    ],
)
def test_what_is_asked_of_accelerate_and_would_have_no_effect_is_refused(
    make_experiment: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    remedy: str,
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=variable) as raised:
        make_experiment().start()
    assert remedy in str(raised.value)
    assert value in str(raised.value)


def test_precision_that_the_run_has_may_be_asked_of_accelerate(
    make_experiment: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    experiment = make_experiment(mixed_precision="bf16")
    experiment.start()
    experiment.close()


def test_a_launch_without_settings_is_accepted(monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "NO")
    check_launch_settings("bf16")
    assert not [warning for warning in recwarn if warning.category is AmagoWarning]


def test_accelerate_launch_that_starts_one_process_of_two_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from amago.distributed.processes import Processes, make_accelerator\n"
        "print('processes:', Processes(make_accelerator()).count)\n"
    )
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", str(script)]
    environment = clean_environment(HF_HOME=str(tmp_path))
    done = subprocess.run(
        [sys.executable, *launch], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert "processes: 1" in done.stdout
    assert "asked for several processes and started only this one" in done.stderr
    assert "torchrun" in done.stderr


SHARING = """
import torch
from amago.distributed.processes import make_accelerator
from amago.envs.env_utils import available_cores
make_accelerator()
print("cores:", available_cores(), "threads:", torch.get_num_threads())
"""


@pytest.mark.parametrize("chosen", [None, "2"])
def test_processes_on_one_machine_share_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    share = max(1, available_cores() // 2)
    threads = int(chosen) if chosen else share
    (tmp_path / "script.py").write_text(SHARING)
    for output, _ in finish(start_ranks(tmp_path / "script.py", [], threads=chosen)):
        assert output.strip() == f"cores: {share} threads: {threads}"


DYING = """
import multiprocessing, pathlib, sys, time
from amago.distributed.processes import Processes, make_accelerator

processes = Processes(make_accelerator())
# A worker that was forked before holds all connections of its parent open.
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
if processes.rank == int(sys.argv[2]):
    worker.start()
    (pathlib.Path(sys.argv[1]) / "worker").write_text(str(worker.pid))
processes.barrier()
pathlib.Path(sys.argv[1], f"ready_{processes.rank}").touch()
if processes.rank == int(sys.argv[2]) or sys.argv[3] == "collecting":
    time.sleep(600)
processes.barrier()
"""


@pytest.mark.parametrize(
    ("state", "dying"),
    [
        ("collecting", 1),
        pytest.param("collecting", 0, marks=pytest.mark.slow),
        pytest.param("exchanging", 1, marks=pytest.mark.slow),
        pytest.param("exchanging", 0, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_is_killed_ends_the_others_with_a_message(
    tmp_path: Path, state: str, dying: int
) -> None:
    (tmp_path / "script.py").write_text(DYING)
    started = start_ranks(tmp_path / "script.py", [str(tmp_path), str(dying), state])
    survivor = started[1 - dying]
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("ready_*"))) < 2:
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in started), survivor.communicate()[1]
        started[dying].kill()
        _, errors = survivor.communicate(timeout=60)
    finally:
        for process in started:
            process.kill()
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
    assert survivor.returncode not in (0, None)
    assert f"rank {dying} of this run ended before the others" in errors


FAILING = """
import sys, time
from amago.distributed.processes import Processes, make_accelerator

processes = Processes(make_accelerator())
processes.barrier()
if processes.rank == 1:
    if sys.argv[1] == "error":
        raise RuntimeError("out of something")
    sys.exit()
time.sleep(int(sys.argv[2]))
"""


def test_a_process_that_raises_an_error_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FAILING)
    started = start_ranks(tmp_path / "script.py", ["error", "600"])
    outputs = [process.communicate(timeout=60)[1] for process in started]
    assert "out of something" in outputs[1]
    assert "rank 1 of this run ended before the others" in outputs[0]


def test_a_process_that_finishes_earlier_does_not_end_the_others(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FAILING)
    for _, errors in finish(start_ranks(tmp_path / "script.py", ["finish", "3"])):
        assert "ended before the others" not in errors
