"""Every example that needs the package of an environment runs with `--smoke`: it collects, learns and tests."""

from pathlib import Path

import pytest
from tests.examples.running import EXAMPLES, run_example, run_python

STEPS = ["--timesteps_per_epoch", "1250", "--test_timesteps", "1250"]
# How the names begin under which the test's returns are logged.
SCRIPTS = {
    "02_gymnax.py": "gymnax_MemoryChain-bsuite",
    "03_popgym_suite.py": "popgym-RepeatPreviousEasy-v0",
    "07_metaworld.py": "reach-v3",
    "08_ale.py": "Breakout",
    "10_babyai.py": "",
    "11_xland_minigrid.py": "XLandMiniGrid-small-1m-R1-9x9",
    "12_half_cheetah_vel.py": "HalfCheetahVelocity-Vel-[",
    "14_minari.py": "amago_random-pendulum-v0",
}


WITH_STAND_IN = """
import os, runpy, sys
from types import ModuleType
from tests.environments import alchemy_stand_in

sys.modules["dm_alchemy"] = ModuleType("dm_alchemy")
sys.modules["dm_alchemy.symbolic_alchemy"] = alchemy_stand_in
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_smoke_run_learns_and_tests(script: str, tmp_path: Path) -> None:
    metrics = run_example(script, tmp_path, ["--smoke"])
    assert any(name.startswith(f"Average Total Return in {SCRIPTS[script]}") for name in metrics)


def test_procgen_whose_attempts_are_longer_than_the_test_of_a_smoke_run(tmp_path: Path) -> None:
    run_example("09_multitask_procgen.py", tmp_path, ["--smoke"])


def test_alchemy_on_a_stand_in_for_its_package(tmp_path: Path) -> None:
    """dm_alchemy is not on a package index, see `alchemy_stand_in`."""
    options = ["--smoke", "--buffer_dir", str(tmp_path)]
    output = run_python("-c", WITH_STAND_IN, str(EXAMPLES / "06_alchemy.py"), *options)
    assert "Average Trial 9 Return in dm_symbolic_alchemy" in output


def test_all_tasks_of_popgym_at_once(tmp_path: Path) -> None:
    # Two attempts at the longest task take 1200 steps.
    metrics = run_example("03_popgym_suite.py", tmp_path, ["--smoke", "--multidomain", *STEPS])
    assert any(name.startswith("Average Total Return in MultiDomainPOPGym-") for name in metrics)
