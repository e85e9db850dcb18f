"""A run fails when a test skips that tests/allowed_skips.txt does not allow; tried on small suites."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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
SKIPS = [(f"tests/test_suite.py::test_skips[{n}]", "needs a unicorn") for n in (1, 2)]


@pytest.fixture(scope="module")
def budget() -> ModuleType:
    spec = importlib.util.spec_from_file_location("skip_budget", ROOT_CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT_CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    slow: x\n")
    (tmp_path / "tests" / "test_suite.py").write_text(SUITE)
    (tmp_path / "tests" / "test_module.py").write_text(
        'import pytest\npytest.importorskip("no_such_library")\n'
    )
    return tmp_path


def run(suite: Path, allowed: str, *options: str) -> subprocess.CompletedProcess[str]:
    (suite / "tests" / "allowed_skips.txt").write_text(allowed)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_skips_that_are_not_on_the_list_fail_the_run(suite: Path, options: tuple[str, ...]) -> None:
    done = run(suite, "# nothing is allowed\n", *options)
    assert done.returncode == 1, done.stdout
    for name in (
        "tests/test_suite.py::test_skips[2]: needs a unicorn",
        "tests/test_module.py: could not import",
    ):
        assert name in done.stdout


def test_a_run_with_listed_skips_passes(suite: Path) -> None:
    allowed = (
        "2 | tests/test_suite.py::* | unicorn | none live here\n1 | *module.py | no_such_library | too new\n"
    )
    done = run(suite, allowed)
    assert done.returncode == 0, done.stdout


def test_more_skips_than_a_line_has_room_for_are_reported(budget: ModuleType) -> None:
    allowed = budget.read_allowed_skips("1 | tests/test_suite.py::test_skips* | unicorn | none live here\n")
    assert budget.excess_skips(SKIPS, allowed) == ["tests/test_suite.py::test_skips[2]: needs a unicorn"]


def test_another_reason_than_the_listed_one_is_reported(budget: ModuleType) -> None:
    allowed = budget.read_allowed_skips("2 | tests/test_suite.py::test_skips* | needs a GPU | none here\n")
    assert len(budget.excess_skips(SKIPS, allowed)) == 2


def test_brackets_in_a_test_id_are_no_pattern(budget: ModuleType) -> None:
    allowed = budget.read_allowed_skips("1 | tests/test_suite.py::test_skips[1] | unicorn | none live here\n")
    assert budget.excess_skips(SKIPS[:1], allowed) == []


@pytest.mark.parametrize(
    "line", ["2 | tests/* | unicorn", "2 | tests/* | unicorn | ", "any | tests/* | x | y"]
)
def test_a_line_without_a_count_or_a_why_is_refused(budget: ModuleType, line: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_skips\.txt:1"):
        budget.read_allowed_skips(line)
