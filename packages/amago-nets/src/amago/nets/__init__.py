"""Neural networks for reinforcement learning on long sequences, without any environment library.

| module | holds |
|---|---|
| `tstep_encoders` | observation, reward and action of one timestep to a vector |
| `traj_encoders` | sequence models over those vectors, with hidden states for acting step by step |
| `actor_critic` | actor and critic heads for many discounts at once |
| `policy_dists` | action distributions |
| `transformer`, `cnn`, `ff`, `goal_embedders` | building blocks |
| `compiled_actor` | encoders and actor as one C++ call per timestep, for acting on a CPU |
| `specs`, `masking`, `utils`, `registry` | sizes of spaces, padding, small tools, choice by name |

Submodules load when they are first used.
"""

import importlib
from typing import Any

_SUBMODULES = (
    "activations",
    "actor_critic",
    "cnn",
    "compiled_actor",
    "ff",
    "goal_embedders",
    "input_norm",
    "masking",
    "normalization",
    "policy_dists",
    "registry",
    "specs",
    "traj_encoders",
    "transformer",
    "tstep_encoders",
    "utils",
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"amago.nets.{name}")
    raise AttributeError(f"module 'amago.nets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_SUBMODULES]
