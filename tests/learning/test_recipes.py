"""What the default settings promise: `amago-run train ENV` and the README's example solve ordinary control."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from amago.cli.app import app

README = Path(__file__).parents[2] / "README.md"


def train(env: str, run_dir: Path) -> dict[str, Any]:
    """The summary of `amago-run train ENV` with its default settings."""
    arguments = ["train", env, "--run-dir", str(run_dir)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary: dict[str, Any] = json.loads((run_dir / env / "summary.json").read_text())
    return summary


@pytest.mark.slow
@pytest.mark.parametrize(("env", "solved"), [("CartPole-v1", 475.0), ("Pendulum-v1", -200.0)])
def test_ordinary_control_is_solved_by_the_default_settings(
    env: str, solved: float, buffer_dir: Path
) -> None:
    summary = train(env, buffer_dir)
    assert summary["eval_episodes"] == 100
    assert summary["mean_return"] >= solved


@pytest.mark.slow
@pytest.mark.source_only
def test_the_example_of_the_readme_solves_cartpole(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code
    (tmp_path / "example.py").write_text(code[1])
    finished = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    last = finished.stdout.strip().splitlines()[-1]
    found = re.search(r"return of ([\d.]+)", last)
    assert found, finished.stdout
    assert float(found[1]) >= 475.0
