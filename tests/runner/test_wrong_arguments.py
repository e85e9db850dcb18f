"""Wrong arguments of public constructors are named at construction."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.source_only


@pytest.fixture(scope="module")
def trial() -> ModuleType:
    """tests/runner/wrong_arguments.py, which is no package's module."""
    spec = importlib.util.spec_from_file_location(
        "wrong_arguments", Path(__file__).with_name("wrong_arguments.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_but_a_handful_of_wrong_arguments_are_named(trial: ModuleType, tmp_path: Path) -> None:
    answers = {case.label: trial.answer(case) for case in trial.cases(tmp_path)}
    assert len(answers) > 300
    unnamed = {label: what for label, what in answers.items() if what}
    assert len(unnamed) <= 5, unnamed


def test_the_right_arguments_of_the_trial_are_accepted(trial: ModuleType, tmp_path: Path) -> None:
    made = {case.cls.__name__: case.cls(**case.right) for case in trial.cases(tmp_path) if case.right}
    assert len(made) > 30
