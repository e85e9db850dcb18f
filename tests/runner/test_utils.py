"""Small things that scripts around experiments use."""

import copy
import json
from collections.abc import Callable
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch

from amago import utils


@pytest.fixture(autouse=True)
def _clean_gin() -> Any:
    gin.clear_config()
    yield
    with gin.unlock_config():
        gin.clear_config()


def test_a_warning_points_at_its_caller() -> None:
    with pytest.warns(utils.AmagoWarning, match="look out") as caught:
        utils.amago_warning("look out")
    assert caught[0].filename == __file__
    assert issubclass(utils.AmagoWarning, UserWarning)


def test_masked_avg_ignores_masked_values() -> None:
    value = torch.tensor([[1.0], [3.0], [float("nan")]])
    mask = torch.tensor([[True], [True], [False]])
    assert utils.masked_avg(value, mask).item() == pytest.approx(2.0, abs=1e-4)


def test_get_grad_norm_is_the_norm_of_all_gradients() -> None:
    net = torch.nn.Linear(2, 1)
    assert utils.get_grad_norm(model=net).item() == 0
    net.weight.grad = torch.tensor([[2.0, 3.0]])
    net.bias.grad = torch.tensor([6.0])
    assert utils.get_grad_norm(net).item() == pytest.approx(7.0)


def test_only_trainable_parameters_are_counted() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    net[1].requires_grad_(False)
    assert utils.count_params(model=net) == 16


@pytest.mark.parametrize(("warmup", "expected"), [(4, [0, 0.25, 0.5, 0.75, 1, 1]), (0, [1, 1, 1, 1, 1, 1])])
def test_the_learning_rate_rises_from_zero_and_stays(warmup: int, expected: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = utils.get_constant_schedule_with_warmup(optimizer, warmup)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"] / 2.0)
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(expected)


def train(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter, steps: int) -> list[float]:
    values = []
    for step in range(steps):
        optimizer.zero_grad()
        ((param - step) ** 2).sum().backward()
        optimizer.step()
        values.append(param.item())
    return values


def test_adamw_rel_resets_the_step_count_and_keeps_the_moments() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = utils.AdamWRel([param], lr=0.1, reset_interval=3)
    train(optimizer, param, 3)
    state = optimizer.state[param]
    assert state["step"].item() == 0
    assert state["exp_avg"].abs().item() > 0
    assert state["exp_avg_sq"].item() > 0
    train(optimizer, param, 1)
    assert state["step"].item() == 1


def test_adamw_rel_resumes_within_an_interval() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = utils.AdamWRel([param], lr=0.1, reset_interval=3)
    train(optimizer, param, 2)
    saved, value = copy.deepcopy(optimizer.state_dict()), param.detach().clone()
    expected = train(optimizer, param, 4)
    other = torch.nn.Parameter(value)
    resumed = utils.AdamWRel([other], lr=0.1, reset_interval=3)
    resumed.load_state_dict(saved)
    assert train(resumed, other, 4) == expected


def test_the_reset_interval_has_no_default_and_comes_from_gin() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(RuntimeError, match="reset_interval"):
        utils.AdamWRel([param])
    gin.bind_parameter("AdamWRel.reset_interval", 7)
    assert utils.AdamWRel([param]).param_groups[0]["reset_interval"] == 7
    with pytest.raises(ValueError, match="reset_interval"):
        utils.AdamWRel([param], reset_interval=0)


@pytest.mark.parametrize("vector", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_a_method_of_every_environment_can_be_called(vector: Callable[..., gym.vector.VectorEnv]) -> None:
    envs = vector([lambda: gym.make("CartPole-v1") for _ in range(2)])
    try:
        assert utils.call_async_env(envs, "get_wrapper_attr", "spec")[1].id == "CartPole-v1"
    finally:
        envs.close()


def test_dictionaries_of_arrays_are_stacked_or_joined_by_key() -> None:
    dicts = [{"a": np.full((2, 3), i)} for i in range(4)]
    assert utils.stack_list_array_dicts(dicts)["a"].shape == (4, 2, 3)
    assert utils.stack_list_array_dicts(dicts, axis=1)["a"].shape == (2, 4, 3)
    assert utils.stack_list_array_dicts(dicts, axis=0, cat=True)["a"].shape == (8, 3)
    with pytest.raises(ValueError, match="keys"):
        utils.stack_list_array_dicts([{"a": np.zeros(1)}, {"b": np.zeros(1)}])
    with pytest.raises(ValueError, match="dicts"):
        utils.stack_list_array_dicts([])


@gin.configurable(module="tests.settings")
def setting(name: object = "name", loss: object = None, used: object = "default") -> object:
    return name


LONG = {f"key number {i}": "a value that takes its time, " * 2 for i in range(8)}


def split_lines() -> dict[str, Any]:
    """The fault: gin's text is cut at line breaks and at "="."""
    pairs = [line.split("=") for line in gin.config_str().splitlines() if "=" in line and line[0] != "#"]
    return {name.strip(): value.strip() for name, value in pairs}


def test_gin_as_wandb_config_contains_classes_and_defaults_as_json() -> None:
    gin.bind_parameter("setting.name", "a = b")
    gin.bind_parameter("setting.loss", LONG)
    gin.bind_parameter("other/setting.loss", torch.nn.Linear)
    setting()
    config = utils.gin_as_wandb_config()
    assert (config["setting.name"], config["setting.loss"]) == ("a = b", LONG)
    assert config["other/setting.loss"] == "torch.nn.modules.linear.Linear"
    assert config["setting.used"] == "default"
    json.dumps(config)
    with pytest.raises(ValueError, match="unpack"):
        split_lines()
