"""A clean gin configuration, golden cases as torch tensors and their tolerances, and critics written out."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gin
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from amago.nets.actor_critic import BaseCriticHead, gammas_as_input_seq


class TorchCase(NamedTuple):
    """A golden case: how it was made, its tensors, and the state dict before the call."""

    args: dict[str, Any]
    tensors: dict[str, Tensor]
    state: dict[str, Tensor]


@pytest.fixture(autouse=True)
def clean_gin() -> Iterator[None]:
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def torch_golden(golden) -> Callable[[str], TorchCase]:
    def load(name: str) -> TorchCase:
        case = golden(name)
        tensors = {key: torch.from_numpy(value) for key, value in case.arrays.items()}
        state = {
            key.removeprefix("state."): value for key, value in tensors.items() if key.startswith("state.")
        }
        return TorchCase(case.case, tensors, state)

    return load


@pytest.fixture
def assert_forward() -> Callable[[Any, Any], None]:
    """Forward values agree within 1e-5 absolute and 1e-4 relative."""
    return lambda actual, expected: torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def unfactored(critic: BaseCriticHead, state: Tensor, action: Tensor) -> Tensor:
    """[state, discount, action] built for every sample and discount, one critic at a time, in float64.

    State (B, L, S) and action (K, B, L, G, A) -> (K, B, L, C, G, d_out).
    """
    k, b, length, g, _ = action.shape
    gamma = gammas_as_input_seq(critic.gammas, b, length).double()  # (B, L, G, 1)
    inputs = torch.cat(
        (
            state.double()[None, :, :, None].expand(k, b, length, g, -1),
            gamma[None].expand(k, -1, -1, -1, -1),
            action.double().clamp(-0.999, 0.999),
        ),
        dim=-1,
    )
    layers = [critic.net.inp_layer, *critic.net.core_layers, critic.net.output_layer]
    outs = []
    for c in range(critic.num_critics):
        x = inputs
        for i, layer in enumerate(layers):
            x = x @ layer.weight[c].double() + layer.bias[0, 0, c].double()
            x = F.leaky_relu(x) if i < len(layers) - 1 else x
        outs.append(x)
    return torch.stack(outs, dim=3)


@pytest.fixture
def unfactored_outputs() -> Callable[[BaseCriticHead, Tensor, Tensor], Tensor]:
    return unfactored
