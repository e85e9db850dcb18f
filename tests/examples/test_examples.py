"""Every example that needs no further package runs with `--smoke`: it collects, learns, validates and tests."""

import ast
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.running import EXAMPLES, logged_metrics, run_example, run_python

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
IN_TWO_RUNS = ["18_finetune.py"]
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


def test_fine_tuning_continues_from_the_encoders_of_its_teacher(tmp_path: Path) -> None:
    options = ["--smoke", "--run_name", "run", "--buffer_dir", str(tmp_path)]
    printed = run_python(str(EXAMPLES / "18_finetune.py"), *options)
    assert f"weights of {tmp_path / 'run_teacher_trial_0'} loaded" in printed
    metrics = logged_metrics(tmp_path / "run_student_trial_0", "test")
    assert "Average Total Return in CartPole-1.5" in metrics
    teacher, student = (
        torch.load(tmp_path / f"run_{name}_trial_0" / "ckpts" / "latest" / "policy.pt", weights_only=True)
        for name in ("teacher", "student")
    )
    same = {name.partition(".")[0] for name in teacher if torch.equal(teacher[name], student[name])}
    assert "tstep_encoder" in same
    assert "actor" not in same


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


@pytest.mark.parametrize(
    ("traj_encoder", "steps", "low", "high"), [("rnn", 100, 0.9, 1.0), ("ff", 30, 0.2, 0.4)]
)
def test_the_networks_imitate_without_the_rest_of_amago(
    traj_encoder: str, steps: int, low: float, high: float
) -> None:
    """A memory is needed from the second of 16 steps on."""
    arguments = ["--traj_encoder", traj_encoder, "--steps", str(steps)]
    (accuracy,) = run_without(OTHERS, "17_nets_alone.py", *arguments)
    assert low <= accuracy <= high


# The flags that AMAGO 3's scripts have beside the common ones, and their defaults; ... for a required flag.
FLAGS: dict[str, dict[str, Any]] = {
    "00": {
        "seq_model": ...,
        "run_name": ...,
        "buffer_dir": ...,
        "log": False,
        "trials": 1,
        "lake_size": 5,
        "k_episodes": 10,
        "hard_mode": False,
        "recover_mode": False,
        "slip_chance": 0.0,
        "max_episode_steps": None,
        "hide_k_progress": False,
        "max_seq_len": None,
    },
    "01": {"env": ..., "max_seq_len": 128, "eval_timesteps": 1000},
    "02": {"env": ..., "max_seq_len": 128, "eval_timesteps": 1000},
    "03": {"env": "AutoencodeEasy", "max_seq_len": 2000, "multidomain": False},
    "04": {"horizon": ...},
    "05": {
        "meta_horizon": 500,
        "room_size": 8,
        "episode_length": 50,
        "light_room_observation": False,
        "randomize_actions": False,
    },
    "06": {},
    "07": {"benchmark": "reach-v3", "k": 3, "max_seq_len": 256, "hide_rl2s": False},
    "08": {"games": None, "max_seq_len": 80, "cnn": "impala"},
    "09": {"max_seq_len": 256, "distribution": "easy", "train_seeds": 10_000},
    "10": {"obs_kind": "partial-grid", "k_episodes": 2, "train_seeds": 5000, "max_seq_len": 512},
    "11": {"benchmark": "small-1m", "k_shots": 15, "rooms": 1, "grid_size": 9, "max_seq_len": 2048},
    "12": {
        "policy_seq_len": 32,
        "eval_episodes_per_actor": 1,
        "task_min_velocity": 0.0,
        "task_max_velocity": 3.0,
    },
    "13": {"maze_size": 11, "goals": 3, "time_limit": 250, "relabel": "some", "randomized_actions": False},
    "14": {
        "env": ...,
        "max_seq_len": 32,
        "policy_dist": "Beta",
        "actor_type": "Actor",
        "online_after_epoch": "math.inf",
        "eval_timesteps": 1000,
    },
}


@pytest.mark.parametrize("number", FLAGS)
def test_the_flags_are_those_of_amago_3(number: str) -> None:
    """Read from the source, so that no package is needed."""
    (path,) = EXAMPLES.glob(f"{number}_*.py")
    flags: dict[str, Any] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            default = options.get("default", "False" if "action" in options else "None")
            with contextlib.suppress(ValueError):
                default = ast.literal_eval(default)
            name = ast.literal_eval(node.args[0]).removeprefix("--")
            flags[name] = ... if "required" in options else default
    assert flags == FLAGS[number]


def test_every_script_has_a_smoke_run_in_one_of_two_tests() -> None:
    scripts = {path.name for path in EXAMPLES.glob("[0-9]*.py")}
    in_environments = (EXAMPLES.parent / "tests" / "environments" / "test_examples.py").read_text()
    elsewhere = {script for script in scripts if f'"{script}"' in in_environments}
    here = {*HERE, *IN_TWO_RUNS, *ALONE}
    assert here | elsewhere == scripts
    assert here.isdisjoint(elsewhere)
