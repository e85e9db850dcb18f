"""Vector environments: stepped in this process, in worker processes, or by an environment that is a batch itself.

- `base`: VectorEnv, PolicyInput, VectorStep
- `make`: make_vector_env, which chooses among the classes
- `shared_arrays`: the arrays of a step, in ordinary or shared memory
- `env_group`: steps the environments of one process, each in an `env_slot`; `batched_stepper`: the fast path for
  single environments
- `autoreset`: stores the final observation of an episode and begins the next one
- `sync`, `async_env`: the two vector environments; `worker`: the main function of the worker processes
- `double_buffer`: two asynchronous vector environments, of which one steps while the policy acts for the other
- `gin_bindings`: sends gin's bindings to spawned workers
"""

from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.base import EnvWorkerError, PolicyInput, VectorEnv, VectorStep
from amago.envs.vector.double_buffer import SplitVectorEnv
from amago.envs.vector.make import make_split_vector_env, make_vector_env
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
