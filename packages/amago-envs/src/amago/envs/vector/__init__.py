"""Vector environments: stepped in this process, in worker processes, or by an environment that is a batch itself.

- `base`: VectorEnv, PolicyInput, VectorStep
- `make`: make_vector_env, which chooses among the classes
- `shared_arrays`: the arrays of a step, in ordinary or shared memory
- `env_group`: steps the environments of one process; `batched_stepper`: the fast path for single environments
- `sync`, `async_env`: the two vector environments; `worker`: the main function of the worker processes
- `split`: two asynchronous vector environments, for double buffering
- `gin_bindings`: sends gin's bindings to spawned workers
"""

from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.base import EnvWorkerError, PolicyInput, VectorEnv, VectorStep
from amago.envs.vector.make import make_split_vector_env, make_vector_env
from amago.envs.vector.split import SplitVectorEnv
from amago.envs.vector.sync import SyncVectorEnv

__all__ = [
    "AsyncVectorEnv",
    "EnvWorkerError",
    "PolicyInput",
    "SplitVectorEnv",
    "SyncVectorEnv",
    "VectorEnv",
    "VectorStep",
    "make_split_vector_env",
    "make_vector_env",
]
