"""A clean gin configuration, golden cases as torch tensors and their tolerances, and critics written out."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gin
import pytest
import torch
from torch import Tensor


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
