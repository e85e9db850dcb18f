"""Each package imports without what it promises to do without, and the namespace is put together right."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"

# Imports every module of some packages while the import of some libraries fails, as if they were not installed.
IMPORT_WITHOUT = """
import importlib, pkgutil, sys

parts, blocked = sys.argv[1].split(","), set(sys.argv[2].split(","))

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked or any(name == b or name.startswith(b + ".") for b in blocked):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
for part in parts:
    package = importlib.import_module(f"amago.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"amago.{part}."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
assert not any(name.partition(".")[0] in blocked for name in sys.modules)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("parts", "blocked"),
    [
        ("envs,hindsight", "torch,accelerate,wandb,amago.nets,amago.agent"),
        ("kernels", "numpy,gin,gymnasium,accelerate,wandb,amago.nets,amago.agent,amago.envs,amago.hindsight"),
        ("nets", "numpy,gymnasium,accelerate,wandb,amago.agent,amago.envs,amago.hindsight"),
        ("agent", "numpy,gymnasium,accelerate,wandb,amago.envs,amago.hindsight"),
    ],
)
def test_package_imports_without_what_it_does_not_need(parts: str, blocked: str) -> None:
    done = python(IMPORT_WITHOUT, parts, blocked)
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    done = python(IMPORT_WITHOUT, "nets", "torch")
    assert done.returncode != 0
    assert "torch is blocked" in done.stderr


def test_importing_amago_loads_nothing_heavy() -> None:
    heavy = "torch gymnasium numpy accelerate wandb gin matplotlib amago.experiment amago.nets amago.envs"
    done = python(f"import amago, sys; print([name for name in {heavy.split()!r} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_help_of_the_command_loads_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['amago-run', '--help']\n"
        "from amago.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["arguments.py", "registry.py"])
def test_both_copies_of_a_shared_module_are_equal(name: str) -> None:
    nets = PACKAGES / "amago-nets/src/amago/nets" / name
    envs = PACKAGES / "amago-envs/src/amago/envs" / name
    assert nets.read_bytes() == envs.read_bytes()


def test_only_the_runner_ships_the_namespace_itself() -> None:
    inits = [path.relative_to(PACKAGES) for path in PACKAGES.glob("*/src/amago/__init__.py")]
    assert inits == [Path("amago-runner/src/amago/__init__.py")]


@pytest.mark.parametrize(
    "folder",
    [
        "amago-kernels/src/amago/kernels",
        "amago-nets/src/amago/nets",
        "amago-envs/src/amago/envs",
        "amago-envs/src/amago/hindsight",
        "amago-agents/src/amago/agent",
        "amago-runner/src/amago",
    ],
)
def test_types_are_shipped(folder: str) -> None:
    assert (PACKAGES / folder / "py.typed").is_file()


def test_every_folder_of_modules_is_a_package() -> None:
    """A folder without `__init__.py` imports as a namespace, and mypy and walk_packages pass it by."""
    folders = {file.parent for file in PACKAGES.glob("*/src/amago/*/**/*.py")}
    bare = [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert bare == []
