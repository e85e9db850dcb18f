"""`import amago` is quick, brings every public name, and refuses to share its folder with another amago."""

import subprocess
import sys
from pathlib import Path

import pytest

import amago


def in_a_new_process(code: str, *search: Path) -> "subprocess.CompletedProcess[str]":
    setup = f"import sys; sys.path += {[str(path) for path in search]!r}\n"
    return subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, check=False)


def test_importing_amago_imports_nothing_heavy() -> None:
    loaded = in_a_new_process(
        "import amago, sys; print({'torch', 'numpy', 'gymnasium', 'gin'} & set(sys.modules))"
    )
    assert loaded.stdout.strip() == "set()", loaded.stderr


def test_every_export_can_be_imported() -> None:
    for name in amago.__all__:
        assert getattr(amago, name) is not None
        assert name in dir(amago)


@pytest.mark.parametrize("metadata", ["amago-3.3.0.dist-info", "amago.egg-info"])
def test_another_distribution_called_amago_is_refused_with_the_remedy(tmp_path: Path, metadata: str) -> None:
    (tmp_path / metadata).mkdir()
    refused = in_a_new_process("import amago", tmp_path)
    assert refused.returncode == 1
    assert "pip uninstall -y amago" in refused.stderr


def test_callbacks_come_without_torch() -> None:
    loaded = in_a_new_process("import amago.experiment.callbacks, sys; print('torch' in sys.modules)")
    assert loaded.stdout.strip() == "False", loaded.stderr
