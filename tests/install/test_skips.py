"""A run fails when a test skips for a reason that conftest.py does not allow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT_CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.mark.parametrize(
    ("reason", "status", "options"),
    [("nvcc is not on the PATH", 0, ()), ("needs a unicorn", 1, ()), ("needs a unicorn", 1, ("-n", "1"))],
)
def test_only_allowed_reasons_may_skip(
    tmp_path: Path, reason: str, status: int, options: tuple[str, ...]
) -> None:
    shutil.copy(ROOT_CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    slow: x\n")
    (tmp_path / "test_suite.py").write_text(
        f"import pytest\n\ndef test_runs():\n    pass\n\ndef test_skips():\n    pytest.skip({reason!r})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout
    assert ("test_skips: needs a unicorn" in done.stdout) == bool(status)
