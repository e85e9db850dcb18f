"""`benchmarks.kernels` and `benchmarks/gpu.sh`: what is counted and compared, and what becomes of what fails."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import kernel_cases, machine
from benchmarks import kernels as benchmark
from tests.kernels import examples

from amago import kernels

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


@pytest.mark.parametrize(("window", "sink"), [(None, 0), (0, 0), (3, 0), (3, 2), (2, 9), (50, 3)])
def test_pairs_are_counted_as_they_are_seen(window, sink):
    length = 20
    seen = [
        (i, j) for i in range(length) for j in range(i + 1) if window is None or i - j <= window or j < sink
    ]
    assert kernel_cases.visible_pairs(length, window, sink) == len(seen)


def test_dense_labels_mean_the_same_loss():
    example = examples.two_hot(bins=kernel_cases.BINS, targets=(-2e5, -1e5, 0.0, 3.0, 1e5, 2e5))
    torch.testing.assert_close(
        kernel_cases.dense_labels(**example.tensors), example.run("eager"), atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ["causal", "window", "window and sinks"])
def test_torchs_attention_is_given_the_same_task(kind):
    options = kernel_cases.KINDS[kind]
    example = examples.attention(1, 100, 2, 8, **options)
    (way,) = kernel_cases._other_attention(100, options, example).values()
    torch.testing.assert_close(way(**example.tensors), example.run("eager"), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_have_names_of_their_own_and_work_in_them(device):
    for operation, cases in kernel_cases.CASES.items():
        assert operation in kernels.available_backends()
        names = [(case.name, case.dtype) for case in cases(device)]
        assert len(set(names)) == len(names) > 0
        assert all(case.work > 0 for case in cases(device))


def test_what_fails_or_computes_wrongly_is_left_out_and_said_to():
    example = examples.linear()
    ways = {
        "eager": lambda **x: example.call(**x, backend="eager"),
        "wrong": lambda **x: example.call(**x, backend="eager") + 1,
        "nothing": lambda **x: example.call(**x, backend="eager") * float("nan"),
        "broken": lambda **x: 1 / 0,
        "triton": lambda **x: example.call(**x, backend="triton"),
    }
    failures = []
    calls = benchmark.prepared(ways, example, True, failures)
    assert set(calls) == {"eager", "wrong", "nothing"}
    assert failures == ["linear, broken: ZeroDivisionError: division by zero"]
    assert set(benchmark.right(ways, calls, example, failures)) == {"eager"}
    assert len(failures) == 3


def test_peak_memory_is_what_a_call_holds_at_once():
    def call():
        for _ in range(3):
            torch.ones(1 << 18), torch.ones(1 << 18)

    assert benchmark.peak_mib(call, "cpu") == pytest.approx(2.0, abs=0.1)


def test_a_copy_without_git_takes_the_commit_that_it_is_told(monkeypatch):
    monkeypatch.setenv("COMMIT", "abc1234")
    assert machine.describe()["commit"] == "abc1234"


def run_script(python, *arguments, **environment):
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env={**os.environ, "PYTHON": str(python), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def interpreter(tmp_path):
    """A Python that does nothing, and leaves with a status if a word is among its arguments."""

    def make(word, status):
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\ncase "$*" in *{word}*) exit {status} ;; esac\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def test_without_a_gpu_the_script_says_what_to_do(tmp_path):
    done = run_script(sys.executable, str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "sees no CUDA device: run it on a machine with one, or try the script with --cpu" in done.stderr


@pytest.mark.parametrize(("word", "failing"), [("kernels.build", "build"), ("--backends", "correctness")])
def test_a_step_that_fails_does_not_stop_the_next_ones_but_the_status_tells(
    tmp_path, interpreter, word, failing
):
    done = run_script(interpreter(word, 3), "--cpu", str(tmp_path / "out"), OPERATIONS="linear attention")
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{failing}: FAILED" in summary
    assert "benchmarks: done" in summary
    assert "something failed" in summary


def test_a_step_beyond_the_time_is_not_begun(tmp_path, interpreter):
    python = interpreter("nothing", 0)
    done = run_script(python, "--cpu", str(tmp_path / "out"), OPERATIONS="linear", SECONDS_IN_ALL="0")
    assert done.returncode == 1
    assert "benchmarks: not begun, out of time" in (tmp_path / "out" / "summary.txt").read_text()
