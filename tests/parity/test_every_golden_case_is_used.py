"""Every golden case is read by a test that passes, and no test asks for a case that does not exist.

Names of cases are put together in many ways (loops, parametrised names, prefixes), so reading the tests' sources
would miss some. Instead the tests that take golden cases run once more in a process of their own, which notes
what files each of them opens.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
INDEX = TESTS / "golden" / "index.json"

# A plugin for that process. It replaces safetensors' reader before any conftest.py imports it.
RECORDER = """
import json, os
from pathlib import Path
import safetensors.numpy

opened, used = set(), set()
read = safetensors.numpy.load_file


def load_file(path, *args, **kwargs):
    if Path(path).parent.name == "golden":
        opened.add(Path(path).stem)
    return read(path, *args, **kwargs)


safetensors.numpy.load_file = load_file


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]


def pytest_runtest_setup(item):
    opened.clear()


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        used.update(opened)


def pytest_sessionfinish():
    Path(os.environ["GOLDEN_CASES_USED"]).write_text(json.dumps(sorted(used)))
"""


def cases_used_by(files: list[Path], scratch: Path) -> set[str]:
    """The golden cases that passing tests of these files open, whatever else they do."""
    (scratch / "golden_recorder.py").write_text(RECORDER)
    report = scratch / "used.json"
    ours = {"PYTHONPATH": str(scratch), "GOLDEN_CASES_USED": str(report), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "golden_recorder", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "no:xdist", *map(str, files)],
        env={**os.environ, **ours},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert report.exists(), done.stdout + done.stderr
    return set(json.loads(report.read_text()))


def test_every_golden_case_is_used_by_a_test_that_passes(tmp_path):
    files = [
        path
        for path in sorted(TESTS.rglob("test_*.py"))
        if path != Path(__file__) and "golden(" in path.read_text()
    ]
    cases = set(json.loads(INDEX.read_text()))
    used = cases_used_by(files, tmp_path)
    assert len(cases) == 68
    assert sorted(cases - used) == []


def test_the_index_and_the_files_name_the_same_cases():
    cases = set(json.loads(INDEX.read_text()))
    assert cases == {path.stem for path in INDEX.parent.glob("*.safetensors")}
