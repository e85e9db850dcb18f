"""Neural networks for reinforcement learning on long sequences, without any environment library.

| module | holds |
|---|---|
| `tstep_encoders` | encoders of one timestep: observation, previous reward and previous action to a vector |
| `traj_encoders` | sequence models over timestep vectors, with hidden states for rollouts |
| `actor_critic` | actor and critic heads, for many discounts at once |
| `policy_dists` | action distributions |
| `transformer`, `cnn`, `ff`, `goal_embedders` | building blocks |
| `compiled_actor` | encoders and actor as one C++ call per timestep, for acting on a CPU |
| `specs`, `masking`, `utils`, `registry` | space specs, padding masks, shared functions, registries of classes |

Submodules are imported lazily.
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
