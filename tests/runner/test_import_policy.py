"""Saved policies: read from files, and loaded into runs with the same settings."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.experiment import Experiment
from amago.experiment.saved_policies import read_saved_policy

SIZE = ["--memory-size", "16", "--memory-layers", "1", "--traj-encoder", "transformer"]
TINY = [
    *SIZE,
    *("--actors", "2", "--batch-size", "4", "--epochs", "1", "--timesteps-per-epoch", "40"),
    *("--batches-per-epoch", "2", "--eval-episodes", "6"),
]
LIMIT = ["--env-arg", "max_episode_steps=30"]


def words(result: Result) -> str:
    """The output without frames and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def amago_run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return words(result)


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    return words(result)


@pytest.fixture(autouse=True)
def _gin_as_before() -> Any:
    """Leaves gin empty and unlocked."""
    yield
    gin.clear_config()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with the same settings, `first` and `second`, with different weights."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("first", "1"), ("second", "2")):
        arguments = ["--run-dir", folder, "--run-name", name, "--seed", seed]
        amago_run("train", "CartPole-v1", *LIMIT, *TINY, *arguments)
    return folder


def latest(folder: Path) -> Path:
    return folder / "ckpts" / "latest" / "policy.pt"


def weights_of(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(latest(folder), weights_only=True)
    return weights


def as_saved_elsewhere(weights: dict[str, Tensor]) -> dict[str, Any]:
    """A larger checkpoint with prefixed names, and the critics a second time, as AMAGO 3 saves them."""
    copies = {f"maximized_{name}": x.clone() for name, x in weights.items() if name.startswith("critics.")}
    return {"epoch": 3, "state_dict": {f"module.{name}": x for name, x in (weights | copies).items()}}


def evaluated(run: str, folder: Path) -> str:
    shown = amago_run("eval", run, "--run-dir", folder, "--seed", "1")
    return shown[shown.index("Metric") :]


def test_eval_evaluates_an_imported_policy(runs: Path, tmp_path: Path) -> None:
    torch.save(as_saved_elsewhere(weights_of(runs / "first")), tmp_path / "policy.pt")
    said = amago_run("import-policy", tmp_path / "policy.pt", "second", "--run-dir", runs)
    assert re.search(r"[\d,]+ trainable parameters", said)
    imported = weights_of(runs / "second")
    assert imported.keys() == weights_of(runs / "first").keys()
    assert all(torch.equal(tensor, weights_of(runs / "first")[name]) for name, tensor in imported.items())
    assert evaluated("second", runs) == evaluated("first", runs)


def test_a_new_run_is_made_with_the_options_of_train(runs: Path, tmp_path: Path) -> None:
    arguments = ["import-policy", latest(runs / "first"), "new", "--run-dir", tmp_path]
    assert "there is no run 'new'" in refused(*arguments)
    assert "--env ENV" in refused(*arguments, "--memory-size", "16")
    new = ["--env", "CartPole-v1", *LIMIT, *SIZE, "--set", "Agent.gamma=0.9", "--max-seq-len", "5"]
    amago_run(*arguments, *new)
    record = json.loads((tmp_path / "new" / "run.json").read_text())
    assert record["gin"]["amago.agent.Agent.gamma"] == 0.9
    assert record["arguments"]["max_seq_len"] == 5
    assert record["environment"]["args"] == {"max_episode_steps": 30}
    assert "Average Total Return in CartPole-v1" in evaluated("new", tmp_path)
    assert "the run" in refused(*arguments, *new)


@pytest.mark.parametrize(
    ("settings", "differences"),
    [
        (
            ["CartPole-v1", *SIZE, "--traj-encoder", "rnn"],
            [
                'Missing key(s) in state_dict: "traj_encoder.rnn',
                'Unexpected key(s) in state_dict: "traj_encoder.tformer',
            ],
        ),
        (
            ["CartPole-v1", *SIZE, "--set", "Agent.num_critics=3"],
            ["size mismatch for critics.net.inp_layer.weight"],
        ),
        (["Pendulum-v1", *SIZE], ["size mismatch for tstep_encoder."]),
    ],
    ids=["encoder", "size", "environment"],
)
def test_importing_a_policy_of_other_settings_lists_the_differences(
    settings: list[str], differences: list[str], runs: Path, tmp_path: Path
) -> None:
    arguments = ["import-policy", latest(runs / "first"), "other", "--run-dir", tmp_path, "--env", *settings]
    said = refused(*arguments)
    for difference in differences:
        assert difference in said
    assert not (tmp_path / "other").exists()


class Code:
    """Runs code when it is unpickled without care."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("code-from-a-file-ran",))


def test_a_file_with_code_is_refused_and_not_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(weights_of(runs / "first") | {"extra": Code()}, "policy.pt")
    said = refused("import-policy", "policy.pt", "first", "--run-dir", runs)
    assert "could run code" in said
    assert "torch.save(agent.state_dict(), path)" in said
    assert "weights_only=False" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PK\x03\x04, and no archive", "is damaged"),
        ({"epoch": 3}, r"holds no state dict.*'epoch'"),
        ([1, 2], "holds no state dict.*list"),
    ],
)
def test_a_file_without_weights_is_named(content: Any, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=rf"policy\.pt.*{complaint}"):
        read_saved_policy(path)


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file({"actor.weight": torch.ones(2)}, tmp_path / "policy.safetensors")
    weights = read_saved_policy(tmp_path / "policy.safetensors")
    assert weights.keys() == {"actor.weight"}
    assert torch.equal(weights["actor.weight"], torch.ones(2))


def test_load_checkpoint_from_path_reads_saved_policies(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = make_experiment()
    experiment.start()
    state = experiment.policy.state_dict()
    weights = {name: torch.rand_like(x) if x.is_floating_point() else x for name, x in state.items()}
    torch.save(as_saved_elsewhere(weights), tmp_path / "policy.pt")
    experiment.load_checkpoint_from_path(tmp_path / "policy.pt", is_accelerate_state=False)
    loaded = experiment.policy.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
