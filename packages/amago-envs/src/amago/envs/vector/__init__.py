"""Environments stepped together: in this process, in worker processes, or vectorized by themselves.

- `types`: what goes in and comes out of a step
- `buffers`: the arrays that everything is written into, shared or not
- `group`: steps a few environments and writes their rows; `members`: what it keeps of each
- `self_resetting`: what is special about environments that reset themselves
- `watching`: waiting for messages that come in quick succession; `hanging`: workers that do not answer
- `base`, `sync`, `async_env`: the vector environments
- `workers`, `worker`, `processes`: the worker processes, seen from outside and from inside
- `factory`: chooses between them
"""

from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.factory import make_vector_env
from amago.envs.vector.sync import SyncVectorEnv
from amago.envs.vector.types import EnvWorkerError, PartedVectorEnv, PolicyInput, VectorEnv, VectorStep

__all__ = [
    "AsyncVectorEnv",
    "EnvWorkerError",
    "PartedVectorEnv",
    "PolicyInput",
    "SyncVectorEnv",
    "VectorEnv",
    "VectorStep",
    "make_vector_env",
]
