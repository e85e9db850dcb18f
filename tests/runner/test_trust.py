"""A run folder from elsewhere loads parts of amago, and of packages that the user trusts, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import pytest

from amago.agent import Agent
from amago.experiment import Experiment
from amago.experiment.gin_config import bind, decode
from amago.experiment.run_json import read_run
from amago.experiment.trusted import UntrustedNameError, trusting
from amago.nets.cnn import IMPALAishCNN

HOSTILE: list[Any] = [
    {"import": "subprocess:Popen"},
    {"import": "amago.experiment.checkpointer:shutil.rmtree"},
    {"import": "amago.experiment.checkpointer:os.system"},
    {"import": "amago.experiment.checkpointer:write_text"},
    {"import": "amago.tracking.jsonl:JsonlTracker"},
    {"partial": ["os:system", ["true"], {"dict": []}]},
    {"tuple": [{"dict": [["a", {"import": "builtins:exec"}]]}]},
    {"gin": ["antigravity", "@Agent"]},
]


@pytest.mark.parametrize("value", HOSTILE, ids=str)
def test_names_of_other_packages_and_of_helpers_are_refused(value: Any) -> None:
    with pytest.raises(UntrustedNameError, match="the run folder names"):
        decode(value)
    assert "antigravity" not in sys.modules


def test_a_module_is_not_imported_before_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_parts.py").write_text("import pathlib\npathlib.Path('ran').touch()\nclass Net: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UntrustedNameError, match=r"runs its code: if you trust it, .*trusting\('my_parts'\)"):
        decode({"import": "my_parts:Net"})
    with trusting("my_part"), pytest.raises(UntrustedNameError):
        decode({"import": "my_parts:Net"})
    assert not (tmp_path / "ran").exists()
    with trusting("my_parts"):
        assert decode({"import": "my_parts:Net"}).__name__ == "Net"
        with pytest.raises(UntrustedNameError):  # not what it imports from elsewhere
            decode({"import": "my_parts:pathlib.Path"})
    with pytest.raises(UntrustedNameError):
        decode({"import": "my_parts:Net"})


def test_a_trusted_module_may_define_configurables_while_gin_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_gin: None
) -> None:
    (tmp_path / "my_layers.py").write_text("import gin\n@gin.configurable\nclass MyLayer: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    gin.finalize()
    with trusting("my_layers"):
        assert decode({"import": "my_layers:MyLayer"}).__name__ == "MyLayer"
    assert gin.config_is_locked()


def test_parts_of_amago_are_loaded(clean_gin: None) -> None:
    assert decode({"import": "amago.agent.agent:Agent"}) is Agent
    assert decode({"import": "amago.nets.cnn:IMPALAishCNN"}) is IMPALAishCNN
    bind({"amago.agent.Agent.gamma": 0.5})
    assert gin.query_parameter("Agent.gamma") == 0.5


def test_objects_in_the_arguments_of_a_run_are_parts_of_amago(
    make_experiment: Callable[..., Experiment],
) -> None:
    experiment = make_experiment()
    experiment.start()
    path = experiment.run_dir / "run.json"
    for kind in ("subprocess:Popen", "amago.tracking.jsonl:JsonlTracker"):
        content = json.loads(path.read_text())
        content["arguments"]["dataset"] = {"object": [kind, {"path": str(experiment.run_dir / "ran")}]}
        path.write_text(json.dumps(content))
        with trusting("tests"), pytest.raises(UntrustedNameError, match=kind.partition(":")[0]):
            read_run(experiment.run_dir).experiment_arguments()
    assert not (experiment.run_dir / "ran").exists()


MODULE = """
import gymnasium, pathlib
with open("imported", "a") as file:
    file.write("x")
class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation_space.low, {}
    def step(self, action):
        self.steps += 1
        return self.observation_space.low, 1.0, self.steps == 5, False, {}
"""
TINY = """
    --actors 2 --epochs 1 --timesteps-per-epoch 20 --batches-per-epoch 2 --batch-size 2 --eval-episodes 2
    --traj-encoder ff --memory-size 16 --memory-layers 1 --max-seq-len 5
"""


@pytest.mark.source_only
def test_the_module_of_a_runs_environment_has_to_be_trusted(tmp_path: Path) -> None:
    def amago_run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "amago.cli", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "own.py").write_text(MODULE)
    trained = amago_run("train", "own:Own", "--run-name", "run", *TINY.split())
    assert trained.returncode == 0, trained.stderr
    (tmp_path / "imported").unlink()
    refused = amago_run("eval", "run")
    assert refused.returncode == 2
    said = " ".join(refused.stderr.replace("│", "").split())
    assert "runs its code. If you trust it, add --trust own." in said
    assert "trusting(" not in said
    assert not (tmp_path / "imported").exists()
    assert amago_run("eval", "run", "--trust", "own").returncode == 0
    # The environment that is named on the command line is trusted for this command.
    resumed = amago_run("train", "own:Own", "--run-name", "run", "--resume", "--epochs", "2")
    assert resumed.returncode == 0, resumed.stderr


PARTS = """
import gin, torch
from amago.nets.traj_encoders import TrajEncoder, register_traj_encoder

@register_traj_encoder("scaled")
@gin.configurable
class Scaled(TrajEncoder):
    def __init__(self, tstep_dim, max_seq_len, width=4):
        super().__init__(tstep_dim, max_seq_len)
        self.linear = torch.nn.Linear(tstep_dim, width)
    @property
    def emb_dim(self):
        return self.linear.out_features
    def forward(self, seq, time_idxs, hidden_state=None, log_dict=None):
        return self.linear(seq), hidden_state
"""
ACTS = """
import amago
policy = amago.Policy.load("runs/run", trust=("parts",))
assert policy.agent.state_dim == 7, policy.agent.state_dim
"""


@pytest.mark.source_only
def test_settings_of_own_classes_are_restored_wherever_their_module_is(tmp_path: Path) -> None:
    """Their module is imported before the settings are bound, and not only by the environment's module."""

    def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "own.py").write_text(MODULE + "\nimport parts\n")
    (tmp_path / "parts.py").write_text(PARTS)
    own = ["--traj-encoder", "scaled", "--set", "Scaled.width=7"]
    trained = python("-m", "amago.cli", "train", "own:Own", "--run-name", "run", *TINY.split(), *own)
    assert trained.returncode == 0, trained.stderr
    evaluated = python("-m", "amago.cli", "eval", "run", "--trust", "own", "--trust", "parts")
    assert evaluated.returncode == 0, evaluated.stderr
    acted = python("-c", ACTS)
    assert acted.returncode == 0, acted.stderr
