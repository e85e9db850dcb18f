"""A run fails when a test skips that tests/allowed_skips.txt does not allow; tried on small suites."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT_CONFTEST = Path(__file__).parents[2] / "conftest.py"

SUITE = """
import pytest

def test_runs():
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_skips(n):
    pytest.skip("needs a unicorn")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT_CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    slow: x\n")
    (tmp_path / "tests" / "test_suite.py").write_text(SUITE)
    return tmp_path


def run(suite: Path, allowed: str, *options: str) -> subprocess.CompletedProcess[str]:
    (suite / "tests" / "allowed_skips.txt").write_text(allowed)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_skip_that_is_not_on_the_list_fails_the_run(suite: Path, options: tuple[str, ...]) -> None:
    done = run(suite, "# nothing is allowed\n", *options)
    assert done.returncode == 1, done.stdout
    assert "tests/test_suite.py::test_skips[2]: needs a unicorn" in done.stdout


def test_listed_skips_pass(suite: Path) -> None:
    done = run(suite, "2 | tests/test_suite.py::test_skips* | unicorn | none live here\n")
    assert done.returncode == 0, done.stdout


def test_more_skips_than_the_list_has_room_for_fail(suite: Path) -> None:
    done = run(suite, "1 | tests/test_suite.py::test_skips* | unicorn | none live here\n")
    assert done.returncode == 1, done.stdout


def test_another_reason_than_the_listed_one_fails(suite: Path) -> None:
    done = run(suite, "2 | tests/test_suite.py::test_skips* | needs a GPU | none here\n")
    assert done.returncode == 1, done.stdout


def test_a_line_without_a_why_is_refused(suite: Path) -> None:
    done = run(suite, "2 | tests/test_suite.py::test_skips* | unicorn\n")
    assert done.returncode != 0
    assert "allowed_skips.txt:1" in done.stdout + done.stderr


def test_a_module_that_skips_itself_counts(suite: Path) -> None:
    (suite / "tests" / "test_module.py").write_text('import pytest\npytest.importorskip("no_such_library")\n')
    done = run(suite, "2 | tests/test_suite.py::test_skips* | unicorn | none live here\n")
    assert done.returncode == 1, done.stdout
    assert "tests/test_module.py" in done.stdout
