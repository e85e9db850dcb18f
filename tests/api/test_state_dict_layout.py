"""Whole agents with default arguments have the names and shapes by which people's saved policies are stored.

`tests/golden/state_dict_layout.json` lists them. Those files also hold `maximized_critics.*`, a copy of the
critics that ours does without.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import gin
import pytest
import torch
from torch import Tensor

import amago.agent
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import get_traj_encoder_cls
from amago.nets.tstep_encoders import FFTstepEncoder

LAYOUTS: dict[str, dict[str, list[int]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "state_dict_layout.json").read_text()
)
OBSERVATION = 4
ACTIONS = {"continuous": ActionSpec("box", (2,), -1.0, 1.0), "discrete": ActionSpec("discrete", (3,))}
COPY = "maximized_critics."

every_agent = pytest.mark.parametrize("name", LAYOUTS)


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    gin.clear_config()
    yield
    gin.clear_config()


def make_agent(name: str) -> amago.agent.Agent:
    agent, action, memory = name.split("/")
    spec = ACTIONS[action]
    made: amago.agent.Agent = getattr(amago.agent, agent)(
        obs_space={"observation": (OBSERVATION,)},
        rl2_space=(1 + spec.dim,),
        action_space=spec,
        max_seq_len=16,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=get_traj_encoder_cls(memory),
    )
    return made


def saved(name: str) -> dict[str, Tensor]:
    """A policy as it would have been saved: random numbers under every name, the copy of the critics included."""
    generator = torch.Generator().manual_seed(0)
    weights = {key: torch.randn(shape, generator=generator) for key, shape in LAYOUTS[name].items()}
    for key in weights:
        if key.startswith(COPY):
            weights[key] = weights["critics." + key.removeprefix(COPY)].clone()
    return weights


def test_every_kind_of_agent_is_listed() -> None:
    kinds = {tuple(name.split("/")) for name in LAYOUTS}
    assert len(kinds) == len(LAYOUTS) == 12
    assert {kind[0] for kind in kinds} == {"Agent", "MultiTaskAgent"}


@every_agent
def test_names_and_shapes_are_those_of_saved_policies_less_the_copy(name: str) -> None:
    ours = {key: list(tensor.shape) for key, tensor in make_agent(name).state_dict().items()}
    assert ours == {key: shape for key, shape in LAYOUTS[name].items() if not key.startswith(COPY)}


@every_agent
def test_a_saved_policy_loads_strictly_with_its_copy_of_the_critics(name: str) -> None:
    agent, weights = make_agent(name), saved(name)
    assert any(key.startswith(COPY) for key in weights)
    agent.load_state_dict(weights, strict=True)
    loaded = agent.state_dict()
    assert all(torch.equal(tensor, weights[key].to(tensor.dtype)) for key, tensor in loaded.items())
