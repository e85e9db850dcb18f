"""Who may import whom: kernels <- nets <- agent <- runner, and envs <- runner; read off the syntax trees.

import-linter cannot see through editable installs of a namespace package, and needs no replacement bigger than
this: an import is an import wherever it stands in a file, under `if TYPE_CHECKING` and inside functions too.
"""

import ast
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"

# part of the namespace -> the parts that its modules may import
ALLOWED = {
    "kernels": {"kernels"},
    "nets": {"nets", "kernels"},
    "agent": {"agent", "nets", "kernels"},
    "envs": {"envs", "hindsight"},
    "hindsight": {"envs", "hindsight"},
}
DISTRIBUTION = {
    "kernels": "amago-kernels",
    "nets": "amago-nets",
    "agent": "amago-agents",
    "envs": "amago-envs",
    "hindsight": "amago-envs",
}
FORBIDDEN_LIBRARIES = {
    "kernels": {"gin", "gymnasium", "accelerate", "wandb"},
    "nets": {"gymnasium", "accelerate", "wandb"},
    "agent": {"gymnasium", "accelerate", "wandb"},
    "envs": {"torch", "accelerate", "wandb"},
    "hindsight": {"torch", "accelerate", "wandb"},
}


def imported_names(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a module imports, by literal `import_module` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def source_files(packages: Path) -> Iterator[tuple[Path, str]]:
    """Every source file with its dotted module name."""
    for file in sorted(packages.glob("*/src/amago/**/*.py")):
        relative = file.relative_to(next(p for p in file.parents if p.name == "src"))
        parts = [*relative.parts[:-1], *([] if file.stem == "__init__" else [file.stem])]
        yield file, ".".join(parts)


def all_imports(packages: Path) -> Iterator[tuple[str, str, str]]:
    """(part of the namespace, 'file:line', imported name) of every import below the runner."""
    for file, module in source_files(packages):
        part = module.split(".")[1] if "." in module else ""
        if part in ALLOWED:
            tree = ast.parse(file.read_text())
            for line, name in imported_names(tree, module, is_package=file.stem == "__init__"):
                yield part, f"{file.relative_to(packages)}:{line}", name


def violations(packages: Path) -> list[str]:
    """Imports against the arrows, and of libraries that a package promises to do without."""
    found = []
    for part, place, name in all_imports(packages):
        top, _, rest = name.partition(".")
        ours = top == "amago" and rest.partition(".")[0] not in ALLOWED[part]
        if ours or top in FORBIDDEN_LIBRARIES[part]:
            found.append(f"{place}: amago.{part} must not import {name}")
    return found


def test_packages_import_only_what_they_may() -> None:
    assert violations(PACKAGES) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("nets/ff.py", "import amago.agent.batch"),
        ("nets/ff.py", "from amago.envs import AMAGOEnv"),
        ("nets/ff.py", "from amago import Experiment"),
        ("nets/ff.py", "from ..envs import spaces"),
        ("nets/cnn/__init__.py", "from ...agent import Agent"),
        ("nets/ff.py", "def f():\n    import gymnasium"),
        ("kernels/attention/__init__.py", "from amago.nets.ff import MLP"),
        (
            "agent/agent.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gymnasium as gym",
        ),
        ("envs/amago_env.py", "import torch"),
        ("envs/amago_env.py", "from torch.utils.data import Dataset"),
        ("hindsight/storage.py", "from amago.loading import RLData"),
        ("envs/amago_env.py", "import importlib\nimportlib.import_module('amago.nets.ff')"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str) -> None:
    planted = tmp_path / "amago-planted" / "src" / "amago" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(source + "\n")
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "nets/ff.py",
            "import torch\nfrom amago.kernels import attention\nfrom . import utils\nfrom .utils import symlog",
        ),
        ("nets/cnn/__init__.py", "from .base import CNN\nfrom ..utils import symlog"),
        ("envs/vector.py", "from amago.hindsight import Timestep\nimport gymnasium"),
        (
            "loading/__init__.py",
            "from amago.agent import Batch\nfrom amago.envs import AMAGOEnv\nimport torch",
        ),
    ],
)
def test_allowed_imports_pass(tmp_path: Path, file: str, source: str) -> None:
    planted = tmp_path / "amago-planted" / "src" / "amago" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(source + "\n")
    assert violations(tmp_path) == []


@pytest.mark.parametrize("part", sorted(DISTRIBUTION))
def test_each_package_declares_the_siblings_that_it_imports(part: str) -> None:
    requirements = metadata.requires(DISTRIBUTION[part]) or []
    declared = {re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in requirements}
    imported = {
        name.split(".")[1] for p, _, name in all_imports(PACKAGES) if p == part and name.startswith("amago.")
    }
    siblings = {DISTRIBUTION[name] for name in imported if name in DISTRIBUTION} - {DISTRIBUTION[part]}
    reachable = declared | ({"amago-kernels"} if "amago-nets" in declared else set())
    assert siblings <= reachable
