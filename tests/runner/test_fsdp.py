"""FSDP in two processes: the updates of a whole model, and checkpoints that do not depend on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runner.joint_updates import train
from tests.runner.ranks import finish, start_ranks

from amago.agent import Agent

pytestmark = pytest.mark.source_only


@pytest.mark.usefixtures("clean_gin")
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_sharded_model_makes_the_updates_of_a_whole_one(tmp_path: Path, micro_batches: int) -> None:
    statistics = micro_batches == 1
    whole = train(tmp_path, 1, agent_type=Agent, statistics=statistics, transformer=True)
    script = Path(__file__).parent / "joint_updates.py"
    finish(start_ranks(script, [str(tmp_path), str(micro_batches), "Agent", str(statistics), "True"]))
    for rank in range(2):
        sharded = torch.load(tmp_path / f"result_{rank}.pt", weights_only=True)
        assert sharded["state"].keys() == whole["state"].keys()
        for name, value in whole["state"].items():
            if statistics or "in_norm" not in name:
                assert torch.allclose(value, sharded["state"][name], rtol=1e-5, atol=1e-5), name
        assert sharded["held"] < 0.6 * whole["held"]
        if statistics:
            norm = "TrajEncoder Grad Norm"
            assert sharded["metrics"][norm] == pytest.approx(whole["own metrics"][norm], rel=1e-3)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs an experiment; returns the result of each process."""

    def start(folder: str, epochs: int, *, fsdp: bool, resume: bool = False, processes: int = 2) -> Any:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        script = Path(__file__).parent / "joint_run.py"
        finish(start_ranks(script, [str(root), str(epochs), str(fsdp), str(resume)], count=processes))
        return [json.loads((root / f"result_{rank}.json").read_text()) for rank in range(processes)]

    return start


@pytest.mark.slow
def test_checkpoints_of_a_sharded_run_are_those_of_a_whole_one(
    run: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    first, second = run("sharded", 3, fsdp=True)
    assert first == second
    run("whole", 3, fsdp=False)
    for name in ("policy.pt", "optimizer.pt"):
        file = f"run/ckpts/training_states/run_epoch_2/{name}"
        sharded, whole = (
            torch.load(tmp_path / folder / file, weights_only=True) for folder in ("sharded", "whole")
        )
        assert shapes(sharded) == shapes(whole)
    weights = torch.load(tmp_path / "sharded/run/ckpts/latest/policy.pt", weights_only=True)
    assert {name: float(x.double().sum()) for name, x in weights.items()} == first["weights"]


@pytest.mark.slow
def test_a_sharded_run_resumes_exactly_and_also_as_a_whole(
    run: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    unbroken = run("unbroken", 5, fsdp=True)
    run("resumed", 3, fsdp=True)
    assert run("resumed", 5, fsdp=True, resume=True) == unbroken
    run("changed", 3, fsdp=True)
    (alone,) = run("changed", 5, fsdp=False, resume=True, processes=1)
    assert alone["updates"] == unbroken[0]["updates"]


def test_sharding_in_a_single_process_is_an_error(make_experiment: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="fsdp is True, but there is one process"):
        make_experiment(fsdp=True).start()


def test_sharding_a_compiled_model_is_an_error(make_experiment: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="fsdp and compile are both True"):
        make_experiment(fsdp=True, compile=True)


def shapes(state: Any) -> Any:
    """Shapes and dtypes of the tensors in a nest."""
    if isinstance(state, dict):
        # The optimizer's implementation is that of the running process, whatever a checkpoint says.
        return {key: shapes(value) for key, value in state.items() if key not in ("fused", "foreach")}
    if isinstance(state, list):
        return [shapes(value) for value in state]
    return (tuple(state.shape), state.dtype) if isinstance(state, torch.Tensor) else type(state)
