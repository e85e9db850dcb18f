"""A batch that is divided among processes or micro-batches gives the update of the whole batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runner.joint_updates import MaskedAgent, train
from tests.runner.ranks import finish, start_ranks

from amago.agent import Agent

pytestmark = pytest.mark.source_only


def train_alone(
    folder: Path, micro_batches: int, agent_type: type[Agent], statistics: bool
) -> dict[str, Any]:
    """Trains in this process."""
    return train(folder, micro_batches, agent_type=agent_type, statistics=statistics)


def train_in_two_processes(
    folder: Path, micro_batches: int, agent_type: type[Agent], statistics: bool
) -> list[dict[str, Any]]:
    script = Path(__file__).parent / "joint_updates.py"
    arguments = [str(folder), str(micro_batches), agent_type.__name__, str(statistics), "False"]
    finish(start_ranks(script, arguments))
    return [torch.load(folder / f"result_{rank}.pt", weights_only=True) for rank in range(2)]


def largest_difference(first: dict[str, Any], second: dict[str, Any], *, without: str = "none") -> float:
    """The largest difference of two states, relative to the larger of 1 and the number itself.

    Args:
        first, second: results of `train`.
        without: part of the names of tensors that are not compared.
    """
    assert first["state"].keys() == second["state"].keys()
    return max(
        float(((value - second["state"][name]) / value.abs().clamp_min(1.0)).abs().max())
        for name, value in first["state"].items()
        if without not in name
    )


@pytest.mark.usefixtures("clean_gin")
@pytest.mark.parametrize("agent_type", [Agent, MaskedAgent])
def test_two_processes_make_the_update_of_one_with_the_whole_batch(
    tmp_path: Path, agent_type: type[Agent]
) -> None:
    whole = train_alone(tmp_path, 1, agent_type, statistics=True)
    first, second = train_in_two_processes(tmp_path, 1, agent_type, statistics=True)
    assert largest_difference(first, second) == 0.0
    assert largest_difference(whole, first) < 1e-5
    assert first["metrics"] == second["metrics"]
    for name, value in first["metrics"].items():
        assert value == pytest.approx((first["own metrics"][name] + second["own metrics"][name]) / 2)
    assert first["own metrics"]["Loss"] != second["own metrics"]["Loss"]


@pytest.mark.usefixtures("clean_gin")
def test_micro_batches_make_the_update_of_the_whole_batch(tmp_path: Path) -> None:
    whole = train_alone(tmp_path, 1, Agent, statistics=False)
    divided = train_alone(tmp_path, 3, Agent, statistics=False)
    assert largest_difference(whole, divided, without="in_norm") < 1e-5


@pytest.mark.usefixtures("clean_gin")
def test_micro_batches_in_two_processes_make_the_update_of_the_whole_batch(tmp_path: Path) -> None:
    whole = train_alone(tmp_path, 1, Agent, statistics=False)
    for divided in train_in_two_processes(tmp_path, 2, Agent, statistics=False):
        assert largest_difference(whole, divided, without="in_norm") < 1e-5
