"""Pages and pictures that scripts make are those of the current code."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "defaults.md"])
def test_the_reference_of_the_commands_is_current(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    # In a process of its own, since other tests register classes, which the page would list.
    code = f"import docs_tables; print(docs_tables.PAGES[{name!r}](), end='')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, check=True)
    assert written == run.stdout.decode("utf-8"), "run python scripts/docs_tables.py"


def test_the_picture_has_the_figures_of_the_quickstart() -> None:
    pictures = script("docs_pictures")
    written = (ROOT / "docs" / "assets" / "memory.svg").read_text(encoding="utf-8")
    assert written == pictures.picture(pictures.success_by_attempt()), "run python scripts/docs_pictures.py"
