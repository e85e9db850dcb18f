"""`amago` exports every public name, and cannot be imported beside another distribution named amago."""

import subprocess
import sys
from pathlib import Path

import pytest

import amago


def test_every_export_can_be_imported() -> None:
    for name in amago.__all__:
        assert getattr(amago, name) is not None
        assert name in dir(amago)


@pytest.mark.parametrize("metadata", ["amago-3.3.0.dist-info", "amago.egg-info"])
def test_an_installed_distribution_named_amago_is_an_import_error(tmp_path: Path, metadata: str) -> None:
    (tmp_path / metadata).mkdir()
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import amago"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "pip uninstall -y amago" in refused.stderr
