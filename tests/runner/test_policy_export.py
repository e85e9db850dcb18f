"""Exported policies: a program that acts as the policy does, with torch alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tests.runner.policy_runs import RUNS, Made, as_batch, trained
from torch import Tensor, nn

from amago.envs.observations import ObservationMapper
from amago.experiment import Experiment
from amago.nets.traj_encoders import MambaTrajEncoder, TformerTrajEncoder, TrajEncoder
from amago.policy import Policy
from amago.policy_export import export_policy

pytestmark = pytest.mark.source_only

STEPS = 50
SLOW = pytest.mark.slow
MORE = ("choices-transformer", "pixels-gru")


def streams_of(policy: Policy, rows: int) -> list[tuple[Any, np.ndarray, np.ndarray]]:
    """Observations, rewards and dones of 50 steps; episodes end at random."""
    rng = np.random.default_rng(0)
    policy.observation_space.seed(0)
    return [
        (
            as_batch([policy.observation_space.sample() for _ in range(rows)]),
            rng.normal(size=rows).astype(np.float32),
            rng.random(rows) < 0.04,
        )
        for _ in range(STEPS)
    ]


def first_state(about: dict[str, Any], rows: int) -> list[Tensor]:
    return [
        torch.zeros(
            [rows if size is None else size for size in each["shape"]], dtype=getattr(torch, each["dtype"])
        )
        for each in about["state"]
    ]


def assert_acts_alike(policy: Policy, path: Path, *numbers_of_rows: int) -> None:
    """50 steps of the program and the policy; done in the first step clears whatever the state holds."""
    about = json.loads(path.with_suffix(".json").read_text())
    program = torch.export.load(path).module()
    for rows in numbers_of_rows:
        assert_rows_act_alike(policy, program, about, rows)


def assert_rows_act_alike(policy: Policy, program: nn.Module, about: dict[str, Any], rows: int) -> None:
    state = [torch.ones_like(tensor) for tensor in first_state(about, rows)]
    mapper = ObservationMapper(policy.observation_space, batched_envs=rows)
    policy.reset()
    taken = []
    for step, (obs, reward, done) in enumerate(streams_of(policy, rows)):
        over = done if step else np.ones_like(done)
        expected = policy.act(obs, reward, over)
        arrays = mapper(obs if rows > 1 else as_single(obs))
        action, state = program(
            {key: torch.from_numpy(array) for key, array in arrays.items()},
            torch.from_numpy(reward),
            torch.from_numpy(over),
            state,
        )
        assert action.numpy().dtype == expected.dtype
        assert action.shape == expected.shape == (rows, *about["action"]["shape"][1:])
        np.testing.assert_allclose(action.numpy(), expected, rtol=1e-3, atol=2e-3)
        taken.append(expected)
    assert len({row.tobytes() for actions in taken for row in actions}) > 1


def as_single(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: as_single(part) for key, part in obs.items()}
    return tuple(as_single(part) for part in obs) if isinstance(obs, tuple) else obs[0]


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW if n in MORE else ()) for n in RUNS])
def test_the_program_acts_as_the_policy_for_any_number_of_rows(
    name: str, make_experiment: Made, tmp_path: Path
) -> None:
    policy = Policy.load(trained(make_experiment, name).run_dir)
    described = export_policy(policy, tmp_path / "policy.pt2")
    assert described == tmp_path / "policy.json"
    assert_acts_alike(policy, tmp_path / "policy.pt2", 1, 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traj_encoder", "settings"),
    [
        (MambaTrajEncoder, {"MambaTrajEncoder.d_model": 8, "MambaTrajEncoder.n_layers": 1}),
        (TformerTrajEncoder, {"TformerTrajEncoder.pos_emb": "learned"}),
        (TformerTrajEncoder, {"TformerTrajEncoder.pos_emb": "rope"}),
    ],
)
def test_other_encoders_are_exported_too(
    traj_encoder: type[TrajEncoder], settings: dict[str, Any], make_experiment: Made, tmp_path: Path
) -> None:
    from amago.cli_utils import use_config

    use_config(settings, finalize=False)
    experiment = trained(make_experiment, "box-transformer", traj_encoder_type=traj_encoder)
    policy = Policy.load(experiment.run_dir)
    policy.export(tmp_path / "policy.pt2")
    assert_acts_alike(policy, tmp_path / "policy.pt2", 3)


WITHOUT_AMAGO = """
import json, sys
import numpy as np
import torch

about = json.load(open("policy.json"))
program = torch.export.load("policy.pt2").module()
rows = 3
state = [torch.zeros([rows if n is None else n for n in each["shape"]], dtype=getattr(torch, each["dtype"]))
         for each in about["state"]]
inputs = np.load("inputs.npz")
actions = []
for obs, reward, done in zip(inputs["obs"], inputs["reward"], inputs["done"]):
    obs, reward, done = map(torch.from_numpy, (obs, reward, done))
    action, state = program({"observation": obs}, reward, done, state)
    actions.append(action.numpy())
assert not any(name.startswith(("amago", "gymnasium", "gin")) for name in sys.modules), sorted(sys.modules)
np.save("actions.npy", np.stack(actions))
"""


def test_it_needs_no_amago(make_experiment: Made, tmp_path: Path) -> None:
    policy = Policy.load(trained(make_experiment, "box-transformer").run_dir)
    policy.export(tmp_path / "policy.pt2")
    steps = streams_of(policy, 3)
    obs, reward, done = (np.stack(column) for column in zip(*steps, strict=True))
    np.savez(tmp_path / "inputs.npz", obs=obs, reward=reward, done=done)
    command = [sys.executable, "-c", WITHOUT_AMAGO]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    expected = np.stack([policy.act(*each) for each in steps])
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), expected, rtol=1e-3, atol=2e-3)


def test_exporting_changes_neither_the_policy_nor_the_settings(
    make_experiment: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # torch.compile sets False
    policy = Policy.load(trained(make_experiment, "box-transformer").run_dir)
    steps = streams_of(policy, 2)
    before = [policy.act(*each) for each in steps]
    policy.reset()
    middle = [policy.act(*each) for each in steps[:25]]
    policy.export(tmp_path / "policy.pt2")
    after = [policy.act(*each) for each in steps[25:]]
    np.testing.assert_array_equal(middle + after, before)
    with pytest.raises(ValueError, match="Expected value argument"):
        torch.distributions.Bernoulli(torch.tensor(0.5)).log_prob(torch.tensor(7.0))


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x


def test_what_cannot_be_exported_says_why(make_experiment: Made, tmp_path: Path) -> None:
    experiment: Experiment = trained(make_experiment, "discrete-ff")
    experiment.policy.traj_encoder.out_norm = Branches()
    policy = Policy(experiment.policy, gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(5))
    with pytest.raises(
        ValueError, match="Agent cannot be exported: a module branches on the values of tensors"
    ):
        policy.export(tmp_path / "policy.pt2")
    with pytest.raises(ValueError, match=r"must end with '.pt2'"):
        policy.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.glob("policy*"))
