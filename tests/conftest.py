"""Fixtures that every package's tests share; needs numpy and safetensors only."""

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
    """One case of the reference's numbers: how it was made (`case`) and its arrays by name."""

    case: dict[str, Any]
    arrays: dict[str, np.ndarray]


@pytest.fixture(scope="session")
def golden() -> Callable[[str], GoldenCase]:
    index = json.loads((GOLDEN / "index.json").read_text())

    def load(name: str) -> GoldenCase:
        return GoldenCase(index[name], load_file(GOLDEN / f"{name}.safetensors"))

    return load
