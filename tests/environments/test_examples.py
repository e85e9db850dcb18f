"""Every example that needs the package of an environment runs with `--smoke`: it collects, learns and tests."""

from pathlib import Path

import pytest
from tests.examples.running import run_example

# The name under which the test's return is logged; "" where the episodes are longer than the smoke run's test.
SCRIPTS = {
    "02_gymnax.py": "gymnax_MemoryChain-bsuite",
    "03_popgym_suite.py": "popgym-RepeatPreviousEasy-v0",
    "07_metaworld.py": "reach-v3",
    "08_ale.py": "",
    "09_multitask_procgen.py": "",
    "10_babyai.py": "",
    "11_xland_minigrid.py": "",
    "12_half_cheetah_vel.py": "",
    "14_minari.py": "amago_random-pendulum-v0",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_smoke_run_learns_and_tests(script: str, tmp_path: Path) -> None:
    metrics = run_example(script, tmp_path, ["--smoke"])
    if SCRIPTS[script]:
        assert f"Average Total Return in {SCRIPTS[script]}" in metrics


def test_all_tasks_of_popgym_at_once(tmp_path: Path) -> None:
    run_example("03_popgym_suite.py", tmp_path, ["--smoke", "--multidomain"])


def test_the_metaworld_benchmark_of_the_older_name(tmp_path: Path) -> None:
    metrics = run_example("07_metaworld.py", tmp_path, ["--smoke", "--benchmark", "reach-v2"])
    assert "Average Trial 0 Success in reach-v3" in metrics
