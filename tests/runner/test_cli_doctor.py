"""`amago-run doctor` and `amago-run --version`."""

import platform
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from rich.console import Console

from amago.cli import doctor

Usage = namedtuple("Usage", ["total", "used", "free"])


def amago_run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "amago.cli", *arguments], capture_output=True, text=True, check=False
    )


def test_version_lists_the_five_packages_torch_and_python() -> None:
    done = amago_run("--version")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(lines) == [*doctor.PACKAGES, "torch", "Python"]
    assert lines["Python"] == platform.python_version()
    assert lines["torch"] == torch.__version__


def test_amago_3_in_the_same_environment_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "amago-3.3.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: amago\nVersion: 3.3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    older = next(check for check in doctor._checks(tmp_path) if check.subject == "amago")
    assert "3.3.0" in older.found
    assert older.remedy.startswith("pip uninstall amago")


def test_the_doctor_trains_resumes_and_finds_everything_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run_doctor(Console(width=200), Path("runs"))
    printed = capsys.readouterr().out
    for subject in ("Python", "amago-runner", "torch", "cores", "compiler", "attention", "disk", "self-test"):
        assert subject in printed
    assert "400 steps, 10 updates, one resume" in printed


def test_what_is_missing_is_told_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "DEPENDENCIES", ("torch", "no-such-package"))
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 60)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert not doctor.run_doctor(Console(width=200), Path("runs"))
    printed = capsys.readouterr().out
    assert "pip install no-such-package" in printed
    assert "free at least" in printed
    assert "install a C++ compiler" in printed
    assert "self-test" in printed
    assert "FileNotFoundError" in printed
