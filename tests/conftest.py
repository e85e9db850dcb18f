"""Fixtures shared by the tests of all packages. They need numpy and safetensors only."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class GoldenCase:
    """Inputs and outputs of the reference system: the settings (`case`) and the arrays by name."""

    case: dict[str, Any]
    arrays: dict[str, np.ndarray]


@pytest.fixture(scope="session")
def golden() -> Callable[[str], GoldenCase]:
    index = json.loads((GOLDEN / "index.json").read_text())

    def load(name: str) -> GoldenCase:
        return GoldenCase(index[name], load_file(GOLDEN / f"{name}.safetensors"))

    return load
