"""Every example that needs no further package runs with `--smoke`: it collects, learns, validates and tests."""

import re
from pathlib import Path

import pytest
from tests.examples.running import EXAMPLES, run_example, run_python

pytestmark = pytest.mark.source_only

# Scripts whose smoke runs are here; those of the others are in tests/environments.
HERE = {
    "00_meta_frozen_lake.py": "meta_frozen_lake_k2_3x3_easy_reset",
    "01_basic_gym.py": "CartPole-v1",
    "04_tmaze.py": "TMazePassive-H10",
    "05_dark_key_door.py": "Dark-Key-To-Door-3x3",
    "13_mazerunner_relabeling.py": "MazeRunner-11x11-k3",
    "15_your_own_parts.py": "HalfSeenCartPole",
}
ALONE = ["16_kernels_alone.py", "17_nets_alone.py"]


@pytest.mark.parametrize("script", HERE)
def test_the_smoke_run_learns_and_tests(script: str, tmp_path: Path) -> None:
    metrics = run_example(script, tmp_path, ["--smoke"])
    assert f"Average Total Return in {HERE[script]}" in metrics


def test_options_of_the_command_line_win_over_those_of_a_smoke_run(tmp_path: Path) -> None:
    arguments = ["--smoke", "--env", "Pendulum-v1", "--traj_encoder", "rnn", "--test_timesteps", "200"]
    metrics = run_example("01_basic_gym.py", tmp_path, arguments)
    # The test of a smoke run is shorter than an episode of 200 steps.
    assert "Average Total Return in Pendulum-v1" in metrics


RUN_WITHOUT = """
import runpy, sys

blocked, sys.argv = sys.argv[1].split(","), sys.argv[2:]

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == b or name.startswith(b + ".") for b in blocked):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OTHERS = "gymnasium,accelerate,wandb,amago.agent,amago.envs,amago.hindsight,amago.experiment"


def run_without(blocked: str, script: str, *arguments: str) -> list[float]:
    """Runs a script while some imports fail; returns the numbers in the last line of its output."""
    output = run_python("-c", RUN_WITHOUT, blocked, str(EXAMPLES / script), *arguments)
    return [float(number) for number in re.findall(r"\d+\.\d+", output.splitlines()[-1])]


def test_the_kernels_train_a_model_without_the_rest_of_amago() -> None:
    before, after = run_without(f"gin,amago.nets,{OTHERS}", "16_kernels_alone.py", "--smoke")
    assert after < before / 2


@pytest.mark.parametrize(("traj_encoder", "low", "high"), [("rnn", 0.9, 1.0), ("ff", 0.15, 0.4)])
def test_the_networks_imitate_without_the_rest_of_amago(traj_encoder: str, low: float, high: float) -> None:
    """A memory is needed from the second of 16 steps on."""
    arguments = ["--traj_encoder", traj_encoder, "--steps", "100"]
    (accuracy,) = run_without(OTHERS, "17_nets_alone.py", *arguments)
    assert low <= accuracy <= high


def test_every_script_has_a_smoke_run_in_one_of_two_tests() -> None:
    scripts = {path.name for path in EXAMPLES.glob("[0-9]*.py")}
    in_environments = (EXAMPLES.parent / "tests" / "environments" / "test_examples.py").read_text()
    elsewhere = {script for script in scripts if f'"{script}"' in in_environments}
    assert {*HERE, *ALONE} | elsewhere == scripts
    assert {*HERE, *ALONE}.isdisjoint(elsewhere)
