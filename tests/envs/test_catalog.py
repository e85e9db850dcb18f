"""The catalog of builtin environments: complete, and without any of their packages."""

import importlib
import subprocess
import sys

import gin
import pytest

from amago.envs.builtin.catalog import CATALOG, KINDS, CatalogEntry, find_entry

ENTRIES = pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda entry: entry.name)


@pytest.fixture(autouse=True)
def _gin_unlocked() -> None:
    gin.clear_config()


@ENTRIES
def test_module_and_classes_exist_and_import_without_the_package(entry: CatalogEntry) -> None:
    module = importlib.import_module(entry.module)
    assert callable(getattr(module, entry.factory))
    assert entry.wrapper is None or callable(getattr(module, entry.wrapper))
    assert entry.kind in KINDS


@ENTRIES
def test_packages_come_with_a_command_that_installs_them(entry: CatalogEntry) -> None:
    assert bool(entry.packages) == bool(entry.install_command)
    if entry.installed:
        entry.load()
    else:
        with pytest.raises(ImportError, match="pip install"):
            entry.load()


@pytest.mark.parametrize(
    ("name", "found", "arguments"),
    [
        ("popgym-RepeatFirstHard-v0", "POPGym", {"env_name": "popgym-RepeatFirstHard-v0"}),
        ("ALE/MsPacman-v5", "AtariGame", {"game": "MsPacman", "version": "v5"}),
        ("metaworld/push-v3", "Metaworld", {"benchmark_name": "push-v3"}),
        ("dm_control/ball_in_cup-catch", "DMControl", {"domain": "dm_control/ball_in_cup-catch"}),
        ("gymnax/MemoryChain-bsuite", "Gymnax", {"env_id": "MemoryChain-bsuite"}),
        ("XLand-MiniGrid-R4-13x13", "XLandMiniGrid", {"rooms": 4, "grid_size": 13}),
        ("MiniGrid-Empty-5x5-v0", "MiniGrid-...", {"id": "MiniGrid-Empty-5x5-v0"}),
    ],
)
def test_ids_of_packages_find_their_environment(name: str, found: str, arguments: dict[str, object]) -> None:
    entry = find_entry(name)
    assert entry is CATALOG[found]
    assert arguments.items() <= entry.arguments(name).items()


def test_the_examples_of_ids_are_ids_of_their_family() -> None:
    for entry in CATALOG.values():
        assert bool(entry.id_prefix) == bool(entry.example_id)
        if entry.example_id:
            assert find_entry(entry.example_id) is entry


@pytest.mark.parametrize("name", ["CartPole-v1", "metaFrozenLake", "my_envs:MyEnv-v0"])
def test_other_names_are_not_found(name: str) -> None:
    assert find_entry(name) is None


def test_malformed_ids_are_explained() -> None:
    entry = CATALOG["XLandMiniGrid"]
    with pytest.raises(ValueError, match="XLand-MiniGrid-R<rooms>-<size>x<size>"):
        entry.arguments("XLand-MiniGrid-R1-9x7")


def test_the_catalog_imports_no_package() -> None:
    packages = sorted({package for entry in CATALOG.values() for package in entry.packages} | {"torch"})
    code = f"import sys, amago.envs.builtin.catalog; print([p for p in {packages} if p in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
